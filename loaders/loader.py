"""The loader: batches of uint8 tiles or crops, prefetched, sharded over ranks and resumable.

The content of a batch depends on (seed, epoch, position) alone, see :mod:`loaders.sampling`.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from geoprep.cpus import usable_cpus as usable_cpus  # a public name of loaders
from geoprep.errors import UsageError
from loaders.batch import Batch, BufferPool, Crops
from loaders.memory import this_rank
from loaders.prefetch import Prefetcher
from loaders.road_sampling import WeightRule, tile_weights, tiles_with_enough
from loaders.sampling import STATE_VERSION, Augment, Sampling, Schedule, Step, StepCrops
from loaders.tiles.base import CropReader, Tiles

MAX_THREADS = 4
"""Maximum of the default number of threads: more of them only wait for memory."""


@dataclass
class _Place:
    """Position of an iteration: its epoch, samples that all ranks have passed, and its start."""

    epoch: int = 0
    done: int = 0
    resume: int = 0

    def next_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.epoch, self.done, self.resume = self.epoch + 1, 0, 0


class BatchLoader:
    """Iterates over batches of tiles or crops, one epoch after another.

    The last batch ends an epoch; the next iteration is the next epoch. Iterating again before the
    last batch starts the same epoch again. `epoch` and `state_dict` follow the iteration that began
    last. After `load_state_dict`, the first iteration resumes where the state was saved, in
    mid-epoch, on any number of ranks. A loader that was pickled or copied resumes in the same way.
    A batch is valid for as long as any part of it is referenced: only then is its buffer filled
    again.

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
        Rank of this process and number of ranks; None for those of torch.distributed when an
        iteration begins, so a loader may be created before the process group.
    threads
        Worker threads that fill batches; 0: the loop fills each batch when it asks for it, from
        `RamTiles` of pixels only. None: one per processor, at most `MAX_THREADS`.
    prefetch
        Batches filled in advance; None for as many as threads.
    min_road
        Minimum share of road in a sample, 0 to 1: crops are drawn up to eight times, and tiles with
        too little road are left out, see `drawn_tiles`. Training only.
    min_share
        The same for classes: minimum share by the name of the class, such as ``{"water": 0.1}``. A
        sample has enough of every class that is named.
    weights
        Relative frequency of tiles: ``road`` or ``speed`` for labels of speeds, ``classes``, or one
        number per tile; see :func:`loaders.road_sampling.tile_weights`. Training only.
    pin_memory
        Page-locked batches, for asynchronous copies. None: if there is an accelerator.

    Raises
    ------
    UsageError
        The arguments do not fit together, or do not fit the tiles.
    """

    batch_sampler = None
    """Lightning looks for it next to `sampler`."""

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
        min_share: Mapping[str, float] | None = None,
        weights: WeightRule | Sequence[float] | NDArray[np.float64] | None = None,
        pin_memory: bool | None = None,
    ) -> None:
        fewest = 0 if tiles.immediate else 1
        if (threads is not None and threads < fewest) or (prefetch is not None and prefetch < 0):
            raise UsageError(
                f"threads={threads}, prefetch={prefetch}: use at least {fewest} threads for these "
                "tiles, and a prefetch of at least 0"
            )
        if not shuffle and (min_road > 0 or min_share or weights is not None):
            raise UsageError(
                "shuffle=False sees every tile once: leave out min_road, min_share and weights"
            )
        chosen, least = tiles_with_enough(tiles, min_road, min_share or {}, crop)
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
            min_share=min_share,
            least=least,
        )
        self._rank, self._world_size = rank, world_size
        this, ranks = self._ranks()
        self._schedule = Schedule(
            samples=len(self.sampling),
            batch_size=batch_size,
            rank=this,
            world_size=ranks,
            drop_last=shuffle if drop_last is None else drop_last,
            equal=shuffle,
            interleaved=self.sampling.interleaved,
        )
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        self._pinned = accelerator is not None if pin_memory is None else pin_memory
        self._place = _Place()
        self.threads: int = min(MAX_THREADS, usable_cpus()) if threads is None else threads
        self.prefetch = self.threads if prefetch is None else prefetch
        self._pool = self._make_pool()
        self._reader = self._make_reader(self.sampling)
        if 2 * self.drawn_tiles < len(tiles):
            rule, other = ("min_share", "classes") if min_share else ("min_road", "road")
            warnings.warn(
                f"{rule} leaves {self.drawn_tiles} of {len(tiles)} tiles to draw from, "
                f"{self.samples} samples per epoch: use a smaller value, or weights={other!r}",
                UserWarning,
                stacklevel=2,
            )

    def _ranks(self) -> tuple[int, int]:
        """Return rank and world size: as given, else those of torch.distributed at present."""
        this, ranks = this_rank()
        return (
            this if self._rank is None else self._rank,
            ranks if self._world_size is None else self._world_size,
        )

    @property
    def schedule(self) -> Schedule:
        """Split of an epoch into the steps of this rank."""
        rank, ranks = self._ranks()
        if (rank, ranks) != (self._schedule.rank, self._schedule.world_size):
            self._schedule = replace(self._schedule, rank=rank, world_size=ranks)
            self._reader = self._make_reader(self.sampling)
        return self._schedule

    @property
    def sampler(self) -> BatchLoader:
        """The loader itself: Lightning and accelerate call `set_epoch` of a loader's sampler."""
        return self

    def _make_pool(self) -> BufferPool:
        tiles = self.tiles
        return BufferPool(
            self._schedule.batch_size,
            self.sampling.sample_side,
            len(tiles.bands),
            # Batches in work or ready: prefetch + 1. And the batch that the loop holds.
            spare=self.prefetch + 2,
            pinned=self._pinned,
            device=tiles.device if tiles.asynchronous else None,
            has_classes=tiles.has_classes,
        )

    def _make_reader(self, sampling: Sampling) -> CropReader:
        return self.tiles.reader(sampling, self._schedule.world_size, self._pool)

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch."""
        return len(self.schedule)

    @property
    def samples(self) -> int:
        """Samples in an epoch of all ranks, before ``drop_last``."""
        return self._schedule.samples

    @property
    def drawn_tiles(self) -> int:
        """Number of tiles that samples are drawn from: those with enough for a minimum share."""
        return self.sampling.drawn_tiles

    @property
    def epoch(self) -> int:
        """The epoch of the running iteration, or of the next once its last batch was returned."""
        return self._place.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; the current one keeps its position if a state was loaded."""
        if epoch != self._place.epoch:
            self._place = _Place(epoch)

    def identity(self) -> dict[str, Any]:
        """Return all settings that the samples of an epoch depend on, as plain values."""
        return {"tiles": self.tiles.fingerprint} | self.sampling.identity()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks after the last batch returned, as a few plain values.

        Prefetched batches do not count. After the last batch of an epoch it is the start of the
        next one.

        Returns
        -------
        dict
            ``version`` of this dictionary; ``epoch``, from 0; ``position``, the samples of it that
            all ranks have passed; ``sampling``, the settings that the samples of an epoch depend
            on, see `identity`.
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
        return _Epoch(self)

    def _begin(self) -> tuple[_Place, Sequence[Step], Iterator[Batch]]:
        """Return the place of a new iteration, its steps and their batches."""
        schedule, start = self.schedule, self._place
        place = _Place(start.epoch, start.resume, start.resume)
        crops = StepCrops(self.sampling, place.epoch, list(schedule.steps(place.done)))
        pool, reader = self._pool, self._reader
        if not crops.steps:  # a rank may have none
            place.next_epoch()
            return place, (), iter(())
        side = reader.announce(crops)

        def take(rows: Crops) -> list[Any]:
            # In the loop's thread: worker threads that look for a free buffer at the same time hide
            # some from each other, and allocate more of them.
            return [rows, *pool.batch(rows)]

        def fill(task: list[Any]) -> Batch:
            batch: Batch
            rows, batch, image, label = task
            task.clear()  # a thread that has not dropped it yet would keep the buffer
            reader.copy(rows, image, label)
            return batch

        tasks = map(take, crops)
        if not self.threads or reader.asynchronous:
            return place, crops.steps, map(fill, tasks)
        ahead = Prefetcher(fill, tasks, threads=self.threads, prefetch=self.prefetch, side=side)
        return place, crops.steps, ahead

    def __getstate__(self) -> dict[str, Any]:
        place = self._place
        state = self.__dict__ | {"_place": _Place(place.epoch, place.done, place.done)}
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
    """The batches of an epoch, or of the rest of it, which begins with its first batch.

    It is not a generator: one that is left early ends in a finaliser, where Ctrl-C is lost.
    """

    def __init__(self, loader: BatchLoader) -> None:
        self._loader, self._place = loader, _Place()
        self._batches: Iterator[Batch] | None = None
        self._steps: deque[Step] = deque()
        self._ranks: tuple[int, int] | None = None

    def __next__(self) -> Batch:
        if self._batches is None:
            loader = self._loader
            self._place, steps, self._batches = loader._begin()
            self._steps.extend(steps)
            self._ranks = loader._ranks()
            loader._place = self._place
        if self._ranks not in (None, now := self._loader._ranks()):
            raise UsageError(
                f"torch.distributed has changed since this iteration began as rank and world size "
                f"{self._ranks}, now {now}: initialise the process group before, or give `rank` "
                "and `world_size`"
            )
        batch = next(self._batches)
        self._place.done, self._place.resume = self._steps.popleft().done, 0
        # Many loops take len(loader) batches and never see StopIteration.
        if not self._steps:
            self._place.next_epoch()
        return batch

    def close(self) -> None:
        """End the iteration, and wait until its threads have ended."""
        ended, self._batches = self._batches, iter(())
        if isinstance(ended, Prefetcher):
            ended.close()
