"""The loader: batches of uint8 tiles or crops, prefetched, sharded over ranks and resumable.

What a batch holds depends on (seed, epoch, position) alone, see :mod:`loaders.sampling`. A batch is
filled in a worker thread: the sampling says which crops it has, the pool gives a buffer, and the
tiles copy the crops into it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from geoprep.cpus import usable_cpus
from geoprep.errors import UsageError
from loaders.buffers import Batch, BufferPool
from loaders.prefetch import Prefetcher
from loaders.road_sampling import WeightRule, tile_weights, tiles_with_road
from loaders.sampling import Augment, Sampling, Schedule, Step, StepCrops
from loaders.shared import this_rank
from loaders.tiles import CropReader, Tiles

MAX_THREADS = 4
"""Maximum of the default number of threads: more of them only wait for memory."""

STATE_VERSION = 1


@dataclass
class _Place:
    """Epoch, positions of it that all ranks have passed, and where the next iteration starts."""

    epoch: int = 0
    done: int = 0
    resume: int = 0


class BatchLoader:
    """Iterates over batches of tiles or crops, one epoch after another.

    Iterating again starts the epoch again; a finished epoch is followed by the next. After
    `load_state_dict` the first iteration resumes where the state was taken, in mid-epoch, on any
    number of ranks. A batch is valid for as long as any part of it is referenced: only then is its
    buffer filled again. A loader can be pickled and copied, with its position.

    Parameters
    ----------
    tiles
        `RamTiles` in memory, `DeviceTiles` on a device, or `StreamTiles` in a store larger than
        memory: the loop is the same.
    batch_size
        Samples per rank and batch.
    crop
        Side of random square crops in pixels; None for whole tiles.
    augment
        ``d4`` for the eight symmetries of the square, ``flips`` for four, None for none.
    crops_per_tile
        Samples per tile and epoch.
    shuffle
        True for training: a new order every epoch, and equal steps in every rank. False for
        evaluation: every tile exactly once, in order, and some ranks may take one step less.
    drop_last
        Leave out an incomplete last step of all ranks. None: as ``shuffle``. Otherwise the last
        step is split evenly over the ranks.
    seed
        Random seed; with epoch and position it determines everything that is random.
    rank, world_size
        Rank of this process and number of ranks; None for those of torch.distributed.
    threads
        Worker threads that fill batches; None for one per processor, at most `MAX_THREADS`.
    prefetch
        Batches filled in advance; None for as many as threads.
    min_road
        Minimum share of road in a sample, 0 to 1: crops are drawn up to eight times, and tiles with
        too little road are left out, see `drawn_tiles`. Training only.
    weights
        Relative frequency of tiles: ``road``, ``speed``, or one number per tile; see
        :func:`loaders.road_sampling.tile_weights`. Training only.
    pin_memory
        Page-locked batches, for asynchronous copies. None: if there is an accelerator.

    Raises
    ------
    UsageError
        The arguments do not fit together, or do not fit the tiles.
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
        self.threads = min(MAX_THREADS, usable_cpus()) if threads is None else threads
        self.prefetch = self.threads if prefetch is None else prefetch
        if self.threads < 1 or self.prefetch < 0:
            raise UsageError(
                f"threads={threads}, prefetch={prefetch}: use at least 1 thread, and a prefetch of "
                "at least 0"
            )
        if not shuffle and (min_road > 0 or weights is not None):
            raise UsageError("shuffle=False sees every tile once: leave out min_road and weights")
        chosen, roads = tiles_with_road(tiles, min_road, crop)
        if weights is not None:
            weights = tile_weights(weights, tiles, chosen)
        self.tiles = tiles
        self.sampling = tiles.sampling(
            crop=crop,
            augment=augment,
            crops_per_tile=crops_per_tile,
            seed=seed,
            shuffle=shuffle,
            chosen=chosen,
            weights=weights,
            min_road=min_road,
            roads=roads,
        )
        this, ranks = this_rank()
        self.schedule = Schedule(
            samples=len(self.sampling),
            batch_size=batch_size,
            rank=this if rank is None else rank,
            world_size=ranks if world_size is None else world_size,
            drop_last=shuffle if drop_last is None else drop_last,
            equal=shuffle,
            interleaved=self.sampling.interleaved,
        )
        self._pinned = torch.accelerator.is_available() if pin_memory is None else pin_memory
        self._place = _Place()
        self._pool = self._make_pool()
        self._reader = self._make_reader(self.sampling)
        if 2 * self.drawn_tiles < len(tiles):
            warnings.warn(
                f"min_road={min_road:g} leaves {self.drawn_tiles} of {len(tiles)} tiles to draw "
                f"from, {self.samples} samples per epoch: use a smaller value, or weights='road'",
                UserWarning,
                stacklevel=2,
            )

    def _make_pool(self) -> BufferPool:
        side, bands = self.sampling.sample_side, len(self.tiles.bands)
        # In work or ready, including the one the loop gets next: prefetch + 1. And the loop's own.
        spare = self.prefetch + 2
        size, device = self.schedule.batch_size, self.tiles.device
        return BufferPool(size, side, bands, spare, pinned=self._pinned, device=device)

    def _make_reader(self, sampling: Sampling) -> CropReader:
        return self.tiles.reader(sampling, self.schedule.world_size, self._pool)

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch."""
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
        """The epoch of the running iteration, or of the next."""
        return self._place.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; the current one keeps its position if a state was loaded."""
        if epoch != self._place.epoch:
            self._place = _Place(epoch)

    def identity(self) -> dict[str, Any]:
        """Return all settings that the samples of an epoch depend on, as plain values."""
        return {"tiles": self.tiles.fingerprint} | self.sampling.identity()

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch returned, as a few plain values.

        Prefetched batches do not count. The state is that of all ranks.
        """
        return {
            "version": STATE_VERSION,
            "epoch": self._place.epoch,
            "position": self._place.done,
            "sampling": self.identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state, with this loader's own batch size, ranks and memory.

        Parameters
        ----------
        state
            Result of `state_dict`.

        Raises
        ------
        UsageError
            The state belongs to other tiles, another seed or another sampling, and would continue
            with other samples; or it is damaged, or of another version.
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
                f"the loader state belongs to other samples ({what}): create the loader with the "
                "arguments and tiles of the saved one"
            )
        epoch: Any = state.get("epoch")
        position: Any = state.get("position")
        whole = isinstance(epoch, int) and isinstance(position, int)
        if not (whole and epoch >= 0 and 0 <= position <= self.samples):
            raise UsageError(
                f"the loader state is damaged: position {position!r} of epoch {epoch!r}, which has "
                f"{self.samples} samples. Resume from another checkpoint"
            )
        if sampling is not self.sampling:
            self._reader, self.sampling = self._make_reader(sampling), sampling
        self._place = _Place(epoch, position, position)

    def __iter__(self) -> Iterator[Batch]:
        steps = list(self.schedule.steps(self._place.resume))
        crops = StepCrops(self.sampling, self._place.epoch, steps)
        pool, reader = self._pool, self._reader
        side = reader.announce(crops) if steps else None

        def fill(step: int) -> Batch:
            rows = crops(step)
            batch = pool.batch(rows)
            reader.copy(rows, batch.image.permute(0, 2, 3, 1), batch.speed)
            return batch

        numbers = range(len(steps))
        batches: Iterator[Batch]
        if reader.asynchronous:
            batches = map(fill, numbers)
        else:
            batches = Prefetcher(
                fill, numbers, threads=self.threads, prefetch=self.prefetch, side=side
            )
        return _Epoch(self._place, batches, steps)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_place": _Place(**vars(self._place))}
        del state["_pool"], state["_reader"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pool = self._make_pool()
        self._reader = self._make_reader(self.sampling)

    def __repr__(self) -> str:
        schedule = self.schedule
        drawn = {k: v for k, v in self.sampling.identity().items() if v not in (None, 0.0)}
        shown = ", ".join(f"{name}={value!r}" for name, value in drawn.items() if name != "samples")
        return (
            f"BatchLoader({self.tiles!r}, batch_size={schedule.batch_size}, {shown}, rank "
            f"{schedule.rank} of {schedule.world_size}: {len(self)} batches of {self.samples} "
            f"samples from {self.drawn_tiles} tiles, at position {self._place.done} of epoch "
            f"{self.epoch})"
        )


class _Epoch(Iterator[Batch]):
    """The batches of an epoch, or of the rest of it.

    It is not a generator: one that is left early ends in a finaliser, where Ctrl-C is lost.

    Parameters
    ----------
    place
        Position of the loader; updated.
    batches
        One batch per step.
    steps
        The steps.
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
