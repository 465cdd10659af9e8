"""Decorators that compile inner loops with numba, cached on disk where possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function on first use; the result is cached on disk if a folder is writable."""
    return _compiled(function)


def compiled_sums(function: F) -> F:
    """Compile a function whose sums and divisions may use vector instructions."""
    # Checks for exceptions and the order of sums would prevent them.
    return _compiled(function, error_model="numpy", fastmath={"reassoc"})


def _compiled(function: F, **options: object) -> F:
    compiler = cast(Any, numba.njit)
    try:
        return cast(F, compiler(nogil=True, cache=True, **options)(function))
    except RuntimeError:  # "no locator": no cache folder is writable
        return cast(F, compiler(nogil=True, **options)(function))
