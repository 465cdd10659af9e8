"""The batch size ``auto``: the fastest of several, by measured steps on random pixels."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from geoprep.errors import UsageError
from geoprep.store import StoreReader
from loaders import Batch, select, this_rank
from training.cli import is_out_of_memory
from training.data import crops_of, folds_of, model_info
from training.engine import Engine, max_over_ranks
from training.loop import optimizer_step
from training.model import Trainable, make_trainable, prepare
from training.run.capacity import estimate, largest_sides, tile_bytes
from training.settings import Config

SIZES = (2, 4, 8, 16, 32, 64, 128)
"""Batch sizes to choose from; at least 2, since BatchNorm averages over samples."""

STEPS_PER_EPOCH = 16
"""Minimum steps per epoch: larger batches are a few per cent faster, but learn less per epoch."""

_REPEATS = 3
_TIE = 0.02
"""Rates that differ by less are equal; of equal rates the larger batch has better statistics."""

_GIVE_UP = 0.9
"""A rate below this share of the best ends the search: larger sizes are slower still."""


def release(device: torch.device) -> None:
    """Return unused memory of a device from torch's cache to the driver; nothing on a CPU."""
    gc.collect()
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def choose_batch_size(
    config: Config, engine: Engine, stores: Sequence[StoreReader]
) -> tuple[Config, list[str]]:
    """Return settings with a number as batch size, and remarks on how ``auto`` chose it."""
    if config.batch_size != "auto":
        return config, []
    trainable = make_trainable(config, model_info(config, stores), engine, stores)
    side, finest = largest_sides(config, stores)
    tiles = sum(len(select(store, "train", folds_of(config)).tiles) for store in stores)
    samples = tiles * min(crops_of(config, s, s.level or finest)[1] for s in config.plan)
    learns = samples // (STEPS_PER_EPOCH * this_rank()[1] * config.accumulate)
    resident = tile_bytes(config, stores, finest, engine.device)
    fits = replace(estimate(trainable, config, engine, side), tiles=resident).largest_batch
    rates = measured_rates(trainable, engine, config, side, max(SIZES[0], min(fits, learns)))
    del trainable
    release(engine.device)
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
    bound = (
        f"more than {fits} may not fit into memory"
        if fits < learns
        else f"more than {learns} would give fewer than {STEPS_PER_EPOCH} steps per epoch of "
        f"{samples} samples"
    )
    note = (
        f"batch size {chosen} is the fastest on this machine (images/s by size: {tried}); {bound}"
    )
    return replace(config, batch_size=chosen), [note]


def measured_rates(
    trainable: Trainable, engine: Engine, config: Config, side: int, most: int
) -> dict[int, float]:
    """Return the images per second of steps by batch size, up to where the rate falls.

    The last one is 0 if that size does not fit into memory. The module's weights stay as they are.
    """
    engine, scaler = replace(engine, compile_mode="off"), engine.grad_scaler()
    rates: dict[int, float] = {}
    size = SIZES[0]
    try:
        optimizer = prepare(trainable.train(), engine, replace(config, lr=0.0, weight_decay=0.0))
        for size in SIZES:
            if size > most or (rates and rates[max(rates)] < _GIVE_UP * max(rates.values())):
                break
            batch = _noise(size, side, trainable.prep.normalize.centre.numel())
            batch, times = batch.to(engine.device), []
            for _ in range(1 + _REPEATS):
                begun = time.perf_counter()
                given = (trainable, optimizer, engine, [batch])
                optimizer_step(*given, clip=config.clip, scaler=scaler)
                if engine.device.type != "cpu":
                    torch.accelerator.synchronize(engine.device)
                times.append(time.perf_counter() - begun)
            rates[size] = size / min(times[1:])
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        rates[size] = 0.0
    return rates


def fastest(rates: dict[int, float]) -> int:
    """Return the size with the highest rate; of about equal rates the largest size."""
    return max(size for size, rate in rates.items() if rate >= (1 - _TIE) * max(rates.values()))


def _noise(count: int, side: int, bands: int) -> Batch:
    """Return a batch of random pixels and labels."""
    random = torch.Generator().manual_seed(count)
    shape = (count, side, side)
    image = torch.randint(1, 256, (*shape, bands), dtype=torch.uint8, generator=random)
    speed = torch.randint(0, 255, shape, dtype=torch.uint8, generator=random)
    number = torch.arange(count)
    return Batch(image.permute(0, 3, 1, 2), speed, number, torch.zeros(count, 3).int(), number)
