"""What fits into memory, and which batch is fastest: asked before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from geoprep.store import Store
from loaders import PAD_TO, Folds, StreamTiles, select, this_rank
from training.config import Config
from training.data import facts_of
from training.distributed import add_up
from training.engine import memory as memoryplan
from training.engine.batchsize import CANDIDATES, StepTimer, find_batch_size
from training.engine.memory import MemoryPlan
from training.engine.native import Engine
from training.optim import make_optimizer
from training.run import Run, make_trainable
from training.stages import Plan, Stage


def plan_memory(run: Run) -> MemoryPlan:
    """Return what the stage that needs most will need.

    Parameters
    ----------
    run
        With the tiles of its first stage loaded.

    Raises
    ------
    UsageError
        It does not fit; a batch size that would is named.
    """
    loaded = run.data.tiles.side
    plans = []
    for stage in run.plan.stages[run.stage :]:
        level, side = _sides(stage, run.stores[0])
        plans.append(_plan(run, side, level, loaded=level == loaded))
    for planned in plans:
        memoryplan.check(planned)
    return max(plans, key=lambda planned: planned.total)


def _plan(run: Run, side: int, level: int, *, loaded: bool) -> MemoryPlan:
    config = run.config
    assert isinstance(config.sampling.batch_size, int)  # "auto" has become a number by now
    trainable = run.trainable.train()
    return memoryplan.plan(
        trainable.network,
        batch_size=config.sampling.batch_size,
        crop=side,
        bands=len(run.facts.bands),
        optimizer=config.optim.optimizer,
        dtype=run.engine.dtype,
        tiles_bytes=_tiles_bytes(run, level),
        loaded=loaded,
        ema=run.ema is not None,
    )


def _tiles_bytes(run: Run, level: int) -> int:
    """Return the bytes of all tiles of a level, where they are on the device that computes."""
    data = run.data
    on_device = run.engine.device == torch.device("cpu") or run.config.data.residency == "device"
    if not on_device:
        return 0
    if isinstance(data.tiles, StreamTiles):
        return data.tiles.ram_limit
    tiles = len(data.tiles) + (0 if data.validation_tiles is None else len(data.validation_tiles))
    return tiles * level * level * (len(run.facts.bands) + 1)


def _sides(stage: Stage, store: Store) -> tuple[int, int]:
    """Return the side of a stage's tiles, and of what goes through the network."""
    level = stage.level or store.meta.levels[0]
    side = min(stage.crop or level, level)
    return level, side + -side % PAD_TO


def with_batch_size(
    config: Config, engine: Engine, stores: Sequence[Store]
) -> tuple[Config, str | None]:
    """Return settings whose batch size is a number, and where it was to be found, what was tried.

    Parameters
    ----------
    config, engine, stores
        Of the run; ``batch_size`` may be ``auto``. All ranks take what the first one measured.

    Raises
    ------
    UsageError
        Not even the smallest batch fits.
    """
    if config.sampling.batch_size != "auto":
        return config, None
    facts = facts_of(config, stores)
    side = max(_sides(stage, stores[0])[1] for stage in Plan.of(config).stages)
    trainable, optim = make_trainable(config, facts, engine, stores), config.optim
    planned = memoryplan.plan(
        trainable.network.train(),
        batch_size=CANDIDATES[0],
        crop=side,
        bands=len(facts.bands),
        optimizer=optim.optimizer,
        dtype=engine.dtype,
        ema=bool(optim.ema),
    )
    maker = make_optimizer(optim.optimizer, lr=0.0)
    timer = StepTimer(trainable, engine, maker, crop=side, bands=len(facts.bands))
    most = max(CANDIDATES[0], _samples(config, stores) // this_rank()[1])
    candidates = [size for size in CANDIDATES if size <= most]
    size, trials = find_batch_size(planned, timer, candidates)
    chosen = int(add_up([0.0 if this_rank()[0] else float(size)], engine.device)[0])
    tried = ", ".join(f"{t.batch_size}: {t.rate:.1f}" for t in trials)
    said = f"batch size {chosen} is the fastest here (images/s by size: {tried})"
    return replace(config, sampling=replace(config.sampling, batch_size=chosen)), said


def _samples(config: Config, stores: Sequence[Store]) -> int:
    """Return the samples of an epoch."""
    data = config.data
    cut = None if data.folds is None else Folds(data.folds, data.fold)
    tiles = sum(len(select(store, "train", cut).tiles) for store in stores)
    return tiles * config.sampling.crops_per_tile
