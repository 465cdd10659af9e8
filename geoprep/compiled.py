"""Compiled inner loops: numba where the disk can keep the result, and where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile on first use, keeping the result on disk where a cache folder can be written."""
    return _compiled(function)


def compiled_sums(function: F) -> F:
    """Compile likewise, so that loops that divide and add up can use vector instructions.

    Sums are taken in any order. A division by zero gives an infinity or NaN, as NumPy's does: a
    loop that looks out for exceptions goes number by number.
    """
    return _compiled(function, error_model="numpy", fastmath={"reassoc"})


def _compiled(function: F, **options: object) -> F:
    compiler = cast(Any, numba.njit)
    try:
        return cast(F, compiler(nogil=True, cache=True, **options)(function))
    except RuntimeError:  # "no locator": neither beside the source nor in the user's cache folder
        return cast(F, compiler(nogil=True, **options)(function))
