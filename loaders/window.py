"""The order of a store that is read once an epoch: shuffled, and yet read from front to back.

A *run* is a few neighbouring tiles of one shard, read together. Every epoch puts the runs into a
new order, and cuts that sequence into *lanes* of equal numbers of samples; neighbouring positions
of an epoch come from the lanes in turn. In its lane a run arrives at a place, counted in tiles,
and each of its samples comes due a random part of a *window* later. So a tile is needed from its
arrival to one window after it and never again: ``window + run`` tiles hold all that a lane can
ask for, the tile that arrives takes the place of one that is over, and reading never pauses.

Which position holds which sample follows from (seed, epoch) and the shape of the window alone.
Ranks take positions in turn, so where their number divides that of the lanes, each reads tiles of
its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from loaders.sampling import Sampling

RUN_TILES = 8
"""Tiles in a run, at most: some 10 MB, what one request to an object store should be worth."""

LEAST_LANE = 4
"""Tiles of memory that the smallest window needs in each lane."""

# Streams of random bits beyond those that `Sampling` draws from.
_RUNS, _DELAY = 1 << 16, (1 << 16) + 1
_FRACTION = np.uint64(32)  # binary places of a delay


class WindowShape(NamedTuple):
    """What decides the order of an epoch, beside the seed.

    Attributes
    ----------
    lanes
        Parts of the sequence that are read side by side.
    window
        Tiles that arrive in a lane while the samples of one tile come due.
    run
        Tiles in a run, at most.
    """

    lanes: int
    window: int
    run: int

    @classmethod
    def fitting(cls, capacity: int, lanes: int, tiles: int) -> Self:
        """Return the shape for a memory; half of it is the window.

        Parameters
        ----------
        capacity
            Tiles that memory holds, at least ``LEAST_LANE * lanes``.
        lanes
            How many.
        tiles
            Tiles in all: a window that holds a lane is a plain shuffle, and need not be larger.
        """
        lane = capacity // lanes
        run = min(max(1, lane // 16), RUN_TILES)
        return cls(lanes, min(lane // 2, -(-tiles // lanes) + 1), run)

    @property
    def lane_tiles(self) -> int:
        """Tiles that a lane must be able to hold."""
        return self.window + self.run


def cut_runs(shard: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Cut the tiles of every shard into runs of nearly equal length.

    Parameters
    ----------
    shard
        int64 (tile,), which shard each tile is in, ascending.
    most
        Tiles in a run.

    Returns
    -------
    ndarray
        int64 (tile,), the run of each tile, ascending from 0.
    """
    _, first, of, count = np.unique(
        shard, return_index=True, return_inverse=True, return_counts=True
    )
    runs = -(-count // most)
    within = (np.arange(len(shard)) - first[of]) * runs[of] // count[of]
    return (np.cumsum(runs) - runs)[of] + within


@dataclass(frozen=True, kw_only=True)
class WindowSampling(Sampling):
    """The samples of `Sampling`, in an order that a window of the tiles suffices for.

    Attributes
    ----------
    shard
        int64 (tile,), which shard each tile is in, ascending.
    shape
        Of the window.
    """

    shard: NDArray[np.int64]
    shape: WindowShape

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """int64 (tile,), the run of each tile."""
        return cut_runs(self.shard, self.shape.run)

    @property
    def in_turn(self) -> bool:
        """Whether ranks take the positions of a step in turn: from lanes of their own."""
        return self.shuffle

    def identity(self) -> dict[str, Any]:
        """Return everything that decides which samples an epoch has, as plain values."""
        found = super().identity()
        return found | {"shuffle": "window"} | self.shape._asdict() if self.shuffle else found

    def like(self, identity: dict[str, Any]) -> Self:
        """Return the same samples in the order of a state's window."""
        if not self.shuffle or identity.get("shuffle") != "window":
            return self
        return replace(self, shape=WindowShape(*(identity[name] for name in WindowShape._fields)))

    def lane_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lane of every position of an epoch."""
        return positions % self.shape.lanes if self.shuffle else np.zeros_like(positions)

    def sequence(self, epoch: int) -> NDArray[np.int64]:
        """Return when tiles arrive, int64 (tile,): ascending numbers, not without gaps."""
        tile = np.arange(self.tiles, dtype=np.int64)
        if not self.shuffle:
            return tile
        count = int(self.runs[-1]) + 1
        rank = np.empty(count, np.int64)
        bits = self._bits(epoch, _RUNS, np.arange(count, dtype=np.int64))
        rank[np.argsort(bits, kind="stable")] = np.arange(count)
        return rank[self.runs] * self.tiles + tile

    def order(self, epoch: int) -> NDArray[np.int64]:
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


def _changes(*columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return where any column differs from the row before; the first row always does."""
    changed = np.ones(len(columns[0]), np.bool_)
    changed[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return changed


def _arrivals(
    lane: NDArray[np.int64], tile: NDArray[np.int64], run: NDArray[np.int64], window: int
) -> NDArray[np.int64]:
    """Return how many tiles of its lane came before the run of each sample.

    Samples are given by lane, and in it as their tiles arrive. In a lane that the window holds
    as a whole, everything arrives at once.
    """
    place = np.cumsum(_changes(lane, tile)) - 1  # counted over all lanes
    first = np.maximum.accumulate(np.where(_changes(lane), place, 0))
    arrival = np.maximum.accumulate(np.where(_changes(lane, run), place, 0)) - first
    tiles = np.bincount(lane[_changes(lane, tile)], minlength=int(lane[-1]) + 1)
    return np.where(tiles[lane] <= window, 0, arrival)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What to read in which order, and where to, for some samples in their order.

    A *visit* is the stay of one tile in memory; the tile of a lane's visit ``k`` lies in slot ``k
    % slots`` of the lane, and may be read when the visit there before it is over.

    Attributes
    ----------
    visit
        int64 (sample,), the visit that each sample is cut from.
    tile, slot
        int64 (visit,), which tile, and where in memory.
    before
        int64 (visit,), the visit that must be over first; -1 for none.
    reads
        int64 (read, 2), first visit and the one after the last: tiles of one run, neighbours in
        memory, in the order in which samples need them.
    """

    visit: NDArray[np.int64]
    tile: NDArray[np.int64]
    slot: NDArray[np.int64]
    before: NDArray[np.int64]
    reads: NDArray[np.int64]


def plan_reads(
    sampling: WindowSampling,
    epoch: int,
    positions: NDArray[np.int64],
    samples: NDArray[np.int64],
    slots: int,
) -> ReadPlan:
    """Plan the reading for a part of an epoch.

    Parameters
    ----------
    sampling
        What the epoch consists of.
    epoch
        Which.
    positions, samples
        int64 (n,), ascending positions of the epoch, and the sample at each.
    slots
        Tiles in memory for each lane, at least ``sampling.shape.lane_tiles``.
    """
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
