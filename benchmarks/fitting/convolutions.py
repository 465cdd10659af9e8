"""The bound of a training step: its convolutions alone, forward and backward, nothing else.

The network is watched for the convolutions that reach the dispatcher, with the shapes, layouts
and dtypes that they have there, so this is the bound of whatever network is trained.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from training.model import build_model
from training.settings import Config

FORWARD = torch.ops.aten.convolution.default
BACKWARD = torch.ops.aten.convolution_backward.default
CHANNELS = 8
"""What a network for speed bins gives: seven bins and any road."""

Convolution = tuple[Any, tuple[Any, ...]]
"""One call of a convolution or of its gradient, and tensors of its own."""


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
            self.found.append((func, tuple(_stand_in(value) for value in args)))
        return func(*args, **(kwargs or {}))


def _stand_in(value: Any) -> Any:  # noqa: ANN401 - an argument of an operator
    """Return random values of the same shape, layout and dtype in place of a tensor."""
    if isinstance(value, Tensor):
        return torch.empty_like(value.detach()).normal_()
    return list(value) if isinstance(value, list) else value


def record(network: nn.Module, image: Tensor) -> list[Convolution]:
    """Return the convolutions of a step in bf16 and channels last, in their order.

    Parameters
    ----------
    image
        float32 (n, band, y, x).
    """
    last = torch.channels_last
    network.train().to(memory_format=last)  # type: ignore[call-overload]  # as in training.engine.native
    watch = _Watch()
    with watch:
        with torch.autocast("cpu", torch.bfloat16):
            made = network(image.contiguous(memory_format=last))
        made.float().mean().backward()
    return watch.found


def ceiling(batch_size: int, crop: int, bands: int, seconds: float) -> dict[str, Any]:
    """Return the images per second that the convolutions of `training.fit` alone allow."""
    network = build_model(Config().model, bands=bands, channels=CHANNELS)
    found = record(network, torch.rand(batch_size, bands, crop, crop))
    _replay(found)
    steps, start = 0, time.perf_counter()
    while steps < 3 or time.perf_counter() - start < seconds:
        _replay(found)
        steps += 1
    rate = steps * batch_size / (time.perf_counter() - start)
    return {"rate": rate, "convolutions": len(found)}


def _replay(convolutions: list[Convolution]) -> None:
    with torch.no_grad():
        for call, given in convolutions:
            call(*given)
