"""The bound of a training step: its convolutions alone, forward and backward, nothing else.

A real step is watched for the convolutions that reach the dispatcher, with the shapes, layouts
and dtypes that they have there, so this is the bound of whatever network is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

FORWARD = torch.ops.aten.convolution.default
BACKWARD = torch.ops.aten.convolution_backward.default


@dataclass(frozen=True, slots=True)
class Convolution:
    """One call of a convolution or of its gradient, on tensors of its own."""

    call: Callable[..., Any]
    given: tuple[Any, ...]

    def __call__(self) -> None:
        """Compute it and drop the result."""
        self.call(*self.given)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Notes every convolution, with stand-ins for its tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.found: list[Convolution] = []

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func in (FORWARD, BACKWARD):
            self.found.append(Convolution(func, tuple(_stand_in(value) for value in args)))
        return func(*args, **(kwargs or {}))


def _stand_in(value: Any) -> Any:  # noqa: ANN401 - an argument of an operator
    """Return random values of the same shape, layout and dtype in place of a tensor."""
    if isinstance(value, Tensor):
        return torch.empty_like(value.detach()).normal_()
    return list(value) if isinstance(value, list) else value


def record(step: Callable[[], object]) -> list[Convolution]:
    """Return the convolutions of a step, in their order, each with tensors of its own.

    Parameters
    ----------
    step
        Carried out once.
    """
    watch = _Watch()
    with watch:
        step()
    return watch.found


def replay(convolutions: list[Convolution]) -> None:
    """Compute all convolutions of a step."""
    with torch.no_grad():
        for convolution in convolutions:
            convolution()
