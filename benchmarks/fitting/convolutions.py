"""The upper bound of the training rate: the convolutions of a step, forward and backward, alone.

A dispatch mode records the convolutions of a model with their shapes, layouts and dtypes, so the
bound applies to any model.
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
"""Output channels of a model for speed bins: seven bins and any road."""

Convolution = tuple[Any, tuple[Any, ...]]
"""Operator (convolution or its gradient) and random arguments."""


class _ConvolutionRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Records every convolution with random tensors as arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.found: list[Convolution] = []

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - as in torch
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


def record(model: nn.Module, image: Tensor) -> list[Convolution]:
    """Return the convolutions of a step in bf16 and channels last, in order.

    Parameters
    ----------
    image
        float32 (n, band, y, x).
    """
    last = torch.channels_last
    model.train().to(memory_format=last)  # type: ignore[call-overload]  # as in training.engine.native
    recorder = _ConvolutionRecorder()
    with recorder:
        with torch.autocast("cpu", torch.bfloat16):
            made = model(image.contiguous(memory_format=last))
        made.float().mean().backward()
    return recorder.found


def ceiling(batch_size: int, crop: int, bands: int, seconds: float) -> dict[str, Any]:
    """Return the images per second of the convolutions of `training.fit` alone."""
    model = build_model(Config().model, bands=bands, channels=CHANNELS)
    found = record(model, torch.rand(batch_size, bands, crop, crop))
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
