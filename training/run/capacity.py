"""Memory and time that a run needs, which are only told; and the batch size ``auto``.

The latter is the fastest of several that fit, by measured steps on random pixels.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm

from geoprep.errors import UsageError
from geoprep.texts import counted
from loaders import PAD_TO, Batch, available_memory, this_rank
from training.data import Stores, count_tiles
from training.engine.distributed import max_over_ranks, ranks_here
from training.engine.native import Engine, random_state, set_random_state, wait_for
from training.model.build import UNET_SMALL
from training.model.trainable import Trainable
from training.process import is_out_of_memory
from training.run.captured import WARM_UP, CapturedStep
from training.run.parts import STATE_PER_PARAMETER, info_of, make_trainable
from training.run.report import duration
from training.run.step import StepState, train_step
from training.run.timing import StepTimer, epoch_seconds, epochs_within
from training.run.trainer import Trainer
from training.setting_texts import parse_duration
from training.settings import Config

_SIDES = (64, 128)
"""Two small images separate the memory per pixel of a forward pass from the constant part."""

LOSS_BYTES = 6 * 4
"""Memory of the loss per logit: fp32 logit, target, probability and three intermediate values."""

SIZES = (2, 4, 8, 16, 32, 64, 128)
"""Batch sizes to choose from; at least 2, since BatchNorm averages over samples."""

STEPS_PER_EPOCH = 16
"""Minimum steps per epoch: larger batches are a few per cent faster, but learn less per epoch."""

LARGER = 32
"""Batch size that most accelerators need to compute at their rate."""

_REPEATS = 3
_TIE = 0.02
"""Rates that differ by less are equal; of equal rates the larger batch has better statistics."""

_GIVE_UP = 0.9
"""A rate below this share of the best ends the search: larger sizes are slower still."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Memory that a run needs and that is available, in bytes."""

    tiles: int
    """Tiles on the device that trains."""
    state: int
    """Parameters, gradients, averaged weights and state of the optimizer."""
    fixed: int
    per_sample: int
    """A step needs ``fixed + batch_size * per_sample`` between forward and backward pass."""
    available: int
    limited_by: str
    side: int
    """Side of the images in pixels."""

    def total(self, batch_size: int) -> int:
        """Return the memory that is needed with a batch size."""
        return self.tiles + self.state + self.fixed + batch_size * self.per_sample

    @property
    def largest_batch(self) -> int:
        """The largest batch size that fits; 0 if none does."""
        return max(0, (self.available - self.total(0)) // self.per_sample)

    def line(self, batch_size: int) -> str:
        """Return the estimate as a line of text."""
        step = self.total(batch_size) - self.tiles - self.state
        parts = {"tiles": self.tiles, "weights and optimizer": self.state, "step": step}
        rows = ", ".join(f"{name} {_gib(nbytes)}" for name, nbytes in parts.items())
        return f"about {_gib(self.total(batch_size))} of {_gib(self.available)} GiB: {rows}"

    def warnings(self, batch_size: int) -> list[str]:
        """Return a warning if a batch probably does not fit."""
        if self.total(batch_size) <= self.available:
            return []
        fix = "use a smaller `crop`, a coarser `level` or fewer stores"
        if self.largest_batch:
            fix = f"`batch_size` {self.largest_batch} should fit"
        size = f"{batch_size} x {self.side} x {self.side}"
        needs = f"{self.line(batch_size)} ({self.limited_by})"
        return [f"a batch of {size} needs {needs} and may not fit: {fix}"]


def estimate_run(run: Trainer) -> Estimate:
    """Return the peak memory of the remaining stages of a run."""
    tiles, residency = run.loader.tiles, run.config.residency
    side, level = largest_sides(run.config, run.stores, run.stage)
    loaders = (run.loader, run.validation)  # validation tiles may be streamed all the same
    alike = [one.tiles for one in loaders if one and isinstance(one.tiles, type(tiles))]
    count = sum(map(len, alike))
    here, most = (count * size * size * (len(tiles.bands) + 1) for size in (tiles.side, level))
    if run.engine.device.type != "cpu" and residency != "device":
        here = most = 0  # tiles are not on the device that trains
    elif residency == "stream":
        here = most = int(getattr(tiles, "ram_limit", 0))
    here, most = (nbytes // sharing(run.engine.device) for nbytes in (here, most))
    planned = estimate(run.trainable, run.config, run.engine, side)
    return replace(planned, tiles=most, available=planned.available + here)


def time_step(run: Trainer) -> float:
    """Return the seconds of an optimizer step on the batches of a run, on the slowest rank.

    The learning rate is 0, but statistics of batches and random numbers change: for a run that ends
    then.
    """
    module, batches = run.module.train(), chain.from_iterable(repeat(run.loader))
    run.state.set_rate(0.0)
    step = partial(run.step, module, batches, run.state, run.config.accumulate)
    seconds = StepTimer().measure(step, partial(wait_for, run.engine.device))
    return max_over_ranks([seconds], run.engine.device)[0]


def planned(run: Trainer) -> Iterator[str]:
    """Yield lines on what the rest of a run would take, by `time_step`."""
    config, every, step = run.config, run.config.accumulate, time_step(run)
    given, images = (run.loader, run.validation, every), run.images_per_step
    epoch, validated = epoch_seconds(step, *given)
    yield f"a step of {counted(images, 'image')} takes {step:.2g} s: {images / step:.1f} images/s"
    yield f"an epoch takes {duration(epoch)}, its validation {duration(validated)}"
    end = run.epochs
    if config.time:
        end = min(end, run.done + epochs_within(parse_duration(config.time), step, *given))
    # Of each stage: side of its tiles, samples of a tile and epoch, and the pixels of these.
    work = []
    for stage in config.all_stages:
        side = stage.level or run.stores[0].meta.levels[0]
        crop, samples = config.crops_of(stage, side)
        work.append((side, samples, samples * (crop or side) ** 2))
    timed = work[run.stage]
    steps = seconds = 0.0
    for number in range(run.progress.epoch, math.ceil(end)):
        share = min(end, number + 1) - max(run.done, number)
        side, samples, pixels = work[config.stage_of(number)]
        steps += share * -(-len(run.loader) // every) * samples / timed[1]
        seconds += share * epoch * pixels / timed[2]
        if config.validates(number + 1):
            seconds += validated * (side / timed[0]) ** 2
    epochs = counted(round(end - run.done, 2), "epoch")
    yield f"{epochs}: {counted(round(steps), 'step')} in {duration(seconds)}"
    if run.engine.device.type == "cpu":
        yield from _smaller(run, images / step, end - run.done)


def _smaller(run: Trainer, rate: float, epochs: float) -> Iterator[str]:
    """Yield how often the small model would see each tile while the run takes these epochs."""
    config, size = run.config, run.loader.schedule.batch_size
    info = replace(run.info, model=UNET_SMALL)
    small = make_trainable(config, info, run.engine, run.stores)
    own, least = (sum(p.numel() for p in one.parameters()) for one in (run.trainable, small))
    if own > least:
        side = largest_sides(config, run.stores, run.stage)[0]
        faster = measured_rates(small, run.engine, config, side, [size])[size] / rate
        seen = epochs * run.loader.sampling.crops_per_tile
        yield (
            f"a smaller model, `model` {UNET_SMALL}, would see each tile {faster * seen:.0f} times "
            f"in this time, not {seen:.0f}"
        )


def largest_sides(config: Config, stores: Stores, first: int = 0) -> tuple[int, int]:
    """Return the largest sides of samples, padding included, and of tiles, in pixels."""
    finest = stores[0].meta.levels[0]
    levels = [(stage.crop, stage.level or finest) for stage in config.all_stages[first:]]
    side = max(min(crop or level, level) for crop, level in levels)
    return side + -side % PAD_TO, max(level for _, level in levels)


def estimate(trainable: Trainable, config: Config, engine: Engine, side: int) -> Estimate:
    """Return the memory that training needs besides its tiles."""
    model = trainable.model
    bands = trainable.prep.normalize.centre.numel()
    try:
        fixed, pixel = measure_activations(model, bands=bands, dtype=engine.dtype)
    except (RuntimeError, ValueError):  # a model that does not accept small images
        fixed, pixel = 0, 0.0
    parameters = sum(p.numel() * 4 for p in model.parameters())
    copies = 2 + bool(config.ema) + STATE_PER_PARAMETER[config.optimizer]
    per_sample = max(1, int(pixel * side * side))
    return Estimate(0, copies * parameters, fixed, per_sample, *available(engine.device), side)


def measure_activations(model: nn.Module, *, bands: int, dtype: torch.dtype) -> tuple[int, float]:
    """Return the constant memory of a step and that per pixel of the image, in bytes."""
    tried = copy.deepcopy(model).train()
    for module in tried.modules():
        # After a global pooling BatchNorm has one value per channel and cannot average in training
        # mode. It stores as much for the backward pass in both modes.
        if isinstance(module, _BatchNorm):
            module.eval()
    small, large = (_stored_bytes(tried, bands, side, dtype) for side in _SIDES)
    areas = [side * side for side in _SIDES]
    pixel = (sum(large) - sum(small)) / (areas[1] - areas[0])
    fixed = max(0, int(sum(small) - pixel * areas[0]))
    # The backward pass needs a gradient of the size of the largest tensor.
    return fixed, pixel + max(large) / areas[1]


def _stored_bytes(model: nn.Module, bands: int, side: int, dtype: torch.dtype) -> list[int]:
    """Return the bytes of each storage that a forward pass keeps for the backward pass."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    device = next(model.parameters()).device
    image = torch.zeros(1, bands, side, side, device=device)
    image = image.to(dtype).contiguous(memory_format=torch.channels_last)
    bf16 = torch.autocast(device.type, dtype=dtype) if dtype != torch.float32 else nullcontext()
    state = random_state(device)  # of this device alone: others would get a context
    try:
        with saved_tensors_hooks(note, lambda tensor: tensor), bf16:
            logits: Tensor = model(image)
    finally:
        set_random_state(state, device)
    return [*seen.values(), logits.numel() * LOSS_BYTES]


def sharing(device: torch.device) -> int:
    """Return the number of ranks that share the memory of a device."""
    return ranks_here() if device.type == "cpu" else 1


def available(device: torch.device) -> tuple[int, str]:
    """Return the bytes that a device has left for the tensors of a rank, and what limits them.

    Memory that torch's cache holds unused counts as left.
    """
    here = available_memory() if device.type == "cpu" else available_memory(device=device)
    ranks = sharing(device)
    return here.nbytes // ranks, here.limited_by + f", {ranks} ranks" * (ranks > 1)


def tile_bytes(config: Config, stores: Stores, side: int, device: torch.device) -> int:
    """Return the bytes of tiles of a side that are not loaded yet on the device that trains.

    Tiles of `residency` ``compressed`` and ``stream`` count as 0: their size is not known before.
    """
    if config.residency != ("ram" if device.type == "cpu" else "device"):
        return 0
    count, bands = count_tiles(config, stores, "train", "val"), len(info_of(config, stores).bands)
    return count * side * side * (bands + 1) // sharing(device)


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f}"


def release(device: torch.device) -> None:
    """Return unused memory of a device from torch's cache to the driver; nothing on a CPU."""
    gc.collect()
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def choose_batch_size(config: Config, engine: Engine, stores: Stores) -> tuple[Config, list[str]]:
    """Return settings with a number as batch size, and a remark on it."""
    given, remarks = config.batch_size, list[str]()
    if given == "auto":
        config, remarks = _fastest_batch(config, engine, stores)
    elif engine.captures and not config.resume and SIZES[0] <= given < LARGER:
        remarks = _gain_of_larger(given, config, engine, stores)
    release(engine.device)
    return config, remarks


@dataclass(frozen=True, slots=True)
class _Trial:
    """An untrained module, and what limits the size of its batches."""

    trainable: Trainable
    side: int  # of samples in pixels
    samples: int  # per epoch
    fits: int  # largest batch that fits into memory
    learns: int  # largest batch of which there are `STEPS_PER_EPOCH`

    @classmethod
    def of(cls, config: Config, engine: Engine, stores: Stores) -> Self:
        """Return the trial for the settings of a run."""
        trainable = make_trainable(config, info_of(config, stores), engine, stores)
        side, finest = largest_sides(config, stores)
        tiles = count_tiles(config, stores, "train")
        samples = tiles * min(config.crops_of(s, s.level or finest)[1] for s in config.all_stages)
        resident = tile_bytes(config, stores, finest, engine.device)
        fits = replace(estimate(trainable, config, engine, side), tiles=resident).largest_batch
        learns = samples // (STEPS_PER_EPOCH * this_rank()[1] * config.accumulate)
        return cls(trainable, side, samples, fits, learns)

    @property
    def sizes(self) -> list[int]:
        """Batch sizes to choose from, at least the smallest."""
        return [size for size in SIZES if size <= max(SIZES[0], min(self.fits, self.learns))]


def _fastest_batch(config: Config, engine: Engine, stores: Stores) -> tuple[Config, list[str]]:
    """Return settings with the fastest batch size, and how it was chosen."""
    trial = _Trial.of(config, engine, stores)
    side, fits = trial.side, trial.fits
    rates = measured_rates(trial.trainable, engine, config, side, trial.sizes)
    if not rates[max(rates)]:  # the last one did not fit
        del rates[max(rates)]
        fits = max(rates, default=0)
    # The smallest choice of all ranks fits on each of them.
    best = fastest(rates) if rates else 0
    chosen = -int(max_over_ranks([-best], engine.device)[0])
    if not chosen:
        raise UsageError(
            f"`batch_size` auto: a batch of {SIZES[0]} x {side} x {side} does not fit into the "
            f"memory of {engine.device}: use a smaller `crop` or a coarser `level`"
            + (", or `residency` ram" if config.residency == "device" else "")
        )
    tried = ", ".join(f"{size}: {rate:.1f}" for size, rate in rates.items())
    note = (
        f"batch size {chosen} is the fastest on this machine (images/s by size: {tried}); at most "
        f"{fits} fit into memory, and {trial.learns} give {STEPS_PER_EPOCH} steps per epoch of "
        f"{trial.samples} samples"
    )
    return replace(config, batch_size=chosen), [note]


def _gain_of_larger(given: int, config: Config, engine: Engine, stores: Stores) -> list[str]:
    """Return a remark if `LARGER` batches, which recorded steps need, are clearly faster."""
    trial = _Trial.of(config, engine, stores)
    if LARGER not in trial.sizes:
        return []
    engine = replace(engine, compile_mode="off")  # nothing is compiled for a remark
    rates = measured_rates(trial.trainable, engine, config, trial.side, [given, LARGER])
    gain = rates.get(LARGER, 0.0) / (rates.get(given) or math.inf)
    more = f"`batch_size` {LARGER} trains {gain:.1f} times as many images per second as {given}"
    return [f"{more}, in fewer steps per epoch"] * (gain > 1 + 10 * _TIE)


def measured_rates(
    trainable: Trainable, engine: Engine, config: Config, side: int, sizes: Sequence[int]
) -> dict[int, float]:
    """Return the images per second of steps by batch size, up to where the rate falls.

    The last one is 0 if that size does not fit into memory. The module's weights stay as they are.
    """
    config = replace(config, lr=0.0, weight_decay=0.0)
    rates: dict[int, float] = {}
    untimed, size = WARM_UP + 1 if engine.captures else 1, 0
    bands, classes = trainable.prep.normalize.centre.numel(), trainable.prep.target.targets
    try:
        state = StepState.of(trainable.train(), engine, config)
        for size in sizes:
            if rates and rates[max(rates)] < _GIVE_UP * max(rates.values()):
                break
            step = CapturedStep(lambda _: None) if engine.captures else train_step
            batch = _noise(size, side, bands, has_classes=classes == "classes").to(engine.device)
            take, wait = partial(step, trainable, [batch], state), partial(wait_for, engine.device)
            rates[size] = size / StepTimer(untimed, _REPEATS).measure(take, wait)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        rates[size] = 0.0
    return rates


def fastest(rates: dict[int, float]) -> int:
    """Return the size with the highest rate; of about equal rates the largest size."""
    return max(size for size, rate in rates.items() if rate >= (1 - _TIE) * max(rates.values()))


def _noise(count: int, side: int, bands: int, *, has_classes: bool) -> Batch:
    """Return a batch of random pixels and labels."""
    random = torch.Generator().manual_seed(count)
    shape = (count, side, side)
    image = torch.randint(1, 256, (*shape, bands), dtype=torch.uint8, generator=random)
    speed = torch.randint(0, 255, shape, dtype=torch.uint8, generator=random)
    number = torch.arange(count)
    parts = image.permute(0, 3, 1, 2), speed, number, torch.zeros(count, 3).int(), number
    return Batch(*parts, has_classes=has_classes)
