"""A run: everything that training has in its hands, made from settings or taken from a file."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from geoprep.store import Store
from loaders import this_rank
from training import checkpoint as files
from training.checkpoint import BEST, LAST, Checkpoint, Facts
from training.config import Config
from training.data import StageData, check_store, facts_of, level_gsd, load_stage, make_prep
from training.distributed import add_up, is_first, parallel
from training.ema import Ema
from training.engine.native import Engine
from training.losses import channel_share, channel_weights, make_loss
from training.model import build_network, set_prior
from training.module import Trainable
from training.monitor.meter import Meter
from training.optim import make_optimizer
from training.progress import Progress
from training.saving import random_state, set_random_state
from training.schedules import make_schedule
from training.stages import Plan


@dataclass(frozen=True, slots=True)
class Pace:
    """How far an epoch is after each of the batches that are left of it.

    Attributes
    ----------
    start
        Positions of the epoch that were passed before.
    stride
        Positions that all ranks pass in a step.
    samples
        Positions in the epoch.
    left
        Batches that are left.
    accumulate
        Batches per optimizer step.
    """

    start: int
    stride: int
    samples: int
    left: int
    accumulate: int

    @property
    def before(self) -> int:
        """Batches of the epoch that were taken before."""
        return -(-self.start // self.stride)

    @property
    def total(self) -> int:
        """Batches of the epoch."""
        return self.before + self.left

    def done(self, number: int) -> float:
        """Return the share of the epoch that is done after batch ``number`` of those left."""
        return min(1.0, (self.start + (number + 1) * self.stride) / self.samples)

    def group(self, number: int) -> tuple[int, bool]:
        """Return how many batches share a batch's optimizer step, and whether it is the last."""
        at = self.before + number
        first = at - at % self.accumulate
        size = min(self.accumulate, self.total - first)
        return size, at == first + size - 1


class Run:
    """The state of a run.

    Parameters
    ----------
    config
        Its settings.
    engine
        How steps are carried out.
    stores
        Where tiles come from.
    folder
        Where it writes.
    saved
        A checkpoint to go on from.

    Attributes
    ----------
    facts
        What the network is for, at the level of the running stage.
    trainable, module
        What computes the loss; with gradients averaged over ranks.
    judge
        The loss, never compiled, for validation.
    notes
        What was done on the way that a person should know.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        stores: tuple[Store, ...],
        folder: Path,
        saved: Checkpoint | None = None,
    ) -> None:
        self.config, self.engine, self.stores, self.folder = config, engine, stores, folder
        self.plan = Plan.of(config)
        self.schedule = make_schedule(config.optim, self.plan.epochs)
        self.progress = Progress() if saved is None else Progress.from_plain(saved.progress)
        self.meter = Meter()
        self.notes: list[str] = []
        self.stage = -1
        self._data: StageData | None = None
        self._loader_state = {} if saved is None else saved.loader
        self.facts: Facts = facts_of(config, stores) if saved is None else saved.facts
        check_store(self.facts, stores, str(folder))
        torch.manual_seed(config.optim.seed)
        self.trainable, self.optimizer = self._prepare(saved)
        self.module: nn.Module = parallel(self.trainable, engine.device)
        self.ema = Ema(self.trainable.network, config.optim.ema) if config.optim.ema else None
        self._restore(saved)

    def _prepare(self, saved: Checkpoint | None) -> tuple[Trainable, Optimizer]:
        config, facts = self.config, self.facts
        trainable = make_trainable(config, facts, self.engine, self.stores)
        self.judge = copy.deepcopy(trainable.loss).to(self.engine.device)
        if saved is None:
            source = config.network.encoder_weights
            self.notes.append(_fill_encoder(trainable.network, source))
        else:
            files.load_weights(trainable.network, saved.network, str(self.folder))
        optim = config.optim
        maker = make_optimizer(optim.optimizer, lr=optim.lr, weight_decay=optim.weight_decay)
        return self.engine.prepare(trainable, maker)

    def _restore(self, saved: Checkpoint | None) -> None:
        """Take over what a checkpoint holds beside the weights."""
        rank, _ = this_rank()
        if rank:  # every rank has its own dropout
            torch.manual_seed(hash((self.config.optim.seed, rank, self.progress.step)))
            self.progress.sums, self.progress.samples = [0.0] * 3, 0
        if saved is None:
            return
        if saved.optimizer is not None:
            self.optimizer.load_state_dict(saved.optimizer)
        if self.ema is not None and saved.ema is not None:
            self.ema.load(saved.ema)
        if not rank:
            set_random_state(saved.rng, self.engine.device)

    @property
    def data(self) -> StageData:
        """The tiles of the running stage; `enter_stage` loads them."""
        assert self._data is not None
        return self._data

    @property
    def out_of_patience(self) -> bool:
        """Whether the results of the last stage have not become better for too long."""
        patience, done = self.config.optim.patience, self.progress.epoch
        if patience is None or done <= self.plan.first_epoch(len(self.plan.stages) - 1):
            return False
        return self.progress.best_epoch >= 0 and done - 1 - self.progress.best_epoch >= patience

    def enter_stage(self) -> bool:
        """Load the tiles that the next epoch needs, go to its place, and say if it is a new stage.

        Raises
        ------
        StoreError, UsageError
            They cannot be loaded, or are not those that the interrupted epoch was about.
        """
        number = self.plan.stage_of(self.progress.epoch)
        entered = number != self.stage
        if entered:
            self._data = None  # first let go of the tiles before
            self._data = load_stage(self.config, self.stores, self.plan.stages[number], self.engine)
            self.stage = number
            level = self.data.tiles.side
            self.facts = replace(self.facts, level=level, gsd_m=level_gsd(self.stores[0], level))
            if self.progress.epoch == self.plan.first_epoch(number):
                self.progress.forget_best()
        state, self._loader_state = self._loader_state, {}
        if state.get("position"):
            self.data.loader.load_state_dict(state)
        self.data.loader.set_epoch(self.progress.epoch)
        return entered

    def pace(self) -> Pace:
        """Return how the epoch that begins or goes on will proceed."""
        schedule = self.data.loader.schedule
        start = int(self.data.loader.state_dict()["position"])
        return Pace(
            start=start,
            stride=schedule.batch_size * schedule.world_size,
            samples=schedule.samples,
            left=sum(1 for _ in schedule.steps(start)),
            accumulate=self.config.optim.accumulate,
        )

    def set_rate(self, done: float) -> float:
        """Set the learning rate for a step that ends at ``done`` epochs, and return it."""
        rate = self.config.optim.lr * self.schedule(done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the network have its averaged weights for a while, where there are any."""
        if self.ema is None:
            yield
        else:
            with self.ema.applied():
                yield

    def environment(self) -> dict[str, Any]:
        """Return what the bits of a run depend on beside its settings."""
        return {
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
            "engine": self.engine.name,
            "device": self.engine.device.type,
            "compiled": self.engine.compile_mode,
            "ranks": this_rank()[1],
        }

    def save(self, *, epoch_done: bool = False) -> None:
        """Write last.pt; the sums of all ranks are brought together, the first rank writes.

        Parameters
        ----------
        epoch_done
            The running epoch has no batch left, but was not judged yet.
        """
        totals = add_up([*self.progress.sums, self.progress.samples], self.engine.device)
        first = is_first()
        self.progress.sums = totals[:-1] if first else [0.0] * len(self.progress.sums)
        self.progress.samples = int(totals[-1]) if first else 0
        if not first:
            return
        loader = self.data.loader.state_dict()
        if epoch_done:
            loader |= {"epoch": self.progress.epoch, "position": self.data.loader.schedule.samples}
        elif loader["position"] == 0:
            loader |= {"epoch": self.progress.epoch}
        whole = replace(
            self._weights(),
            optimizer=self.optimizer.state_dict(),
            loader=loader,
            rng=random_state(self.engine.device),
        )
        files.save(self.folder / LAST, whole)

    def save_best(self) -> None:
        """Write best.pt: the weights alone, in the first rank."""
        if is_first():
            files.save(self.folder / BEST, self._weights(), keep_previous=False)

    def _weights(self) -> Checkpoint:
        return Checkpoint(
            facts=self.facts,
            network=self.trainable.network.state_dict(),
            ema=None if self.ema is None else self.ema.weights,
            progress=self.progress.to_plain(),
            config=self.config.flat(),
            environment=self.environment(),
        )


def make_trainable(
    config: Config, facts: Facts, engine: Engine, stores: Sequence[Store]
) -> Trainable:
    """Return an untrained network with its normalisation and loss, before `Engine.prepare`.

    Parameters
    ----------
    config
        Which loss, how much jitter.
    facts
        Which network, normalisation and targets.
    engine
        Decides the dtype of images.
    stores
        How common roads and speeds are.
    """
    network = build_network(facts.network, bands=len(facts.bands), channels=facts.channels)
    weights = None
    if facts.targets == "bins":
        set_prior(network, channel_share(stores))
        if config.network.channel_weights == "auto":
            weights = channel_weights(stores)
    prep = make_prep(facts, engine, config.sampling.jitter)
    return Trainable(prep, network, make_loss(config.network.loss, channel_weights=weights))


def _fill_encoder(network: nn.Module, source: str) -> str:
    """Load what the encoder starts from; return what was done."""
    if source == "none":
        return "random weights"
    from training.pretrained import load_encoder_weights

    return load_encoder_weights(network, source)
