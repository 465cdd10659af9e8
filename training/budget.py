"""Whether all stages of a run fit into memory, asked before the first step."""

from __future__ import annotations

import torch

from loaders import StreamTiles
from loaders.device import PAD_TO
from training import memoryplan
from training.memoryplan import MemoryPlan
from training.run import Run


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
        level = stage.level or run.stores[0].meta.levels[0]
        side = min(stage.crop or level, level)
        plans.append(_plan(run, side + -side % PAD_TO, level, loaded=level == loaded))
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
