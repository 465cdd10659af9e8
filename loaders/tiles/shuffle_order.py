"""The order of samples of a streamed store: shuffled, although every tile is read once per epoch.

A *run* is a few neighbouring tiles of one shard, read together. Every epoch shuffles the runs, and
cuts their sequence into *lanes* of equal numbers of samples; neighbouring positions are taken from
the lanes in turn. A run arrives in its lane at a time, counted in tiles, and each of its samples is
due a random part of the *shuffle window* later: ``window + run`` tiles of memory are enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from loaders.batch import Ints
from loaders.sampling import Sampling

RUN_TILES = 8
"""Maximum number of tiles in a run: about 10 MB, a good size for one request to an object store."""

LEAST_LANE = 4
"""Tiles of memory per lane that the smallest window needs."""

# Random streams beyond those of `Sampling`.
_RUNS, _DELAY = 1 << 16, (1 << 16) + 1
_FRACTION = np.uint64(32)  # binary digits of a delay


class ShuffleWindow(NamedTuple):
    """Shape of the shuffle window, which with the seed determines the order of an epoch."""

    lanes: int  # parts of the sequence that are read in parallel
    window: int  # tiles that arrive in a lane while the samples of one tile are due
    run: int  # most tiles in a run

    @classmethod
    def fitting(cls, capacity: int, lanes: int, tiles: int) -> Self:
        """Return the shape for so many tiles in memory; half of them are the window.

        A window as large as a lane is a plain shuffle, and large enough.
        """
        lane = capacity // lanes
        run = min(max(1, lane // 16), RUN_TILES)
        return cls(lanes, min(lane // 2, -(-tiles // lanes) + 1), run)

    @property
    def lane_tiles(self) -> int:
        """Tiles of memory that a lane needs."""
        return self.window + self.run


def cut_runs(shard: Ints, most: int) -> Ints:
    """Return the run of each tile, ascending, of tiles by shard: nearly equal parts of a shard."""
    _, first, of, count = np.unique(
        shard, return_index=True, return_inverse=True, return_counts=True
    )
    runs = -(-count // most)
    within = (np.arange(len(shard)) - first[of]) * runs[of] // count[of]
    return (np.cumsum(runs) - runs)[of] + within


@dataclass(frozen=True, kw_only=True)
class StreamSampling(Sampling):
    """The samples of `Sampling`, in an order that needs only a part of the tiles at a time."""

    shard: Ints  # (tile,), ascending
    shape: ShuffleWindow

    @cached_property
    def runs(self) -> Ints:
        """int64 (tile,), the run of each tile."""
        return cut_runs(self.shard, self.shape.run)

    @property
    def interleaved(self) -> bool:
        """Whether ranks take every n-th position of a step, each from its own lanes."""
        return self.shuffle

    def identity(self) -> dict[str, Any]:
        """Return all settings that the samples of an epoch depend on, as plain values."""
        settings = super().identity()
        return settings | {"shuffle": "window"} | self.shape._asdict() if self.shuffle else settings

    def like(self, identity: dict[str, Any]) -> Self:
        """Return the same samples in the order of the shuffle window of a saved state."""
        if not self.shuffle or identity.get("shuffle") != "window":
            return self
        return replace(
            self, shape=ShuffleWindow(*(identity[name] for name in ShuffleWindow._fields))
        )

    def lane_of(self, positions: Ints) -> Ints:
        """Return the lane of every position of an epoch."""
        return positions % self.shape.lanes if self.shuffle else np.zeros_like(positions)

    def sequence(self, epoch: int) -> Ints:
        """Return the order of arrival of tiles, int64 (tile,): numbers with gaps."""
        tile = np.arange(self.tiles, dtype=np.int64)
        if not self.shuffle:
            return tile
        count = int(self.runs[-1]) + 1
        rank = np.empty(count, np.int64)
        bits = self._bits(epoch, _RUNS, np.arange(count, dtype=np.int64))
        rank[np.argsort(bits, kind="stable")] = np.arange(count)
        return rank[self.runs] * self.tiles + tile

    def order(self, epoch: int) -> Ints:
        """Return the sample at every position of an epoch, int64 (len(self),)."""
        samples = np.arange(len(self), dtype=np.int64)
        if not self.shuffle:
            return samples
        tile = self.tile_of(epoch, samples)
        arriving = np.argsort(self.sequence(epoch)[tile], kind="stable")
        # Lane l holds the positions l, l + lanes, l + 2 lanes, ...
        lanes = np.arange(self.shape.lanes)
        sizes = (len(self) - lanes + self.shape.lanes - 1) // self.shape.lanes
        lane = np.repeat(lanes, sizes)
        bits = self._bits(epoch, _DELAY, arriving) >> _FRACTION
        delay = (bits * np.uint64(self.shape.window)).astype(np.int64)
        arrival = _arrivals(lane, tile[arriving], self.runs[tile[arriving]], self.shape.window)
        due = (arrival << np.int64(_FRACTION)) + delay
        within = np.arange(len(self)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        order = np.empty_like(samples)
        order[lane + self.shape.lanes * within] = arriving[np.lexsort((due, lane))]
        return order


def _changes(*columns: Ints) -> NDArray[np.bool_]:
    """Return where any column differs from the previous row; True for the first row."""
    changed = np.ones(len(columns[0]), np.bool_)
    changed[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return changed


def _arrivals(lane: Ints, tile: Ints, run: Ints, window: int) -> Ints:
    """Return the number of tiles of its lane that arrived before the run of each sample.

    Samples are ordered by lane, and within a lane as their tiles arrive. In a lane that fits
    into the window, everything arrives at once.
    """
    place = np.cumsum(_changes(lane, tile)) - 1  # counted over all lanes
    first = np.maximum.accumulate(np.where(_changes(lane), place, 0))
    arrival = np.maximum.accumulate(np.where(_changes(lane, run), place, 0)) - first
    tiles = np.bincount(lane[_changes(lane, tile)], minlength=int(lane[-1]) + 1)
    return np.where(tiles[lane] <= window, 0, arrival)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Order and destination of the reads of tiles, for some samples in their order.

    A *visit* is the time of one tile in memory. The tile of visit ``k`` of a lane is in slot
    ``k % slots`` of the lane, and may be read when the previous visit of that slot is finished.
    """

    visit: Ints  # (sample,), the visit that each sample is cut from
    tile: Ints  # (visit,)
    slot: Ints  # (visit,)
    before: Ints  # (visit,), the visit that must be finished first; -1 for none
    reads: Ints  # (read, 2), first visit and end, in the order of need


def plan_reads(
    sampling: StreamSampling, epoch: int, positions: Ints, samples: Ints, slots: int
) -> ReadPlan:
    """Plan the reads for ascending positions of an epoch; memory has ``slots`` tiles per lane."""
    _, lane = np.unique(sampling.lane_of(positions), return_inverse=True)
    tile = sampling.tile_of(epoch, samples)
    sequence = sampling.sequence(epoch)
    span = int(sequence.max()) + 1
    _, need, visit = np.unique(lane * span + sequence[tile], return_index=True, return_inverse=True)
    lane, tile = lane[need], tile[need]
    number = np.arange(len(tile))
    within = number - np.searchsorted(lane, lane)
    slot = lane * slots + within % slots
    before = np.where(within >= slots, number - slots, -1)
    cut = _changes(lane, sampling.runs[tile], slot - number)
    first = np.flatnonzero(cut)
    reads = np.stack([first, np.append(first[1:], len(tile))], axis=1)
    reads = reads[np.argsort(np.minimum.reduceat(need, first), kind="stable")]
    return ReadPlan(visit, tile, slot, before, reads)
