"""Callables that ``torch.compile`` compiles, if it can."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch


class Compiled:
    """A callable that is compiled for each new input shape, or runs as it is if that fails.

    There is one kernel per shape, or if ``dynamic`` one for all from the start: otherwise the exact
    result of a step would depend on the shapes of earlier steps, and a resumed run could differ.
    """

    def __init__(
        self,
        plain: Callable[..., Any],
        what: str,
        mode: str | None = None,
        *,
        dynamic: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        self._plain, self._what, self._mode = plain, what, mode
        self._fast = torch.compile(plain, dynamic=dynamic, mode=mode, options=options)

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - what the plain callable returns
        """Return the result of the plain callable, up to rounding."""
        # Imported here: the compiler takes seconds to import, and not every run uses it.
        from torch._dynamo.exc import TorchDynamoException

        if self._mode is not None:  # results of the call before, in a CUDA graph, are read
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # torch's
        try:
            return self._fast(*args)
        except TorchDynamoException as error:
            self._fast = self._plain
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"{self._what} could not be compiled and runs slower, uncompiled: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
            return self._plain(*args)
