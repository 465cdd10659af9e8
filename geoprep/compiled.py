"""Compiled inner loops: numba where the disk can keep the result, and where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile on first use, keeping the result on disk where a cache folder can be written."""
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # "no locator": neither beside the source nor in the user's cache folder
        return cast(F, numba.njit(nogil=True)(function))
