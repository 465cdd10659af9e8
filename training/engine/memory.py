"""What a run will need in memory, known before its first step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from geoprep.errors import UsageError
from loaders import available_memory
from training.optim import STATE_PER_PARAMETER, OptimizerName

_SIDES = (64, 128)
"""Two small images tell what a forward pass keeps per pixel and what whatever the size."""

_LOSS_BYTES = 6 * 4
"""What the loss holds per logit at once: fp32 logit, target, probability and three between."""

_FP32 = 4


@dataclass(frozen=True, slots=True)
class Activations:
    """What a forward pass keeps for the backward pass, in bytes.

    Attributes
    ----------
    fixed
        Whatever the image: above all, weights cast to bf16.
    pixel
        For each pixel of the input.
    largest
        Of those, the largest tensor: the backward pass holds a gradient of its size.
    """

    fixed: int
    pixel: float
    largest: float


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes that a run needs, by purpose, and what is there.

    Attributes
    ----------
    data
        Tiles in memory.
    model
        Parameters and their gradients, and averaged weights.
    optimizer
        What the optimizer keeps beside each parameter.
    activations
        What a step holds between forward and backward pass, the loss included.
    available
        What can be used, tiles included.
    limited_by
        What sets that limit, such as ``the machine``.
    batch_size, crop
        What was planned for.
    per_sample, fixed
        Activations are ``fixed + batch_size * per_sample``.
    """

    data: int
    model: int
    optimizer: int
    activations: int
    available: int
    limited_by: str
    batch_size: int
    crop: int
    per_sample: int
    fixed: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.data + self.model + self.optimizer + self.activations

    @property
    def fits(self) -> bool:
        """Whether all of it is there."""
        return self.total <= self.available

    @property
    def largest_batch(self) -> int:
        """The largest batch that fits, 0 where none does."""
        left = self.available - self.data - self.model - self.optimizer - self.fixed
        return max(0, left // self.per_sample)

    def of(self, batch_size: int) -> MemoryPlan:
        """Return the plan for another batch size."""
        activations = self.fixed + batch_size * self.per_sample
        return replace(self, batch_size=batch_size, activations=activations)

    def __str__(self) -> str:
        parts = {
            "data": self.data,
            "model": self.model,
            "optimizer": self.optimizer,
            "activations": self.activations,
        }
        rows = ", ".join(f"{name} {_gib(nbytes)}" for name, nbytes in parts.items())
        return f"{_gib(self.total)} of {_gib(self.available)} GiB: {rows}"


def plan(
    network: nn.Module,
    *,
    batch_size: int,
    crop: int,
    bands: int,
    optimizer: OptimizerName,
    dtype: torch.dtype,
    tiles_bytes: int = 0,
    loaded: bool = True,
    ema: bool = False,
) -> MemoryPlan:
    """Return what training needs.

    Parameters
    ----------
    network
        In training mode and where it will run; two small images are put through it.
    batch_size, crop, bands
        Of a batch (n, bands, crop, crop).
    optimizer
        Its name.
    dtype
        ``torch.bfloat16`` under autocast, or ``torch.float32``.
    tiles_bytes
        Of all tiles on the device that computes.
    loaded
        Whether they are there already.
    ema
        Whether averaged weights are kept.
    """
    device = next(network.parameters()).device
    kept = measure_activations(network, bands=bands, dtype=dtype)
    parameters = sum(p.numel() * _FP32 for p in network.parameters())
    available, limited_by = _available(device)
    per_sample = int((kept.pixel + kept.largest) * crop * crop)
    return MemoryPlan(
        data=tiles_bytes,
        model=(3 if ema else 2) * parameters,
        optimizer=STATE_PER_PARAMETER[optimizer] * parameters,
        activations=kept.fixed + batch_size * per_sample,
        available=available + (tiles_bytes if loaded else 0),
        limited_by=limited_by,
        batch_size=batch_size,
        crop=crop,
        per_sample=per_sample,
        fixed=kept.fixed,
    )


def check(planned: MemoryPlan) -> None:
    """Refuse a plan that does not fit.

    Raises
    ------
    UsageError
        Names a smaller batch that fits or, where none does, what else to do.
    """
    if planned.fits:
        return
    need = f"a batch of {planned.batch_size} x {planned.crop} x {planned.crop} needs {planned}"
    if planned.largest_batch:
        fix = f"--batch-size {planned.largest_batch} fits"
    else:
        fix = "not even one sample fits: take a smaller --crop, a coarser --level or fewer stores"
    raise UsageError(f"{need} ({planned.limited_by}); {fix}")


def measure_activations(network: nn.Module, *, bands: int, dtype: torch.dtype) -> Activations:
    """Return what a forward pass of this network keeps, from two small ones.

    Parameters
    ----------
    network
        In training mode. Its buffers and the random state are as before afterwards.
    bands, dtype
        Of the image; parameters stay fp32.
    """
    small, large = (_kept(network, bands, side, dtype) for side in _SIDES)
    areas = [side * side for side in _SIDES]
    pixel = (sum(large) - sum(small)) / (areas[1] - areas[0])
    fixed = max(0, int(sum(small) - pixel * areas[0]))
    return Activations(fixed, pixel, max(large) / areas[1])


def _kept(network: nn.Module, bands: int, side: int, dtype: torch.dtype) -> list[int]:
    """Return the bytes of all storages that a forward pass keeps, and of its loss."""
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    device = next(network.parameters()).device
    image = torch.zeros(1, bands, side, side, device=device)
    image = image.to(dtype).contiguous(memory_format=torch.channels_last)
    bf16 = torch.autocast(device.type, dtype=dtype) if dtype != torch.float32 else nullcontext()
    with _as_before(network), saved_tensors_hooks(note, lambda tensor: tensor), bf16:
        logits: Tensor = network(image)
    return [*seen.values(), logits.numel() * _LOSS_BYTES]


@contextmanager
def _as_before(network: nn.Module) -> Iterator[None]:
    """Undo what a forward pass in training mode changes: running statistics, random state."""
    before: dict[str, Any] = {name: b.clone() for name, b in network.named_buffers()}
    with torch.random.fork_rng():
        yield
    with torch.no_grad():
        for name, buffer in network.named_buffers():
            buffer.copy_(before[name])


def _available(device: torch.device) -> tuple[int, str]:
    if device.type == "cpu":
        here = available_memory()
        return here.nbytes, here.limited_by
    free, _ = torch.cuda.mem_get_info(device) if device.type == "cuda" else _xpu_memory(device)
    return free, f"device {device}"


def _xpu_memory(device: torch.device) -> tuple[int, int]:
    total = torch.xpu.get_device_properties(device).total_memory
    return total - torch.xpu.memory_reserved(device), total


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f}"
