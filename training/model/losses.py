"""The loss of a batch: `Trainable` runs normalisation, model and `RoadLoss` or `ClassLoss`.

0.75 focal + 0.25 soft dice is the recipe of the CRESI baseline. It is computed in fp32 from the
logits of labelled pixels, without loops over channels or values that the host waits for, so that a
compiler can fuse it into one pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import record_function

from geoprep.errors import UsageError
from loaders import Augmentation, DevicePrep
from training.engine import CUDA_GRAPHS, CompileMode
from training.model.directions import direction_loss
from training.settings import LossName

Timed = Callable[[str], AbstractContextManager[object]]
"""Returns a context manager around a phase of a step, given its name."""

WAIT, NORMALISE = "wait for the batch", "normalise, targets"
COPY, AVERAGE = "copy to the device", "averaged weights"

_SMOOTH = 1e-5
"""Added to both sides of the dice fraction, so that a batch without roads has a defined loss."""


class LossParts(NamedTuple):
    """A loss and its parts, fp32 tensors without dimensions."""

    total: Tensor
    """Weighted sum of the parts, which training minimises."""
    main: Tensor
    """Pixelwise part, focal or cross-entropy, unweighted."""
    dice: Tensor
    """1 - soft dice, unweighted."""


class RoadLoss(nn.Module):
    """A pixelwise loss and soft dice over all channels of a batch together.

    ``focal-dice``: focal loss with gamma 2 and no alpha (Lin et al. 2017), for soft targets in the
    form |t - p|^2 BCE (Li et al. 2020), which is the same for hard ones. The loss of directions
    adds to the gradient of the total and not to its value, so that losses of training and
    validation compare.
    """

    weights: Tensor | None

    def __init__(
        self,
        name: LossName = "focal-dice",
        channel_weights: Tensor | None = None,
        dice: float = 0.25,
        direction: float = 0.0,
    ) -> None:
        super().__init__()
        self.name, self.dice, self.direction = name, dice, direction
        weights = None if channel_weights is None else channel_weights.float().view(1, -1, 1, 1)
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, logits: Tensor, target: Tensor, valid: Tensor) -> LossParts:
        """Return the loss of logits and target (n, channel, y, x) where ``valid`` (n, y, x).

        Logits may have two channels more than the target, which are directions of roads.
        """
        known = valid[:, None]
        weight = known.float() if self.weights is None else known * self.weights
        # Loops over the few channels of a pixel would fill half of a vector.
        x, t, weight = (
            value.expand_as(target).permute(0, 2, 3, 1).flatten().float()
            for value in (logits[:, : target.shape[1]], target, weight)
        )
        p = torch.sigmoid(x)
        # -t ln p - (1 - t) ln(1 - p), written so that nothing overflows or cancels.
        pixel = functional.relu(x) - x * t + torch.log1p(torch.exp(-x.abs()))
        if self.name == "focal-dice":
            pixel = pixel * (t - p).square()
        count = valid.sum().clamp(min=1) * target.shape[1]
        main = (pixel * weight).sum() / count
        both, either = (weight * p * t).sum(), (weight * (p + t)).sum()
        dice = 1 - (2 * both + _SMOOTH) / (either + _SMOOTH)
        total = (1 - self.dice) * main + self.dice * dice
        if logits.shape[1] > target.shape[1]:
            road = ((target[:, -1:] > 0) & known).float()
            turned = direction_loss(logits[:, target.shape[1] :], road)
            total = total + self.direction * (turned - turned.detach())
        return LossParts(total, main, dice)


class ClassLoss(nn.Module):
    """A pixelwise loss of exclusive classes and the mean soft dice of the classes in the labels.

    ``focal-dice``: focal loss with gamma 2, (1 - p)^2 times cross-entropy (Lin et al. 2017).
    Weights of classes, fp32 (class,), weight the pixels and the dice of each.
    """

    weights: Tensor | None

    def __init__(
        self, name: LossName = "focal-dice", class_weights: Tensor | None = None, dice: float = 0.25
    ) -> None:
        super().__init__()
        if name == "bce-dice":
            raise UsageError("`loss` bce-dice is for roads: use ce-dice or focal-dice for classes")
        self.name, self.dice = name, dice
        weights = None if class_weights is None else class_weights.float().view(1, -1, 1, 1)
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, logits: Tensor, target: Tensor, valid: Tensor) -> LossParts:
        """Return the loss of logits (n, class, y, x) and numbers of classes (n, y, x) if valid."""
        logp = functional.log_softmax(logits.float(), dim=1)
        numbers = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
        known = valid[:, None]
        truth = ((target[:, None] == numbers) & known).float()
        p = logp.exp() * known
        pixel = -logp * truth
        if self.name == "focal-dice":
            pixel = pixel * (1 - p).square()
        share = truth if self.weights is None else truth * self.weights
        if self.weights is not None:
            pixel = pixel * self.weights
        main = pixel.sum() / share.sum().clamp(min=_SMOOTH)
        count = truth.sum(dim=(0, 2, 3))
        both, either = (p * truth).sum(dim=(0, 2, 3)), p.sum(dim=(0, 2, 3)) + count
        present = (count > 0).float()
        if self.weights is not None:
            present = present * self.weights.flatten()
        miss = 1 - (2 * both + _SMOOTH) / (either + _SMOOTH)
        dice = (miss * present).sum() / present.sum().clamp(min=_SMOOTH)
        return LossParts((1 - self.dice) * main + self.dice * dice, main, dice)


class Compiled:
    """A callable that is compiled for each new input shape, or runs as it is if that fails.

    There is one kernel per shape, or if ``dynamic`` one for all from the start: otherwise the exact
    result of a step would depend on the shapes of earlier steps, and a resumed run could differ.
    """

    def __init__(
        self,
        plain: Callable[..., Any],
        what: str,
        mode: str | None = None,
        *,
        dynamic: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        self._plain, self._what, self._mode = plain, what, mode
        self._fast = torch.compile(plain, dynamic=dynamic, mode=mode, options=options)

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - what the plain callable returns
        """Return the result of the plain callable, up to rounding."""
        # Imported here: the compiler takes seconds to import, and not every run uses it.
        from torch._dynamo.exc import TorchDynamoException

        if self._mode is not None:  # results of the call before, in a CUDA graph, are read
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # torch's
        try:
            return self._fast(*args)
        except TorchDynamoException as error:
            self._fast = self._plain
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"{self._what} could not be compiled and runs slower, uncompiled: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
            return self._plain(*args)


class Trainable(nn.Module):
    """Module that maps a batch of bytes to its loss.

    Normalisation and loss are inside the module, so that only three scalars come back from each
    device under ``DistributedDataParallel``.
    """

    def __init__(
        self,
        prep: DevicePrep,
        model: nn.Module,
        loss: nn.Module,
        augmentation: Augmentation | None = None,
    ) -> None:
        super().__init__()
        self.prep = prep
        self.model = model
        self.loss = loss
        self.augmentation = augmentation
        self.timed: Timed = record_function
        # Beside the modules, so that the names in state_dict() stay the same.
        self._compiled_model: Callable[..., Tensor] | None = None
        self._compiled_loss: Callable[..., LossParts] | None = None

    def compile_parts(self, mode: CompileMode) -> None:
        """Compile the loss, or model and loss, for training; validation uses neither."""
        if mode != "off":
            self._compiled_loss = Compiled(self.loss, "the loss")
        if mode not in ("off", "loss"):
            given = mode if mode in CUDA_GRAPHS else None
            self._compiled_model = Compiled(self.model, "the model", given)

    def forward(self, image: Tensor, label: Tensor, key: Tensor) -> LossParts:
        """Return the loss of uint8 (n, band, y, x) and (n, y, x); int64 (n,) seeds the jitter."""
        model = (self.training and self._compiled_model) or self.model
        loss = (self.training and self._compiled_loss) or self.loss
        with self.timed(NORMALISE):
            if self.training and self.augmentation is not None:
                image, label = self.augmentation(image, label, key)
            kind = "label" if self.prep.target.targets == "classes" else "speed"
            ready = self.prep({"image": image, kind: label, "key": key})
        with self.timed("model forward"):
            logits = model(ready.image)
        with self.timed("loss forward"):
            parts: LossParts = loss(logits, ready.target, ready.valid)
        return parts

    def logits(self, image: Tensor) -> Tensor:
        """Return logits (n, channel, y, x) of uint8 (n, band, y, x), without padding."""
        rows, columns = image.shape[-2:]
        padded = self.prep.pad(image)
        logits: Tensor = self.model(self.prep.normalize(padded))
        return logits[..., :rows, :columns]
