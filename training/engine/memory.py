"""What a run will need in memory, estimated before its first step: it warns, and never refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm

from loaders import PAD_TO, available_memory
from training.config import Config
from training.engine.native import Engine
from training.module import Trainable
from training.optim import STATE_PER_PARAMETER
from training.run import Run

_SIDES = (64, 128)
"""Two small images tell what a forward pass keeps per pixel and what whatever the size."""

_LOSS_BYTES = 6 * 4
"""What the loss holds per logit at once: fp32 logit, target, probability and three between."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes that a run needs, and what is there.

    Attributes
    ----------
    tiles
        On the device that computes.
    state
        Parameters, their gradients, averaged weights, and what the optimizer keeps.
    fixed, per_sample
        What a step holds between forward and backward pass, the loss included:
        ``fixed + batch_size * per_sample``.
    available
        What can be used, tiles included.
    limited_by
        What sets that limit, such as ``the machine``.
    side
        Of the images that go through the network, in pixels.
    """

    tiles: int
    state: int
    fixed: int
    per_sample: int
    available: int
    limited_by: str
    side: int

    def total(self, batch_size: int) -> int:
        """Return what is needed with a batch size."""
        return self.tiles + self.state + self.fixed + batch_size * self.per_sample

    @property
    def largest_batch(self) -> int:
        """The largest batch that fits, 0 where none does."""
        return max(0, (self.available - self.total(0)) // self.per_sample)

    def line(self, batch_size: int) -> str:
        """Return it for people."""
        step = self.total(batch_size) - self.tiles - self.state
        parts = {"tiles": self.tiles, "weights and optimizer": self.state, "step": step}
        rows = ", ".join(f"{name} {_gib(nbytes)}" for name, nbytes in parts.items())
        return f"about {_gib(self.total(batch_size))} of {_gib(self.available)} GiB: {rows}"

    def warning(self, batch_size: int) -> str | None:
        """Return what to say of a batch that is not likely to fit; None where it is."""
        if self.total(batch_size) <= self.available:
            return None
        fix = "take a smaller --crop, a coarser --level or fewer stores"
        if self.largest_batch:
            fix = f"--batch-size {self.largest_batch} should fit"
        return (
            f"{batch_size} x {self.side} x {self.side} needs {self.line(batch_size)} "
            f"({self.limited_by}), and may not fit: {fix}"
        )


def estimate_run(run: Run) -> Estimate:
    """Return what the stage that needs most will need, of those that are left.

    Parameters
    ----------
    run
        With the tiles of its stage loaded.
    """
    found = []
    for stage in run.config.stages[run.stage :]:
        level = stage.level or run.stores[0].meta.levels[0]
        tiles = _tiles_bytes(run, level)
        there = tiles if level == run.data.tiles.side else 0
        planned = estimate(run.trainable, run.config, run.engine, stage_side(stage.crop, level))
        found.append(replace(planned, tiles=tiles, available=planned.available + there))
    return max(found, key=lambda planned: planned.total(1))


def estimate(trainable: Trainable, config: Config, engine: Engine, side: int) -> Estimate:
    """Return what training needs beside its tiles.

    Parameters
    ----------
    trainable
        Where it will run; two small images are put through its network.
    config
        Optimizer, averaged weights.
    engine
        Decides the dtype.
    side
        Of the images, in pixels.
    """
    network, optim = trainable.network, config.optim
    bands = len(trainable.prep.normalize.centre.flatten())
    try:
        fixed, pixel = measure_activations(network, bands=bands, dtype=engine.dtype)
    except (RuntimeError, ValueError):  # a network that takes no small images
        fixed, pixel = 0, 0.0
    device = next(network.parameters()).device
    parameters = sum(p.numel() * 4 for p in network.parameters())
    copies = 2 + bool(optim.ema) + STATE_PER_PARAMETER[optim.optimizer]
    available, limited_by = _available(device)
    return Estimate(
        tiles=0,
        state=copies * parameters,
        fixed=fixed,
        per_sample=max(1, int(pixel * side * side)),
        available=available,
        limited_by=limited_by,
        side=side,
    )


def stage_side(crop: int | None, level: int) -> int:
    """Return the side of what goes through the network, padding included."""
    side = min(crop or level, level)
    return side + -side % PAD_TO


def _tiles_bytes(run: Run, level: int) -> int:
    """Return the bytes of all tiles of a level, where they are on the device that computes."""
    data, residency = run.data, run.config.data.residency
    if run.engine.device.type != "cpu" and residency != "device":
        return 0
    if residency == "stream":
        return int(getattr(data.tiles, "ram_limit", 0))
    every = [data.tiles, *([data.validation_tiles] if data.validation_tiles else [])]
    return sum(map(len, every)) * level * level * (len(run.facts.bands) + 1)


def measure_activations(network: nn.Module, *, bands: int, dtype: torch.dtype) -> tuple[int, float]:
    """Return the bytes that a step holds whatever the image, and those per pixel of it.

    Parameters
    ----------
    network
        Its buffers and the random state are as before afterwards.
    bands, dtype
        Of the image; parameters stay fp32.
    """
    small, large = (_kept(network, bands, side, dtype) for side in _SIDES)
    areas = [side * side for side in _SIDES]
    pixel = (sum(large) - sum(small)) / (areas[1] - areas[0])
    fixed = max(0, int(sum(small) - pixel * areas[0]))
    # The backward pass holds a gradient of the size of the largest tensor.
    return fixed, pixel + max(large) / areas[1]


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
    with _single_images(network), saved_tensors_hooks(note, lambda tensor: tensor), bf16:
        logits: Tensor = network(image)
    return [*seen.values(), logits.numel() * _LOSS_BYTES]


@contextmanager
def _single_images(network: nn.Module) -> Iterator[None]:
    """Let a network in training mode take one image and remember nothing of it.

    BatchNorm is in evaluation mode meanwhile: behind a global pooling it has one value per
    channel, which it cannot average over. It keeps as much for the backward pass either way.
    """
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    modes = [(module, module.training) for module in network.modules()]
    network.train()
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                buffer.copy_(before[name])


def _available(device: torch.device) -> tuple[int, str]:
    if device.type == "cpu":
        here = available_memory()
        return here.nbytes, here.limited_by
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0], f"device {device}"
    total = torch.xpu.get_device_properties(device).total_memory
    return total - torch.xpu.memory_reserved(device), f"device {device}"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f}"
