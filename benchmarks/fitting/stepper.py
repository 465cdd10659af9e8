"""The step of `training.fit` itself, on any rung of the ladder, and what it is fed with."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from benchmarks.fitting.rungs import Rung
from benchmarks.loading.throughput import close
from benchmarks.machine import cpu_seconds
from geoprep.store import Store
from loaders import Batch, BatchLoader, RamTiles, TileDataset
from training.config import Config
from training.engine.host import keep_memory
from training.engine.native import choose_engine
from training.module import Taken
from training.run import Run

LONG = 1 << 12
"""Windows per tile and epoch: no step is to wait for the start of one."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Some steps in a row.

    Attributes
    ----------
    seconds, waited
        Wall time, and the part of it that steps waited for their batches.
    cpu_seconds
        Processor time of this process, all threads.
    """

    steps: int
    seconds: float
    waited: float
    cpu_seconds: float


class Stepper:
    """A run of `training.fit` with its defaults, set up as a rung says.

    Parameters
    ----------
    rung
        How.
    store
        What it learns from.
    crop
        Side of its windows in pixels.
    batch_size
        Windows per batch.
    """

    def __init__(self, rung: Rung, store: str, crop: int, batch_size: int = 8) -> None:
        self.allocator = keep_memory() if rung.keep_memory else "as the system has it"
        engine = choose_engine(rung.engine, "cpu", rung.precision, rung.compile_mode)
        config = Config(batch_size=batch_size, crop=crop, crops_per_tile=LONG, quiet=True)
        self.run = Run(config, engine, (Store.open(store),), Path())
        if not rung.channels_last:
            network = self.run.trainable.network
            network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # as in training.engine.native
            network.register_forward_pre_hook(_contiguous)
        self.run.enter_stage()
        self.run.module.train()

    @property
    def tiles(self) -> RamTiles:
        """The tiles of the train split."""
        tiles = self.run.loader.tiles
        assert isinstance(tiles, RamTiles)
        return tiles

    def loader(self, *, batch_size: int | None = None, threads: int | None = None) -> BatchLoader:
        """Return a loader like the run's, of another batch size or with so many threads."""
        return BatchLoader(
            self.tiles,
            batch_size or self.run.loader.schedule.batch_size,
            crop=self.run.config.crop,
            augment=self.run.config.augment,
            crops_per_tile=LONG,
            threads=threads,
        )

    def pace(self, batches: Iterator[Batch], seconds: float, least: int) -> Pace:
        """Take steps for some time, and at least so many.

        Raises
        ------
        TrainingError
            The loss is not a number: nothing is learnt, and nothing worth timing.
        """
        taken: list[Taken] = []
        cpu, start = cpu_seconds(), time.perf_counter()
        while len(taken) < least or time.perf_counter() - start < seconds:
            taken.append(self.run.stepper(batches))
        seconds, waited = time.perf_counter() - start, sum(step.waited for step in taken)
        return Pace(len(taken), seconds, waited, cpu_seconds() - cpu)

    @contextmanager
    def prepared(self, batch: Batch) -> Iterator[None]:
        """Let steps find a batch normalised and its target made, whatever they are given."""
        trainable = self.run.trainable
        plain = trainable.prep
        ready = plain({"image": batch.image, "speed": batch.speed, "key": batch.key})
        trainable.prep = _Ready(ready)  # type: ignore[assignment]
        yield
        trainable.prep = plain


class _Ready(nn.Module):
    """Gives what was made before."""

    def __init__(self, ready: object) -> None:
        super().__init__()
        self.ready = ready

    def forward(self, batch: object) -> object:
        return self.ready


def _contiguous(network: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    """Undo the layout that batches come in: the usual (n, band, y, x)."""
    del network
    return (given[0].contiguous(),)


@contextmanager
def feeds(stepper: Stepper, counts: list[int]) -> Iterator[dict[str, Iterator[Batch]]]:
    """Return batches by the way they come, and end all threads and processes in the end.

    Parameters
    ----------
    stepper
        Whose tiles, batch size and windows.
    counts
        Numbers of threads of our loader, beside as many as training takes; and of processes of
        torch's DataLoader, beside none.
    """
    ways: dict[str, Iterator[Batch]] = {"loader": iter(stepper.loader())}
    ways |= {f"threads.{n}": iter(stepper.loader(threads=n)) for n in counts}
    ways |= {f"workers.{n}": _data_loader(stepper, n) for n in (0, *counts)}
    with ExitStack() as stack:
        for batches in ways.values():
            stack.callback(close, batches)
        yield {**ways, "cached": itertools.repeat(next(ways["loader"]))}


def _data_loader(stepper: Stepper, workers: int) -> Iterator[Batch]:
    """Yield batches of torch's DataLoader over the same tiles."""
    config = stepper.run.config
    dataset = TileDataset(
        stepper.tiles, crop=config.crop, augment=config.augment, crops_per_tile=LONG
    )
    loader: DataLoader[dict[str, Tensor]] = DataLoader(
        dataset,
        stepper.run.loader.schedule.batch_size,
        sampler=RandomSampler(dataset, replacement=True),
        num_workers=workers,
        multiprocessing_context="forkserver" if workers else None,
    )
    for found in loader:
        nowhere = torch.empty(0, 3, dtype=torch.int32)
        yield Batch(found["image"], found["speed"], found["index"], nowhere, found["key"])
