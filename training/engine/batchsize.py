"""The batch size that trains fastest on this machine: measured, since on CPUs smaller often is."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from geoprep.store import Store
from loaders import Batch, select, this_rank
from training.config import Config
from training.data import facts_of, folds_of, windows_per_tile
from training.distributed import largest
from training.engine.memory import estimate, stage_side
from training.engine.native import Engine
from training.module import Trainable
from training.optim import make_optimizer
from training.run import make_trainable
from training.step import Stepper

SIZES = (2, 4, 8, 16, 32, 64, 128)
"""What to choose from. From two: BatchNorm needs something to average over."""

STEPS_PER_EPOCH = 16
"""At least so many: larger batches are faster by per cents, and learning goes by steps."""

_TIE = 0.02
"""Rates this close are noise; of two alike the larger batch has the better statistics."""

_GIVE_UP = 0.9
"""A size below this share of the best rate ends the search: larger ones only get slower."""


def choose_batch_size(
    config: Config, engine: Engine, stores: Sequence[Store]
) -> tuple[Config, str | None]:
    """Return settings whose batch size is a number, and where it was to be found, what was weighed.

    Parameters
    ----------
    config, engine, stores
        Of the run; ``batch_size`` may be ``auto``. All ranks take what the first one measured.
    """
    if config.sampling.batch_size != "auto":
        return config, None
    facts = facts_of(config, stores)
    trainable = make_trainable(config, facts, engine, stores)
    finest = stores[0].meta.levels[0]
    side = max(stage_side(stage.crop, stage.level or finest) for stage in config.stages)
    fits = estimate(trainable.to(engine.device), config, engine, side).largest_batch
    samples = _samples(config, stores)
    learns = samples // (STEPS_PER_EPOCH * this_rank()[1] * config.optim.accumulate)
    most = max(SIZES[0], min(fits, learns))
    rates = measure_rates(step_timer(trainable, engine, config, side), most)
    first = this_rank()[0] == 0
    chosen = int(largest([fastest(rates) if first else 0], engine.device)[0])
    tried = ", ".join(f"{size}: {rate:.1f}" for size, rate in rates.items())
    bound = (
        f"more than {fits} may not fit into memory"
        if fits < learns
        else f"more than {learns} would leave fewer than {STEPS_PER_EPOCH} steps per epoch"
    )
    said = (
        f"batch size {chosen} is the fastest here (images/s by size: {tried}); of {samples} "
        f"samples per epoch, {bound}"
    )
    return replace(config, sampling=replace(config.sampling, batch_size=chosen)), said


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
    plain = engine.uncompiled()
    maker = make_optimizer(config.optim.optimizer, lr=0.0)
    module, optimizer = plain.prepare(copy.deepcopy(trainable).train(), maker)
    stepper = Stepper(module, optimizer, plain, config.optim.clip)
    bands = len(trainable.prep.normalize.centre.flatten())

    def seconds(batch_size: int) -> float:
        batch = _noise(batch_size, side, bands)
        return min([_seconds(stepper, batch) for _ in range(repeats + 1)][1:])

    return seconds


def _seconds(stepper: Stepper, batch: Batch) -> float:
    begun = time.perf_counter()
    stepper([batch])
    if stepper.engine.device.type != "cpu":
        torch.accelerator.synchronize(stepper.engine.device)
    return time.perf_counter() - begun


def _noise(count: int, side: int, bands: int) -> Batch:
    """Return a batch without meaning."""
    random = torch.Generator().manual_seed(count)
    shape = (count, side, side)
    image = torch.randint(1, 256, (*shape, bands), dtype=torch.uint8, generator=random)
    speed = torch.randint(0, 255, shape, dtype=torch.uint8, generator=random)
    number = torch.arange(count)
    return Batch(image.permute(0, 3, 1, 2), speed, number, torch.zeros(count, 3).int(), number)


def _samples(config: Config, stores: Sequence[Store]) -> int:
    """Return the samples of an epoch, of the stage that has fewest."""
    cut = folds_of(config.data)
    tiles = sum(len(select(store, "train", cut).tiles) for store in stores)
    finest = stores[0].meta.levels[0]
    return tiles * min(windows_per_tile(config, s, s.level or finest) for s in config.stages)
