"""Batches of uint8 tiles or crops: order, crops, symmetries, prefetch, resumable state.

What a batch holds depends on (seed, epoch, position) alone, see :mod:`loaders.sampling`; where the
tiles are, the tiles know: their `feed` gives the batches.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from geoprep.errors import UsageError
from loaders.batch import Batch, Request
from loaders.memory import usable_cpus
from loaders.roads import WeightRule, tile_weights, tiles_with_road
from loaders.sampling import Augment, Sampling, Schedule, Step
from loaders.shared import this_rank
from loaders.tiles import Tiles

MAX_THREADS = 4
"""Threads by default, at most: more of them only wait for memory."""

STATE_VERSION = 1


@dataclass
class _Place:
    """Epoch, positions of it that all ranks have passed, and where the next iteration starts."""

    epoch: int = 0
    done: int = 0
    resume: int = 0


class BatchLoader:
    """Iterates over batches of tiles or windows, one epoch after another.

    Iterating again starts the epoch again; an epoch that was exhausted is followed by the next.
    After `load_state_dict` the first iteration goes on where the state was taken, in mid-epoch, on
    any number of ranks. A batch is valid for as long as any part of it is held: its buffer is
    filled again only then. A loader can be pickled and copied, its place included.

    Parameters
    ----------
    tiles
        `RamTiles` in memory, `DeviceTiles` on a device, or `StreamTiles` in a store larger than
        memory: the loop is the same.
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
        too little road are left out, see `drawn_tiles`. Training only.
    weights
        How often a tile is drawn: ``road``, ``speed``, or one figure per tile; see
        :func:`loaders.roads.tile_weights`. Training only.
    pin_memory
        Page-locked batches, for asynchronous copies. None: where there is an accelerator.

    Raises
    ------
    UsageError
        The arguments do not fit together, or to the tiles.
    """

    def __init__(
        self,
        tiles: Tiles,
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
    ) -> None:
        threads = min(MAX_THREADS, usable_cpus()) if threads is None else threads
        prefetch = threads if prefetch is None else prefetch
        if threads < 1 or prefetch < 0:
            raise UsageError(f"threads={threads}, prefetch={prefetch}: at least 1, and at least 0")
        if not shuffle and (min_road > 0 or weights is not None):
            raise UsageError("shuffle=False sees every tile once: leave out min_road and weights")
        chosen, cells = tiles_with_road(tiles, min_road, crop)
        if weights is not None:
            weights = tile_weights(weights, tiles, chosen)
        sampling = tiles.sampling(
            crop=crop,
            augment=augment,
            crops_per_tile=crops_per_tile,
            seed=seed,
            shuffle=shuffle,
            chosen=chosen,
            weights=weights,
            min_road=min_road,
            roads=cells,
        )
        this, ranks = this_rank()
        schedule = Schedule(
            samples=len(sampling),
            batch_size=batch_size,
            rank=this if rank is None else rank,
            world_size=ranks if world_size is None else world_size,
            drop_last=shuffle if drop_last is None else drop_last,
            equal=shuffle,
            in_turn=sampling.in_turn,
        )
        pinned = torch.accelerator.is_available() if pin_memory is None else pin_memory
        self.tiles = tiles
        self.request = Request(sampling, schedule, len(tiles.bands), threads, prefetch, pinned)
        self.feed = tiles.feed(self.request)
        self._place = _Place()
        if 2 * self.drawn_tiles < len(tiles):
            warnings.warn(
                f"min_road={min_road:g} leaves {self.drawn_tiles} of {len(tiles)} tiles to draw "
                f"from, {self.samples} samples per epoch: take a smaller one, or weights='road'",
                UserWarning,
                stacklevel=2,
            )

    @property
    def sampling(self) -> Sampling:
        """What an epoch consists of; its ``window`` is the side of a sample in pixels."""
        return self.request.sampling

    @property
    def schedule(self) -> Schedule:
        """Which positions of an epoch this rank takes."""
        return self.request.schedule

    def __len__(self) -> int:
        """Return the batches of this rank in a whole epoch."""
        return len(self.schedule)

    @property
    def samples(self) -> int:
        """Samples in an epoch of all ranks, before ``drop_last``."""
        return self.schedule.samples

    @property
    def drawn_tiles(self) -> int:
        """Number of tiles that samples are drawn from: those with enough road for ``min_road``."""
        return self.sampling.drawn_tiles

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of, or that the running one is."""
        return self._place.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; the current one keeps its place if a state was loaded."""
        if epoch != self._place.epoch:
            self._place = _Place(epoch)

    def identity(self) -> dict[str, Any]:
        """Return everything that decides which samples an epoch has, as plain values."""
        return {"tiles": self.tiles.fingerprint} | self.sampling.identity()

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on after the batch last handed out: some plain values.

        Batches that were only filled ahead do not count. The state is that of all ranks.
        """
        return {
            "version": STATE_VERSION,
            "epoch": self._place.epoch,
            "position": self._place.done,
            "sampling": self.identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, with this loader's own batch size, ranks and memory.

        Raises
        ------
        UsageError
            The state is of other tiles, another seed or another sampling, and would go on with
            other samples; or it is no state of this version.
        """
        if state.get("version") != STATE_VERSION:
            raise UsageError(
                f"loader state version {state.get('version')!r} is not {STATE_VERSION}: it was "
                "saved by another version of this package"
            )
        theirs = state.get("sampling") or {}
        sampling = self.sampling.like(theirs)
        mine = self.identity() | sampling.identity()
        differs = [k for k in mine if mine[k] != theirs.get(k)]
        if differs:
            what = ", ".join(f"{k} was {theirs.get(k)!r}, is {mine[k]!r}" for k in differs)
            raise UsageError(
                f"the loader state is of other samples ({what}): make the loader as it was"
            )
        epoch: Any = state.get("epoch")
        position: Any = state.get("position")
        whole = isinstance(epoch, int) and isinstance(position, int)
        if not (whole and epoch >= 0 and 0 <= position <= self.samples):
            raise UsageError(
                f"the loader state is damaged: position {position!r} of epoch {epoch!r}, which has "
                f"{self.samples} samples. Go on from another checkpoint"
            )
        if sampling is not self.sampling:
            request = replace(self.request, sampling=sampling)
            self.feed, self.request = self.tiles.feed(request), request
        self._place = _Place(epoch, position, position)

    def __iter__(self) -> Iterator[Batch]:
        steps = list(self.schedule.steps(self._place.resume))
        return _Epoch(self._place, self.feed(self._place.epoch, steps), steps)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_place": _Place(**vars(self._place))}
        del state["feed"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.feed = self.tiles.feed(self.request)

    def __repr__(self) -> str:
        schedule = self.schedule
        drawn = {k: v for k, v in self.sampling.identity().items() if v not in (None, 0.0)}
        told = ", ".join(f"{name}={value!r}" for name, value in drawn.items() if name != "samples")
        return (
            f"BatchLoader({self.tiles!r}, batch_size={schedule.batch_size}, {told}, rank "
            f"{schedule.rank} of {schedule.world_size}: {len(self)} batches of {self.samples} "
            f"samples from {self.drawn_tiles} tiles, at position {self._place.done} of epoch "
            f"{self.epoch})"
        )


class _Epoch(Iterator[Batch]):
    """The batches of an epoch, or of what is left of it.

    No generator: one that is left early ends in a finaliser, where Ctrl-C is lost.

    Parameters
    ----------
    place
        Of the loader; moved along.
    batches
        One for every step.
    steps
        What they are.
    """

    def __init__(self, place: _Place, batches: Iterator[Batch], steps: Sequence[Step]) -> None:
        self._place = place
        self._batches = batches
        self._steps = iter(steps)
        self._epoch: int | None = place.epoch

    def __next__(self) -> Batch:
        try:
            batch = next(self._batches)
        except StopIteration:
            if self._place.epoch == self._epoch:
                place, self._epoch = self._place, None
                place.epoch, place.done, place.resume = place.epoch + 1, 0, 0
            raise
        self._place.done, self._place.resume = next(self._steps).done, 0
        return batch

    def close(self) -> None:
        """End the iteration, and wait until its threads have ended."""
        self._epoch = None
        getattr(self._batches, "close", lambda: None)()
