"""A run: everything that training has in its hands, made from settings or taken from a file."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from geoprep.store import Store
from loaders import Batch, BatchLoader, this_rank
from training import checkpoint as files
from training.checkpoint import BEST, LAST, Checkpoint, CheckpointError, Facts
from training.config import Config
from training.data import check_store, facts_of, level_gsd, load_stage
from training.engine import Engine, add_up, is_first, parallel
from training.module import AVERAGE, Stepper, Taken, make_trainable, prepare
from training.optim import Ema, learning_rate
from training.pretrained import load_encoder_weights


@dataclass(slots=True)
class Progress:
    """Counters of a run, which a checkpoint keeps.

    Attributes
    ----------
    epoch
        The epoch that runs, or is next; counted over all stages, from 0.
    step
        Optimizer steps done.
    best, best_epoch
        Best validation road IoU of this stage, and its epoch; not a number and -1 for none.
    sums, samples
        Of loss, main part and dice over the samples of the running epoch.
    seconds
        Wall time of training, over all starts.
    history
        One row per epoch, as in metrics.csv.
    """

    epoch: int = 0
    step: int = 0
    best: float = math.nan
    best_epoch: int = -1
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    samples: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)

    def add(self, rows: Sequence[Sequence[float]], counts: Sequence[int]) -> None:
        """Add loss, main part and dice of batches to the running epoch, batch by batch.

        So the sums are the same to the bit, whenever they were read.
        """
        for count, row in zip(counts, rows, strict=True):
            self.sums = [total + count * part for total, part in zip(self.sums, row, strict=True)]
            self.samples += count

    def forget_sums(self) -> None:
        """Begin to count anew: an epoch begins, or the first rank has the sums of all."""
        self.sums, self.samples = [0.0] * len(self.sums), 0

    def is_best(self, road_iou: float) -> bool:
        """Take note of a result; return whether it is the best of its stage so far."""
        if not math.isnan(self.best) and not road_iou > self.best:
            return False
        self.best, self.best_epoch = road_iou, self.epoch
        return True

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Return what `dataclasses.asdict` made plain.

        Raises
        ------
        CheckpointError
            Something is lacking, or unknown: best.pt of a foreign version, for example.
        """
        if "epoch" not in values or "step" not in values:
            raise CheckpointError(
                "this checkpoint does not say where its run is (epoch, step): it is for prediction "
                "only; go on from another one"
            )
        try:
            return cls(**values)
        except TypeError as error:
            raise CheckpointError(
                f"this checkpoint keeps its progress otherwise ({error}): go on with the package "
                "that wrote it"
            ) from error


class Group(NamedTuple):
    """The batches of one optimizer step.

    ``size`` is how many; ``batches`` of the epoch and ``done`` epochs, with the part of this one,
    are done after it.
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
    epochs, stage
        How many there are, of all stages; the number of the stage that runs, -1 for none yet.
    facts
        What the network is for, at the level of the running stage.
    trainable, module
        What computes the loss; with gradients averaged over ranks.
    loader, validation
        Training batches, and whole validation tiles, every one once, or None where no scene
        validates; of the running stage, see `enter_stage`.
    initial
        What the weights of a new run are, for people.
    """

    loader: BatchLoader
    validation: BatchLoader | None

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
        self.epochs, self.stage = config.ends[-1], -1
        self._loader_state = {} if saved is None else saved.loader
        self.facts: Facts = facts_of(config, stores) if saved is None else saved.facts
        check_store(self.facts, stores, str(folder))
        torch.manual_seed(config.seed)
        self.trainable = make_trainable(config, self.facts, engine, stores)
        network = self.trainable.network
        self.initial = ""
        if saved is None:
            self.initial = load_encoder_weights(network, config.encoder_weights)
        else:
            files.load_weights(network, saved.network, str(folder))
        self.optimizer = prepare(self.trainable, engine, config)
        self.module: nn.Module = parallel(self.trainable, engine.device)
        self.stepper = Stepper(self.module, self.optimizer, engine, config.clip)
        self.ema = Ema(self.trainable.network, config.ema) if config.ema else None
        self._restore(saved)

    def _restore(self, saved: Checkpoint | None) -> None:
        """Take over what a checkpoint holds beside the weights."""
        rank, _ = this_rank()
        if rank:  # every rank has its own dropout
            torch.manual_seed(hash((self.config.seed, rank, self.progress.step)))
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
    def out_of_patience(self) -> bool:
        """Whether the results of the last stage have not become better for too long."""
        patience, done = self.config.patience, self.progress.epoch
        *_, before = 0, *self.config.ends[:-1]
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
        number, progress = self.config.stage_of(self.progress.epoch), self.progress
        entered = number != self.stage
        if entered:
            if self.stage >= 0:
                del self.loader, self.validation  # first let go of their tiles
            stage, self.stage = self.config.plan[number], number
            level = stage.level or self.stores[0].meta.levels[0]
            self.facts = replace(self.facts, level=level, gsd_m=level_gsd(self.stores[0], level))
            loaders = load_stage(self.config, self.facts, self.stores, stage, self.engine.device)
            self.loader, self.validation = loaders
            if progress.epoch in (0, *self.config.ends):
                # Figures at another resolution do not compare.
                progress.best, progress.best_epoch = math.nan, -1
        state, self._loader_state = self._loader_state, {}
        if state.get("position"):
            self.loader.load_state_dict(state)
        self.loader.set_epoch(progress.epoch)
        return entered

    def groups(self) -> list[Group]:
        """Return the optimizer steps that are left of the epoch that begins or goes on."""
        schedule, every = self.loader.schedule, self.config.accumulate
        start = int(self.loader.state_dict()["position"])
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

    def step(self, batches: Iterator[Batch], group: Group) -> Taken:
        """Take an optimizer step over batches of the epoch.

        Raises
        ------
        TrainingError
            Loss or gradient is not finite, see `Stepper`.
        """
        rate = learning_rate(self.config, self.epochs, group.done)
        for part in self.optimizer.param_groups:
            part["lr"] = rate * part.get("factor", 1.0)
        taken = self.stepper(batches, group.size)
        self.progress.step += 1
        if self.ema is not None:
            with self.stepper.timed(AVERAGE):
                self.ema.update(self.progress.step)
        return taken

    def averaged(self) -> AbstractContextManager[None]:
        """Let the network have its averaged weights for a while, where there are any."""
        return nullcontext() if self.ema is None else self.ema.applied()

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
        progress, loader = self.progress, self.loader.state_dict()
        totals = add_up([*progress.sums, progress.samples], self.engine.device)
        if not is_first():
            progress.forget_sums()
            return
        progress.sums, progress.samples = totals[:-1], int(totals[-1])
        if epoch_done:
            loader |= {"epoch": progress.epoch, "position": self.loader.samples}
        elif loader["position"] == 0:
            loader |= {"epoch": progress.epoch}
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
            progress=asdict(self.progress),
            config=self.config.flat(),
            environment=self.environment(),
        )


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of all random generators as plain values and tensors."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - the one that users' networks may use
    state = {
        "torch": torch.get_rng_state(),
        "python": list(random.getstate()[1]),
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put all random generators where they were."""
    torch.set_rng_state(state["torch"].cpu())
    random.setstate((3, tuple(state["python"]), None))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))  # noqa: NPY002 - as above
    if "device" in state and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["device"].cpu())
