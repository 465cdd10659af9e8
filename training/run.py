"""A run: everything that training has in its hands, made from settings or taken from a file."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from geoprep.errors import UsageError
from geoprep.store import Store
from loaders import Batch, this_rank
from training import checkpoint as files
from training.checkpoint import BEST, LAST, Checkpoint, CheckpointError, Facts
from training.config import Config
from training.data import StageData, check_store, facts_of, level_gsd, load_stage
from training.distributed import add_up, is_first, parallel
from training.engine.native import Engine
from training.module import Stepper, Taken, Trainable, make_trainable, prepare
from training.optim import Ema, learning_rate, make_optimizer
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

    def close_epoch(self, row: dict[str, float]) -> None:
        """Go on to the next epoch; ``row`` joins the history."""
        self.history.append(row)
        self.epoch += 1
        self.forget_sums()

    def forget_sums(self) -> None:
        """Begin to count anew: an epoch begins, or the first rank has the sums of all."""
        self.sums, self.samples = [0.0] * len(self.sums), 0

    def is_best(self, road_iou: float) -> bool:
        """Take note of a result; return whether it is the best of its stage so far."""
        if not math.isnan(self.best) and not road_iou > self.best:
            return False
        self.best, self.best_epoch = road_iou, self.epoch
        return True

    def forget_best(self) -> None:
        """Begin a stage: figures at another resolution do not compare."""
        self.best, self.best_epoch = math.nan, -1

    def to_plain(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_plain` made plain.

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
        self.notes: list[str] = []
        self._epochs = config.epochs
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
            said = load_encoder_weights(trainable.network, config.network.encoder_weights)
            self.notes.append(said)
        else:
            files.load_weights(trainable.network, saved.network, str(self.folder))
        optim = config.optim
        factor = config.network.encoder_lr
        maker = make_optimizer(
            optim.optimizer,
            lr=optim.lr,
            weight_decay=optim.weight_decay,
            slow=() if factor == 1 else _encoder_parameters(trainable.network, frozen=not factor),
            factor=factor,
        )
        return trainable, prepare(trainable, self.engine, maker)

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
        rate = learning_rate(self.config.optim, self._epochs, group.done)
        for part in self.optimizer.param_groups:
            part["lr"] = rate * part.get("factor", 1.0)
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


def _encoder_parameters(network: nn.Module, *, frozen: bool) -> list[nn.Parameter]:
    """Return the parameters of a network's encoder, which learn nothing where it is frozen."""
    encoder = getattr(network, "encoder", None)
    if not isinstance(encoder, nn.Module):
        raise UsageError("--encoder-lr: this network has no part named encoder")
    found = list(encoder.parameters())
    for parameter in found:
        parameter.requires_grad_(not frozen)
    return found


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of all random generators as plain values and tensors."""
    kind, keys, at, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002 - the one that users' networks may use
    state = {
        "torch": torch.get_rng_state(),
        "python": list(random.getstate()[1]),
        "numpy": [str(kind), np.asarray(keys).tolist(), int(at), int(has_gauss), float(gauss)],
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
