"""Batches of uint8 tiles or crops: order, crops, symmetries, prefetch, resumable state.

Threads fill batches ahead, each batch as a whole by one of them, from arrays that all share.
What a batch holds depends on (seed, epoch, position) alone, see :mod:`loaders.sampling`.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray

from geoprep.errors import UsageError
from loaders.ahead import run_ahead
from loaders.batch import Batch, batch_of, block_bytes, put_windows
from loaders.epochs import EpochLoader
from loaders.gather import as_items, gather
from loaders.limits import usable_cpus
from loaders.ram import RamTiles
from loaders.ranks import this_rank
from loaders.resident import DeviceTiles
from loaders.ring import Ring
from loaders.roads import CELL, RoadCells, WeightRule, tile_weights
from loaders.sampling import Augment, Sampling, Windows
from loaders.schedule import Schedule, Step
from loaders.stream.tiles import StreamTiles

MAX_THREADS = 4
"""Threads by default, at most: more of them only wait for memory."""

_STEPS_DRAWN = 16
"""Steps whose windows are drawn at once."""


class BatchLoader(EpochLoader):
    """Iterates over batches of tiles or windows, one epoch after another.

    A batch is valid for as long as any part of it is held: its buffer is filled again only then.
    ``state_dict`` and ``load_state_dict`` continue in mid-epoch, on any number of ranks.

    Parameters
    ----------
    tiles
        In memory, already on a device, or in a store larger than memory: then this is a
        `StreamLoader`.
    batch_size
        Samples per rank and batch.
    crop
        Side of random square windows in pixels; None for whole tiles.
    augment
        ``d4`` for the eight symmetries of the square, ``flips`` for four, None.
    crops_per_tile
        Samples per tile and epoch.
    shuffle
        True for training: a new order every epoch, and equal steps in every rank. False for
        evaluation: every tile exactly once, in order, and some ranks may take a step less.
    drop_last
        Leave out what does not fill a step of all ranks. None: as ``shuffle``. Otherwise the
        last step is split evenly over the ranks.
    seed
        Decides, with epoch and position, everything that is random.
    rank, world_size
        Of this process; None asks torch.distributed where it is initialised.
    threads
        That fill batches; None for the processors there are, at most `MAX_THREADS`.
    prefetch
        Batches filled ahead; None for as many as threads.
    min_road
        Least share of road in a sample: windows are drawn up to eight times, and tiles that have
        too little road are left out. Training only.
    weights
        How often a tile is drawn: ``road``, ``speed``, or one figure a tile; see
        :func:`loaders.roads.tile_weights`. Training only.
    pin_memory
        Page-locked batches, for asynchronous copies. None: where there is an accelerator.
    residency
        ``ram``, or ``device``: copy the tiles to ``device`` and gather batches there. ``stream``
        is where `StreamTiles` are, which need not be told.
    device
        For ``residency="device"``.

    Raises
    ------
    UsageError
        The arguments do not fit together, or to the tiles.
    """

    def __new__(cls, tiles: object, *_: Any, **__: Any) -> Self:  # noqa: ANN401 - see __init__
        """Return a loader of the kind that the tiles need."""
        # As pathlib.Path does, so that the loop is the same wherever the tiles are.
        if cls is BatchLoader and isinstance(tiles, StreamTiles):
            from loaders.stream.feed import StreamLoader  # which is made from this module

            return super().__new__(StreamLoader)  # type: ignore[return-value]  # a subclass
        return super().__new__(cls)

    def __init__(
        self,
        tiles: RamTiles | DeviceTiles | StreamTiles,
        batch_size: int,
        *,
        crop: int | None = None,
        augment: Augment | None = None,
        crops_per_tile: int = 1,
        shuffle: bool = True,
        drop_last: bool | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | None = None,
        prefetch: int | None = None,
        min_road: float = 0.0,
        weights: WeightRule | Sequence[float] | NDArray[np.float64] | None = None,
        pin_memory: bool | None = None,
        residency: Literal["ram", "device", "stream"] = "ram",
        device: torch.device | str | None = None,
    ) -> None:
        # A StreamLoader's tiles have all that is asked of them here.
        self.tiles = _resident(cast(RamTiles | DeviceTiles, tiles), residency, device)
        self.threads = min(MAX_THREADS, usable_cpus()) if threads is None else threads
        self.prefetch = self.threads if prefetch is None else prefetch
        pinned = torch.accelerator.is_available() if pin_memory is None else pin_memory
        if self.threads < 1 or self.prefetch < 0:
            raise UsageError(f"threads={threads}, prefetch={prefetch}: at least 1, and at least 0")
        if not shuffle and (min_road > 0 or weights is not None):
            raise UsageError("shuffle=False sees every tile once: leave out min_road and weights")
        chosen, cells = _with_road(self.tiles, min_road, crop)
        self.sampling = Sampling(
            tiles=len(self.tiles),
            side=self.tiles.side,
            crop=crop,
            augment=augment,
            crops_per_tile=crops_per_tile,
            seed=seed,
            shuffle=shuffle,
            chosen=chosen,
            weights=None if weights is None else _weights(weights, self.tiles, chosen),
            min_road=min_road,
            roads=cells,
        )
        this, ranks = this_rank()
        super().__init__(
            Schedule(
                samples=len(self.sampling),
                batch_size=batch_size,
                rank=this if rank is None else rank,
                world_size=ranks if world_size is None else world_size,
                drop_last=shuffle if drop_last is None else drop_last,
                equal=shuffle,
            )
        )
        nbytes = block_bytes(batch_size, self.sampling.window, len(self.tiles.bands))
        # In work or waiting, with the one that the loop gets next: prefetch + 1. And what it has.
        self._ring = Ring(nbytes, self.prefetch + 2, pinned=pinned)

    def identity(self) -> dict[str, Any]:
        """Return everything that decides which samples an epoch has, as plain values."""
        s = self.sampling
        return {
            "tiles": self.tiles.fingerprint,
            "samples": len(s),
            "seed": s.seed,
            "crop": s.crop,
            "augment": s.augment,
            "crops_per_tile": s.crops_per_tile,
            "shuffle": s.shuffle,
            "min_road": s.min_road,
            "weights": None if s.weights is None else zlib.crc32(s.weights.tobytes()),
        }

    def batches(self, epoch: int, steps: Sequence[Step]) -> Generator[Batch, None, None]:
        """Yield the batch of every step of an epoch, filled ahead by threads."""
        windows = _Drawn(self.sampling, epoch, steps)
        each = range(len(steps))
        if isinstance(self.tiles, DeviceTiles):
            for i in each:
                yield self.tiles.gather(windows(i), self.sampling.window)
            return
        fill = _Fill(self.tiles, self._ring, self.sampling.window)
        yield from run_ahead(
            lambda i: fill(windows(i)), each, threads=self.threads, ahead=self.prefetch
        )


class _Drawn:
    """The windows of every step, drawn for a few steps at once.

    To draw those of a thousand samples takes little longer than those of ten, and between two
    batches, which have driven all else out of the caches, everything takes long.

    Parameters
    ----------
    sampling, epoch
        What to draw from.
    steps
        Of this epoch.
    """

    def __init__(self, sampling: Sampling, epoch: int, steps: Sequence[Step]) -> None:
        self._sampling, self._epoch, self._steps = sampling, epoch, steps
        self._order = sampling.order(epoch)
        self._last: tuple[int, Windows, list[int]] | None = None

    def __call__(self, i: int) -> Windows:
        """Return the windows of step number ``i``; any thread may ask."""
        part, within = divmod(i, _STEPS_DRAWN)
        last = self._last  # one look: another thread may put the next in its place
        if last is None or last[0] != part:
            last = self._last = self._draw(part)
        _, windows, bounds = last
        return windows.rows(bounds[within], bounds[within + 1])

    def _draw(self, part: int) -> tuple[int, Windows, list[int]]:
        steps = self._steps[part * _STEPS_DRAWN :][:_STEPS_DRAWN]
        samples = np.concatenate([self._order[step.first : step.last] for step in steps])
        bounds = list(accumulate((step.last - step.first for step in steps), initial=0))
        return part, self._sampling.windows(self._epoch, samples), bounds


class _Fill:
    """Fills a batch from tiles in memory.

    Parameters
    ----------
    tiles
        The tiles.
    ring
        Where buffers come from.
    side
        Side of the windows in pixels.
    """

    def __init__(self, tiles: RamTiles, ring: Ring, side: int) -> None:
        self._image = as_items(tiles.image)
        self._speed = tiles.speed
        self._bands = len(tiles.bands)
        self._ring = ring
        self._side = side

    def __call__(self, windows: Windows) -> Batch:
        batch = batch_of(self._ring.take(), len(windows), self._side, self._bands)
        image = batch.image.numpy().transpose(0, 2, 3, 1)
        gather(self._image, windows, as_items(image))
        gather(self._speed, windows, batch.speed.numpy())
        put_windows(batch, windows)
        return batch


def _resident(
    tiles: RamTiles | DeviceTiles, residency: str, device: torch.device | str | None
) -> RamTiles | DeviceTiles:
    """Return the tiles where they shall live."""
    if residency not in ("ram", "device"):
        raise UsageError(
            f"residency={residency!r} is not 'ram' or 'device'; a store larger than memory is "
            "read by StreamTiles.open(...)"
        )
    if residency == "ram" or isinstance(tiles, DeviceTiles):
        return tiles
    where = torch.accelerator.current_accelerator() if device is None else device
    if where is None:
        raise UsageError("residency='device' finds no accelerator: name one with device=")
    return DeviceTiles(tiles, where)


def _with_road(
    tiles: RamTiles | DeviceTiles, min_road: float, crop: int | None
) -> tuple[NDArray[np.int64] | None, RoadCells | None]:
    """Return the tiles that can yield windows with enough road, and where their roads are."""
    if min_road <= 0:
        return None, None
    if crop is None:
        cells, enough = None, tiles.road_fraction >= min_road
    elif crop < 2 * CELL:
        raise UsageError(f"min_road needs windows of at least {2 * CELL} pixels, not crop={crop}")
    else:
        cells = RoadCells.count(tiles)
        enough = cells.total() >= min_road * crop * crop
    if not enough.any():
        raise UsageError(f"no tile has enough road for min_road={min_road}: take a smaller one")
    return np.flatnonzero(enough), cells


def _weights(
    rule: WeightRule | Sequence[float] | NDArray[np.float64],
    tiles: RamTiles | DeviceTiles,
    chosen: NDArray[np.int64] | None,
) -> NDArray[np.float64]:
    weights = tile_weights(rule, tiles.road_fraction, tiles)
    if weights.shape != (len(tiles),):
        raise UsageError(f"weights have shape {weights.shape}; ({len(tiles)},) is needed")
    return weights if chosen is None else weights[chosen]
