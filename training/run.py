"""A run: everything that training has in its hands, made from settings or taken from a file."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from geoprep.errors import UsageError
from geoprep.store import Store
from loaders import Batch, this_rank
from training import checkpoint as files
from training.checkpoint import BEST, LAST, Checkpoint, Facts
from training.config import Config
from training.data import StageData, check_store, facts_of, level_gsd, load_stage, make_prep
from training.distributed import add_up, is_first, parallel
from training.engine.native import Engine
from training.errors import CheckpointError
from training.losses import channel_share, channel_weights, make_loss
from training.model import build_network, set_prior
from training.module import Trainable
from training.optim import Ema, learning_rate, make_optimizer
from training.progress import Progress, random_state, set_random_state
from training.step import Meter, Stepper, Taken


class Group(NamedTuple):
    """The batches of one optimizer step.

    Attributes
    ----------
    size
        How many.
    batches
        Batches of the epoch that are done after it.
    done
        Epochs that are done after it, with the part of this one.
    """

    size: int
    batches: int
    done: float


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
    val_loss
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
        self.stepper = Stepper(self.module, self.optimizer, engine, config.optim.clip)
        self.ema = Ema(self.trainable.network, config.optim.ema) if config.optim.ema else None
        self._restore(saved)

    def _prepare(self, saved: Checkpoint | None) -> tuple[Trainable, Optimizer]:
        config, facts = self.config, self.facts
        trainable = make_trainable(config, facts, self.engine, self.stores)
        self.val_loss = copy.deepcopy(trainable.loss).to(self.engine.device)
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
            self.progress.forget_sums()
        if saved is None:
            return
        if saved.optimizer is not None:
            self._restore_optimizer(saved.optimizer)
        if self.ema is not None and saved.ema is not None:
            self.ema.load(saved.ema)
        if not rank and saved.rng:
            set_random_state(saved.rng, self.engine.device)

    def _restore_optimizer(self, state: dict[str, Any]) -> None:
        decay = [group["weight_decay"] for group in self.optimizer.param_groups]
        try:
            self.optimizer.load_state_dict(state)
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"{self.folder}: the optimizer's state does not fit this network ({error}): start "
                "a new run"
            ) from error
        for group, wanted in zip(self.optimizer.param_groups, decay, strict=True):
            group["weight_decay"] = wanted  # of the settings, which may have changed

    @property
    def data(self) -> StageData:
        """The tiles of the running stage; `enter_stage` loads them."""
        assert self._data is not None
        return self._data

    @property
    def out_of_patience(self) -> bool:
        """Whether the results of the last stage have not become better for too long."""
        patience, done = self.config.optim.patience, self.progress.epoch
        *_, before = 0, *self.config.stage_ends()[:-1]
        if patience is None or done <= before:
            return False
        return self.progress.best_epoch >= 0 and done - 1 - self.progress.best_epoch >= patience

    def enter_stage(self) -> bool:
        """Load the tiles that the next epoch needs, go to its place, and say if it is a new stage.

        Raises
        ------
        StoreError, UsageError
            They cannot be loaded, or are not those that the interrupted epoch was about.
        """
        number = self.config.stage_of(self.progress.epoch)
        entered = number != self.stage
        if entered:
            self._data = None  # first let go of the tiles before
            stage = self.config.stages[number]
            self._data = load_stage(self.config, self.stores, stage, self.engine)
            self.stage = number
            level = self.data.tiles.side
            self.facts = replace(self.facts, level=level, gsd_m=level_gsd(self.stores[0], level))
            if self.progress.epoch in (0, *self.config.stage_ends()):
                self.progress.forget_best()
        state, self._loader_state = self._loader_state, {}
        if state.get("position"):
            self.data.loader.load_state_dict(state)
        self.data.loader.set_epoch(self.progress.epoch)
        return entered

    def groups(self) -> list[Group]:
        """Return the optimizer steps that are left of the epoch that begins or goes on."""
        schedule, every = self.data.loader.schedule, self.config.optim.accumulate
        start = int(self.data.loader.state_dict()["position"])
        stride = schedule.batch_size * schedule.world_size
        first = before = -(-start // stride)
        total = first + sum(1 for _ in schedule.steps(start))
        found = []
        while before < total:
            end = min(before - before % every + every, total)
            passed = min(1.0, (start + (end - first) * stride) / schedule.samples)
            found.append(Group(end - before, end, self.progress.epoch + passed))
            before = end
        return found

    def step(self, batches: Iterable[Batch], group: Group) -> Taken:
        """Take an optimizer step over batches of the epoch.

        Raises
        ------
        TrainingError
            Loss or gradient is not finite, see `Stepper`.
        """
        rate = learning_rate(self.config.optim, self.config.epochs, group.done)
        for part in self.optimizer.param_groups:
            part["lr"] = rate
        taken = self.stepper(batches, group.size)
        self.progress.step += 1
        if self.ema is not None:
            with self.stepper.timed("averaged weights"):
                self.ema.update(self.progress.step)
        return taken

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
        if not first:
            self.progress.forget_sums()
            return
        self.progress.sums, self.progress.samples = totals[:-1], int(totals[-1])
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
            files.save(self.folder / BEST, self._weights())

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
    if facts.targets != "bins" and config.network.channel_weights != "none":
        raise UsageError(f"--channel-weights auto is for --targets bins, not {facts.targets}")
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
