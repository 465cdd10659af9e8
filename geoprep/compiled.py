"""Decorators that compile inner loops with numba, cached on disk where possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from threading import Lock
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function on first use; the result is cached on disk if a folder is writable."""
    return cast(F, _Kernel(function))


def compiled_sums(function: F) -> F:
    """Compile a function whose sums and divisions may use vector instructions."""
    # Checks for exceptions and the order of sums would prevent them.
    return cast(F, _Kernel(function, error_model="numpy", fastmath={"reassoc"}))


class _Kernel:
    """A function that numba compiles; numba is imported, in 0.3 s, by the first that is called."""

    _lock = Lock()

    def __init__(self, function: Callable[..., Any], **options: object) -> None:
        self._function, self._options = function, options
        self._dispatcher: Any = None
        update_wrapper(self, function)

    def __call__(self, *args: object, **named: object) -> Any:  # noqa: ANN401 - as the function
        return (self._dispatcher or self._made())(*args, **named)

    @property
    def _numba_type_(self) -> Any:  # noqa: ANN401 - numba has no types; it asks kernels that call this one
        return (self._dispatcher or self._made())._numba_type_

    def _made(self) -> Any:  # noqa: ANN401 - as above
        import numba

        with self._lock:
            if self._dispatcher is None:
                compiler = cast(Any, numba.njit)
                try:
                    made = compiler(nogil=True, cache=True, **self._options)(self._function)
                except RuntimeError:  # "no locator": no cache folder is writable
                    made = compiler(nogil=True, **self._options)(self._function)
                self._dispatcher = made
        return self._dispatcher
