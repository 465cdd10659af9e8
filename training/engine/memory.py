"""What a run will need in memory, which warns and never refuses; the batch size that is fastest."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm

from geoprep.store import Store
from loaders import PAD_TO, Batch, available_memory, select, this_rank
from training.config import Config
from training.data import facts_of, folds_of, windows
from training.engine.distributed import largest
from training.engine.native import Engine
from training.module import Stepper, Trainable, make_trainable, prepare
from training.optim import STATE_PER_PARAMETER
from training.run import Run

_SIDES = (64, 128)
"""Two small images tell what a forward pass keeps per pixel and what whatever the size."""

_LOSS_BYTES = 6 * 4
"""What the loss holds per logit at once: fp32 logit, target, probability and three between."""

SIZES = (2, 4, 8, 16, 32, 64, 128)
"""Batches to choose from. From two: BatchNorm needs something to average over."""

STEPS_PER_EPOCH = 16
"""At least so many: larger batches are faster by per cents, and learning goes by steps."""

_TIE = 0.02
"""Rates this close are noise; of two alike the larger batch has the better statistics."""

_GIVE_UP = 0.9
"""A size below this share of the best rate ends the search: larger ones only get slower."""


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

    def warnings(self, batch_size: int) -> list[str]:
        """Return what to say of a batch that is not likely to fit."""
        if self.total(batch_size) <= self.available:
            return []
        fix = "take a smaller --crop, a coarser --level or fewer stores"
        if self.largest_batch:
            fix = f"--batch-size {self.largest_batch} should fit"
        size = f"{batch_size} x {self.side} x {self.side}"
        needs = f"{self.line(batch_size)} ({self.limited_by})"
        return [f"{size} needs {needs}, and may not fit: {fix}"]


def estimate_run(run: Run) -> Estimate:
    """Return what the rest of a run needs at most.

    Parameters
    ----------
    run
        With the tiles of its stage loaded.
    """
    tiles, residency = run.loader.tiles, run.config.residency
    side, level = _largest(run.config, run.stores, run.stage)
    count = len(tiles) + (0 if run.validation is None else len(run.validation.tiles))
    here, most = (count * size * size * (len(tiles.bands) + 1) for size in (tiles.side, level))
    if run.engine.device.type != "cpu" and residency != "device":
        here = most = 0  # they are not on the device that computes
    elif residency == "stream":
        here = most = int(getattr(tiles, "ram_limit", 0))
    planned = estimate(run.trainable, run.config, run.engine, side)
    return replace(planned, tiles=most, available=planned.available + here)


def _largest(config: Config, stores: Sequence[Store], first: int = 0) -> tuple[int, int]:
    """Return the side of what goes through the network, padding included, and of tiles, at most.

    Parameters
    ----------
    first
        Number of the first stage that counts.
    """
    finest = stores[0].meta.levels[0]
    levels = [(stage.crop, stage.level or finest) for stage in config.plan[first:]]
    side = max(min(crop or level, level) for crop, level in levels)
    return side + -side % PAD_TO, max(level for _, level in levels)


def estimate(trainable: Trainable, config: Config, engine: Engine, side: int) -> Estimate:
    """Return what training needs beside its tiles.

    Parameters
    ----------
    trainable
        Where it will run; two small images are put through a copy of its network.
    config
        Optimizer, averaged weights.
    engine
        Decides the dtype.
    side
        Of the images, in pixels.
    """
    network = trainable.network
    bands = trainable.prep.normalize.centre.numel()
    try:
        fixed, pixel = measure_activations(network, bands=bands, dtype=engine.dtype)
    except (RuntimeError, ValueError):  # a network that takes no small images
        fixed, pixel = 0, 0.0
    parameters = sum(p.numel() * 4 for p in network.parameters())
    copies = 2 + bool(config.ema) + STATE_PER_PARAMETER[config.optimizer]
    per_sample = max(1, int(pixel * side * side))
    return Estimate(0, copies * parameters, fixed, per_sample, *_available(engine.device), side)


def measure_activations(network: nn.Module, *, bands: int, dtype: torch.dtype) -> tuple[int, float]:
    """Return the bytes that a step holds whatever the image, and those per pixel of it.

    Parameters
    ----------
    network
        A copy of it is used.
    bands, dtype
        Of the image; parameters stay fp32.
    """
    tried = copy.deepcopy(network).train()
    for module in tried.modules():
        # Behind a global pooling BatchNorm has one value per channel, which it cannot average
        # over. It keeps as much for the backward pass either way.
        if isinstance(module, _BatchNorm):
            module.eval()
    small, large = (_kept(tried, bands, side, dtype) for side in _SIDES)
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
    with torch.random.fork_rng(), saved_tensors_hooks(note, lambda tensor: tensor), bf16:
        logits: Tensor = network(image)
    return [*seen.values(), logits.numel() * _LOSS_BYTES]


def _available(device: torch.device) -> tuple[int, str]:
    if device.type == "cpu":
        here = available_memory()
        return here.nbytes, here.limited_by
    free: int = torch.get_device_module(device).mem_get_info(device)[0]
    return free, f"device {device}"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f}"


def choose_batch_size(
    config: Config, engine: Engine, stores: Sequence[Store]
) -> tuple[Config, list[str]]:
    """Return settings whose batch size is a number, and where it was to be found, what was weighed.

    Parameters
    ----------
    config, engine, stores
        Of the run; ``batch_size`` may be ``auto``. All ranks take what the first one measured.
    """
    if config.batch_size != "auto":
        return config, []
    trainable = make_trainable(config, facts_of(config, stores), engine, stores)
    side, finest = _largest(config, stores)
    fits = estimate(trainable.to(engine.device), config, engine, side).largest_batch
    tiles = sum(len(select(store, "train", folds_of(config)).tiles) for store in stores)
    samples = tiles * min(windows(config, s, s.level or finest)[1] for s in config.plan)
    learns = samples // (STEPS_PER_EPOCH * this_rank()[1] * config.accumulate)
    rates = measure_rates(
        step_timer(trainable, engine, config, side), max(SIZES[0], min(fits, learns))
    )
    (chosen,) = largest([0 if this_rank()[0] else fastest(rates)], engine.device)
    tried = ", ".join(f"{size}: {rate:.1f}" for size, rate in rates.items())
    bound = f"{learns} would leave fewer than {STEPS_PER_EPOCH} steps per epoch"
    if fits < learns:
        bound = f"{fits} may not fit into memory"
    said = (
        f"batch size {chosen:.0f} is the fastest here (images/s by size: {tried}); of {samples} "
        f"samples per epoch, more than {bound}"
    )
    return replace(config, batch_size=int(chosen)), [said]


def measure_rates(seconds: Callable[[int], float], most: int) -> dict[int, float]:
    """Return the images per second by batch size, until larger ones only get slower.

    Parameters
    ----------
    seconds
        Takes a batch size and returns seconds per step.
    most
        The largest size to try.
    """
    rates: dict[int, float] = {}
    for size in SIZES:
        if size > most or (rates and rates[max(rates)] < _GIVE_UP * max(rates.values())):
            break
        rates[size] = size / seconds(size)
    return rates


def fastest(rates: dict[int, float]) -> int:
    """Return the size of the highest rate; of rates alike the largest size."""
    return max(size for size, rate in rates.items() if rate >= (1 - _TIE) * max(rates.values()))


def step_timer(
    trainable: Trainable, engine: Engine, config: Config, side: int, repeats: int = 3
) -> Callable[[int], float]:
    """Return a function that measures the seconds of a training step by batch size.

    Steps are taken by a copy that is thrown away, and nothing is compiled, which costs all sizes
    the same. The fastest of ``repeats`` counts, after one that does not.
    """
    plain = replace(engine, compile_mode="off")
    module = copy.deepcopy(trainable).train()
    stepper = Stepper(module, prepare(module, plain, replace(config, lr=0.0)), plain, config.clip)
    bands = trainable.prep.normalize.centre.numel()

    def seconds(batch_size: int) -> float:
        batch, found = _noise(batch_size, side, bands), []
        for _ in range(repeats + 1):
            begun = time.perf_counter()
            stepper([batch])
            if engine.device.type != "cpu":
                torch.accelerator.synchronize(engine.device)
            found.append(time.perf_counter() - begun)
        return min(found[1:])

    return seconds


def _noise(count: int, side: int, bands: int) -> Batch:
    """Return a batch without meaning."""
    random = torch.Generator().manual_seed(count)
    shape = (count, side, side)
    image = torch.randint(1, 256, (*shape, bands), dtype=torch.uint8, generator=random)
    speed = torch.randint(0, 255, shape, dtype=torch.uint8, generator=random)
    number = torch.arange(count)
    return Batch(image.permute(0, 3, 1, 2), speed, number, torch.zeros(count, 3).int(), number)
