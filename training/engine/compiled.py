"""torch.compile where it pays and works, the plain path where it does not."""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch._dynamo.exc import TorchDynamoException

P = ParamSpec("P")
R = TypeVar("R")


def missing_compiler(device: torch.device) -> str | None:
    """Return what torch.compile lacks on this machine, or None where it lacks nothing.

    Parameters
    ----------
    device
        A CPU needs a C++ compiler, an accelerator needs Triton.
    """
    if device.type != "cpu":
        return None if importlib.util.find_spec("triton") else "since Triton is not installed"
    wanted = os.environ.get("CXX") or "g++"
    if shutil.which(wanted):
        return None
    return f"since there is no C++ compiler ({wanted}); install g++ for slightly faster steps"


class Compiled(Generic[P, R]):
    """A callable, compiled when it is first called with a new shape; the plain one if that fails.

    One kernel a shape, never one for shapes at large: else the bits of a step would depend on
    what shapes came before it, and a resumed run could differ from one that was never stopped.

    Parameters
    ----------
    plain
        A module or function.
    what
        What to call it in the warning when compiling fails.
    """

    def __init__(self, plain: Callable[P, R], what: str) -> None:
        self._plain = plain
        self._what = what
        self._compiled: Any = torch.compile(plain, dynamic=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what the plain callable returns, but for rounding."""
        if self._compiled is not None:
            try:
                result: R = self._compiled(*args, **kwargs)
            except TorchDynamoException as error:
                self._compiled = None
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                warnings.warn(
                    f"{self._what} could not be compiled and runs as it is, slower: {reason}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            else:
                return result
        return self._plain(*args, **kwargs)
