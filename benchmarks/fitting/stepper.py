"""The training step of `training.fit`, on any rung of the ladder."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.profiler import record_function

from benchmarks.fitting.rungs import Rung
from geoprep.store import Store
from loaders import Batch, BatchLoader, RamTiles
from training import step
from training.config import Config
from training.data import facts_of, make_prep
from training.engine.host import keep_memory
from training.engine.native import Engine, choose_engine
from training.losses import make_loss
from training.model import build_network
from training.module import Trainable
from training.optim import make_optimizer

LONG = 1 << 12
"""Windows a tile in an epoch: no step is to wait for the start of one."""

DEFAULTS = Config()


@dataclass(frozen=True, slots=True)
class Pace:
    """Some steps in a row.

    Attributes
    ----------
    steps
        How many.
    seconds, waited
        Wall time, and the part of it that the step waited for its batch.
    """

    steps: int
    seconds: float
    waited: float


class Stepper:
    """Network, loss and optimizer as a rung sets them up.

    Parameters
    ----------
    rung
        How.
    store
        Statistics and bands.
    """

    def __init__(self, rung: Rung, store: Store) -> None:
        self.allocator = keep_memory() if rung.keep_memory else "as the system has it"
        torch.manual_seed(0)
        self.engine: Engine = choose_engine(rung.engine, "cpu", rung.precision, rung.compile_mode)
        facts = facts_of(DEFAULTS, (store,))
        self.trainable = Trainable(
            make_prep(facts, self.engine, DEFAULTS.sampling.jitter),
            build_network(facts.network, bands=len(facts.bands), channels=facts.channels),
            make_loss(DEFAULTS.network.loss),
        )
        optim = DEFAULTS.optim
        maker = make_optimizer(
            optim.optimizer, lr=optim.lr, weight_decay=optim.weight_decay, fused=rung.fused
        )
        self.optimizer: Optimizer
        if rung.channels_last:
            self.trainable, self.optimizer = self.engine.prepare(self.trainable, maker)
        else:
            self.trainable.network.register_forward_pre_hook(_contiguous)
            self.optimizer = maker(self.trainable.parameters())
        self.trainable.train()
        self._stepper = step.Stepper(
            self.trainable,
            self.optimizer,
            self.engine,
            optim.clip,
            timed=lambda phase: record_function(f"phase: {phase}"),
        )

    def step(self, batch: Batch) -> Tensor:
        """Take one step as `training.fit` does, and return the loss; its phases have names.

        Raises
        ------
        TrainingError
            The loss is not a number: nothing is learnt, and nothing worth timing.
        """
        return self._stepper([batch]).parts[0].total

    def run(self, batches: Iterator[Batch], seconds: float, least: int) -> Pace:
        """Take steps for some time, and at least so many."""
        steps, waited, start = 0, 0.0, time.perf_counter()
        while steps < least or time.perf_counter() - start < seconds:
            asked = time.perf_counter()
            with record_function("phase: data"):
                batch = next(batches)
            waited += time.perf_counter() - asked
            self.step(batch)
            steps += 1
        return Pace(steps, time.perf_counter() - start, waited)


def _contiguous(network: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    """Undo the layout that batches come in: the usual (n, band, y, x)."""
    del network
    return (given[0].contiguous(),)


def open_tiles(store: Path) -> RamTiles:
    """Load all tiles of a store."""
    return RamTiles.load(store, split="all", progress=False)


def loader_of(
    tiles: RamTiles, batch_size: int, crop: int, *, threads: int | None = None
) -> BatchLoader:
    """Return the loader of `training.fit` over an epoch that does not end meanwhile."""
    return BatchLoader(
        tiles,
        batch_size,
        crop=crop,
        augment=DEFAULTS.sampling.augment,
        crops_per_tile=LONG,
        threads=threads,
    )


def close(batches: Iterable[Any]) -> None:
    """End the threads of an epoch that is left in the middle."""
    end = getattr(batches, "close", None)
    if end is not None:
        end()
