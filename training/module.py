"""A training step: a network with its normalisation and loss, and the one function that steps.

`training.fit`, its profile, the choice of a batch size and the benchmarks call the same `Stepper`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.profiler import record_function

from geoprep.errors import GeoprepError, UsageError
from geoprep.store import Store
from loaders import Batch, DevicePrep
from training.checkpoint import Facts
from training.config import Config
from training.data import make_prep
from training.engine import CompileMode, Engine
from training.losses import LossParts, RoadLoss, channel_share, channel_weights
from training.model import build_network, imported, set_prior
from training.optim import make_optimizer

Augmentation = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Image uint8 (n, band, y, x), speed uint8 (n, y, x) and key int64 (n,) -> image and speed."""

Timed = Callable[[str], AbstractContextManager[object]]
"""Entered around each phase of a step, with its name."""


WAIT, NORMALISE = "wait for the batch", "normalise, targets"
COPY, AVERAGE = "copy to the device", "averaged weights"


class TrainingError(GeoprepError):
    """A run cannot go on, such as when its loss is no longer a number.

    Parameters
    ----------
    message
        What is wrong.
    ago
        How many steps were taken since, this one included.
    """

    def __init__(self, message: str, ago: int = 0) -> None:
        super().__init__(message)
        self.ago = ago


class Compiled:
    """A callable, compiled when it is first called with a new shape; the plain one if that fails.

    One kernel a shape, never one for shapes at large: else the bits of a step would depend on
    what shapes came before it, and a resumed run could differ from one that was never stopped.

    Parameters
    ----------
    plain
        A module or function.
    what
        What to call it in the warning when compiling fails.
    """

    def __init__(self, plain: Callable[..., Any], what: str) -> None:
        self._plain, self._what = plain, what
        self._fast = torch.compile(plain, dynamic=False)

    def __call__(self, *args: Tensor) -> Any:  # noqa: ANN401 - what the plain callable returns
        """Return what the plain callable returns, but for rounding."""
        # Here: the compiler takes seconds to import, and not every run has one.
        from torch._dynamo.exc import TorchDynamoException

        try:
            return self._fast(*args)
        except TorchDynamoException as error:
            self._fast = self._plain
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"{self._what} could not be compiled and runs as it is, slower: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
            return self._plain(*args)


class Trainable(nn.Module):
    """Bytes in, loss out: what an optimizer and ``DistributedDataParallel`` see.

    Since normalisation and loss are inside, bytes go in and three scalars come back, whatever the
    number of devices.

    Parameters
    ----------
    prep
        Normalises and expands the target; pads whole tiles.
    network
        Normalised image -> logits of the same size.
    loss
        Takes logits, target and valid mask, see `training.losses`.
    augmentation
        Takes image, speed and key of a batch as they come, and returns image and speed; in
        training mode only.

    Raises
    ------
    UsageError
        The target is class numbers, which sigmoid channels cannot learn.
    """

    def __init__(
        self,
        prep: DevicePrep,
        network: nn.Module,
        loss: nn.Module,
        augmentation: Augmentation | None = None,
    ) -> None:
        super().__init__()
        if prep.target.targets == "class":
            raise UsageError("targets 'class' is for losses of your own; train with 'bins'")
        self.prep = prep
        self.network = network
        self.loss = loss
        self.augmentation = augmentation
        self.timed: Timed = record_function
        # Beside the modules and not in their place, so that no name in state_dict() changes.
        self._fast_network: Callable[..., Tensor] | None = None
        self._fast_loss: Callable[..., LossParts] | None = None

    def compile_parts(self, mode: CompileMode) -> None:
        """Compile the loss, or the network as well, for training steps; validation runs neither."""
        if mode != "off":
            self._fast_loss = Compiled(self.loss, "the loss")
        if mode == "model":
            self._fast_network = Compiled(self.network, "the network")

    def forward(self, image: Tensor, speed: Tensor, key: Tensor) -> LossParts:
        """Return the loss of a batch.

        Parameters
        ----------
        image
            uint8 (n, band, y, x).
        speed
            uint8 (n, y, x), mph.
        key
            int64 (n,), feeds random jitter.
        """
        fast = self.training
        network = (fast and self._fast_network) or self.network
        loss = (fast and self._fast_loss) or self.loss
        with self.timed(NORMALISE):
            if fast and self.augmentation is not None:
                image, speed = self.augmentation(image, speed, key)
            ready = self.prep({"image": image, "speed": speed, "key": key})
        with self.timed("network forward"):
            logits = network(ready.image)
        with self.timed("loss forward"):
            parts: LossParts = loss(logits, ready.target, ready.valid)
        return parts

    def logits(self, image: Tensor) -> Tensor:
        """Return logits (n, channel, y, x) of uint8 (n, band, y, x), padding cut off again."""
        rows, columns = image.shape[-2:]
        padded = self.prep.pad(image)
        logits: Tensor = self.network(self.prep.normalize(padded))
        return logits[..., :rows, :columns]


def make_trainable(
    config: Config, facts: Facts, engine: Engine, stores: Sequence[Store]
) -> Trainable:
    """Return an untrained network with its normalisation and loss, before `prepare`.

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
        if config.channel_weights == "auto":
            weights = channel_weights(stores)
    elif config.channel_weights != "none":
        raise UsageError(f"--channel-weights auto is for --targets bins, not {facts.targets}")
    prep = make_prep(facts, engine, config.jitter)
    loss = RoadLoss(config.loss, weights, config.dice)
    wanted = config.augmentation
    own = None if wanted is None else imported("--augmentation", wanted)
    return Trainable(prep, network, loss, own)


def prepare(trainable: Trainable, engine: Engine, config: Config) -> Optimizer:
    """Bring a module to the device, as an engine runs it, and return its optimizer.

    The module is changed in place; names in its ``state_dict`` stay what they were.

    Parameters
    ----------
    trainable
        In training mode, parameters in fp32.
    engine
        Says where and how.
    config
        Which optimizer, see `training.optim`.
    """
    trainable.to(device=engine.device)
    trainable.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's own stubs lack this form
    optimizer = make_optimizer(trainable.network, config)
    trainable.network, optimizer = engine.optimize(trainable.network, optimizer)
    trainable.compile_parts(engine.compile_mode)
    return optimizer


class Taken(NamedTuple):
    """A step that was taken.

    Attributes
    ----------
    losses
        Loss, main part and dice of each of its batches, fp32 (3,) on the device.
    counts
        Samples in each of them.
    norm
        Norm of the gradient before clipping, on the device.
    waited
        Seconds spent waiting for batches.
    """

    losses: list[Tensor]
    counts: list[int]
    norm: Tensor
    waited: float

    def check(self, ago: int = 0) -> None:
        """Raise TrainingError where the gradient is not finite."""
        if not math.isfinite(self.norm):
            finite = all(math.isfinite(loss[0]) for loss in self.losses)
            what = "the gradient is not finite, though the loss is"
            raise TrainingError(what if finite else "the loss is not a number", ago)


@dataclass(frozen=True, slots=True)
class Stepper:
    """What a step needs.

    Attributes
    ----------
    module
        Called with image, speed and key; returns the loss. Averages gradients over ranks.
    optimizer
        Of its parameters.
    engine
        Where and in which precision it computes.
    clip
        Largest norm of the gradient; None for any.
    timed
        Context of each phase; torch's profiler shows them by default.
    """

    module: nn.Module
    optimizer: Optimizer
    engine: Engine
    clip: float | None = None
    timed: Timed = record_function

    def __call__(self, batches: Iterable[Batch], count: int = 1) -> Taken:
        """Take one step over the next ``count`` batches, each counting the same.

        Raises
        ------
        TrainingError
            Loss or gradient is not finite; the weights are as they were before. On an
            accelerator, where looking would mean waiting, whoever reads the losses finds it.
        """
        batches, losses, counts, waited = iter(batches), [], [], 0.0
        # Gradients stay unaveraged over ranks, as long as more batches of the step follow.
        apart = getattr(self.module, "no_sync", nullcontext)
        for number in range(1, count + 1):
            asked = time.perf_counter()
            with self.timed(WAIT):
                batch = next(batches)
            waited += time.perf_counter() - asked
            with apart() if number < count else nullcontext():
                losses.append(self._add_gradient(batch, count))
            counts.append(len(batch))
            del batch  # or its buffer would stay taken while the next one is waited for
        with self.timed("clip"):
            limit = math.inf if self.clip is None else self.clip
            norm = clip_grad_norm_(self.module.parameters(), limit)
        taken = Taken(losses, counts, norm, waited)
        if norm.device.type == "cpu":
            taken.check()
        with self.timed("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return taken

    def _add_gradient(self, batch: Batch, count: int) -> Tensor:
        """Add the gradient of a batch, one of ``count``; return its loss, main part and dice."""
        with self.timed(COPY):
            batch = batch.to(self.engine.device, non_blocking=True)
        with self.engine.autocast():
            parts: LossParts = self.module(batch.image, batch.speed, batch.key)
        with self.timed("backward"):
            (parts.total / count).backward()  # type: ignore[no-untyped-call]  # torch's
        return torch.stack([*parts]).detach()
