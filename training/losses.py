"""The loss of a batch: `Trainable` runs normalisation, model and `RoadLoss` or `ClassLoss`.

0.75 focal + 0.25 soft dice is the recipe of the CRESI baseline (its configuration for the speed
masks). Here it is computed in fp32 from the logits of labelled pixels, so that no probability needs
clamping. It is tensor arithmetic without loops over channels and without values that the host waits
for, so that a compiler can fuse it into one pass.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import record_function

from geoprep.errors import UsageError
from geoprep.speed import CHANNEL_TABLE, VALID_TABLE
from geoprep.store import StoreReader
from loaders import Augmentation, DevicePrep
from training.checkpoint import ModelInfo
from training.data import class_pixels, make_prep
from training.directions import direction_loss
from training.engine import CUDA_GRAPHS, CompileMode, Engine
from training.model import RESNET34_UNET, build_model, imported, set_prior
from training.settings import Config

Timed = Callable[[str], AbstractContextManager[object]]
"""Returns a context manager around a phase of a step, given its name."""

WAIT, NORMALISE = "wait for the batch", "normalise, targets"
COPY, AVERAGE = "copy to the device", "averaged weights"

LossName = Literal["focal-dice", "bce-dice", "ce-dice"]

_DIRECTION = 0.1
"""Weight of the loss of directions for binary targets from random weights: see the measurements in
docs/performance/training.md."""

_SMOOTH = 1e-5
"""Added to both sides of the dice fraction, so that a batch without roads has a defined loss."""


class LossParts(NamedTuple):
    """A loss and its parts, fp32 tensors without dimensions.

    Attributes
    ----------
    total
        Weighted sum of the parts, which training minimises.
    main
        Pixelwise part, focal or cross-entropy, unweighted.
    dice
        1 - soft dice, unweighted.
    """

    total: Tensor
    main: Tensor
    dice: Tensor


class RoadLoss(nn.Module):
    """A pixelwise loss and soft dice over all channels of a batch together.

    Parameters
    ----------
    name
        ``focal-dice``: focal loss with gamma 2 and no alpha (Lin et al. 2017), for soft targets in
        the form |t - p|^2 BCE (Li et al. 2020), which is the same for hard ones. ``bce-dice``:
        binary cross-entropy in its place.
    channel_weights
        fp32 (channel,) with mean 1: weight of each channel in both parts; None for equal weights.
    dice
        Share of dice; the remainder is the share of the pixelwise part.
    direction
        Weight of the loss of directions, for a model that returns them. It adds to the gradient of
        the total and not to its value, so that losses of training and validation compare.
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
        """Return the loss of a batch.

        Parameters
        ----------
        logits
            (n, channel, y, x), any float dtype; or two channels more than the target, which are
            directions of roads, see `training.directions`.
        target
            (n, channel, y, x), 0..1; the last channel is above 0 on every road.
        valid
            bool (n, y, x), labelled pixels. The loss of a batch without any is 0.
        """
        x, t = logits[:, : target.shape[1]].float(), target.float()
        weight = known = valid[:, None].float()
        if self.weights is not None:
            weight = weight * self.weights
        p = torch.sigmoid(x)
        # -t ln p - (1 - t) ln(1 - p), written so that nothing overflows or cancels.
        pixel = functional.relu(x) - x * t + torch.log1p(torch.exp(-x.abs()))
        if self.name == "focal-dice":
            pixel = pixel * (t - p).square()
        count = valid.sum().clamp(min=1) * x.shape[1]
        main = (pixel * weight).sum() / count
        both, either = (weight * p * t).sum(), (weight * (p + t)).sum()
        dice = 1 - (2 * both + _SMOOTH) / (either + _SMOOTH)
        total = (1 - self.dice) * main + self.dice * dice
        if logits.shape[1] > target.shape[1]:
            turned = direction_loss(logits[:, target.shape[1] :], (t[:, -1:] > 0) * known)
            total = total + self.direction * (turned - turned.detach())
        return LossParts(total, main, dice)


class ClassLoss(nn.Module):
    """A pixelwise loss of exclusive classes and the soft dice of every class.

    Parameters
    ----------
    name
        ``focal-dice``: focal loss with gamma 2, (1 - p)^2 times cross-entropy (Lin et al. 2017).
        ``ce-dice``: cross-entropy.
    class_weights
        fp32 (class,): weight of the pixels, and of the dice, of each class; None for equal ones.
        Both parts are weighted means.
    dice
        Share of dice; the remainder is the share of the pixelwise part. Dice is the mean over the
        classes in the labels of the batch.

    Raises
    ------
    UsageError
        The loss is that of roads.
    """

    weights: Tensor | None

    def __init__(
        self,
        name: LossName = "focal-dice",
        class_weights: Tensor | None = None,
        dice: float = 0.25,
    ) -> None:
        super().__init__()
        if name == "bce-dice":
            raise UsageError("`loss` bce-dice is for roads: use ce-dice or focal-dice for classes")
        self.name, self.dice = name, dice
        weights = None if class_weights is None else class_weights.float().view(1, -1, 1, 1)
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, logits: Tensor, target: Tensor, valid: Tensor) -> LossParts:
        """Return the loss of a batch.

        Parameters
        ----------
        logits
            (n, class, y, x), any float dtype.
        target
            int64 (n, y, x), number of the class; anything where it is not valid.
        valid
            bool (n, y, x), labelled pixels. The loss of a batch without any is 0.
        """
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

    There is one kernel per shape and none for dynamic shapes: otherwise the exact result of a step
    would depend on the shapes of earlier steps, and a resumed run could differ.

    Parameters
    ----------
    plain
        Module or function.
    what
        Its name in the warning if compiling fails.
    mode
        Mode of torch.compile; None for its default.
    """

    def __init__(self, plain: Callable[..., Any], what: str, mode: str | None = None) -> None:
        self._plain, self._what, self._mode = plain, what, mode
        self._fast = torch.compile(plain, dynamic=False, mode=mode)

    def __call__(self, *args: Tensor) -> Any:  # noqa: ANN401 - what the plain callable returns
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

    Parameters
    ----------
    prep
        Normalises images and expands labels to targets; pads whole tiles.
    model
        Normalised image -> logits of the same size.
    loss
        Takes logits, target and valid mask.
    augmentation
        Takes image, label and key of a batch and returns image and label; used in training mode
        only. None for none.

    Raises
    ------
    UsageError
        The targets are numbers of bins, which sigmoid channels cannot learn.
    """

    def __init__(
        self,
        prep: DevicePrep,
        model: nn.Module,
        loss: nn.Module,
        augmentation: Augmentation | None = None,
    ) -> None:
        super().__init__()
        if prep.target.targets == "bin_index":
            raise UsageError("`targets` bin_index needs a loss of your own: train with bins")
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
        """Return the loss of a batch.

        Parameters
        ----------
        image
            uint8 (n, band, y, x).
        label
            uint8 (n, y, x), mph or classes.
        key
            int64 (n,), seeds random jitter.
        """
        model = (self.training and self._compiled_model) or self.model
        loss = (self.training and self._compiled_loss) or self.loss
        with self.timed(NORMALISE):
            if self.training and self.augmentation is not None:
                image, label = self.augmentation(image, label, key)
            ready = self.prep({"image": image, "label": label, "key": key})
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


def make_trainable(
    config: Config, info: ModelInfo, engine: Engine, stores: Sequence[StoreReader]
) -> Trainable:
    """Return an untrained model with its normalisation and loss, on the CPU in fp32.

    Parameters
    ----------
    config
        Loss, jitter, augmentation.
    info
        Architecture, normalisation and targets.
    engine
        Sets the dtype of normalised images.
    stores
        Stores whose histograms give the frequency of roads and speeds.
    """
    direction = _direction_weight(config, info)
    size = {"bands": len(info.bands), "channels": info.channels}
    model = build_model(info.model, **size, directions=direction > 0)
    weights = None
    _check_weights(config, info)
    loss: nn.Module
    if info.has_classes:
        share = class_share(stores, info.class_names)
        set_prior(model, share, exclusive=True)
        loss = ClassLoss(config.loss, class_weights(config.class_weights, info, share), config.dice)
        return _trainable(config, info, engine, model, loss)
    if info.targets == "bins":
        set_prior(model, channel_share(stores))
        if config.channel_weights == "auto":
            weights = channel_weights(stores)
    loss = RoadLoss(config.loss, weights, config.dice, direction)
    return _trainable(config, info, engine, model, loss)


def _trainable(
    config: Config, info: ModelInfo, engine: Engine, model: nn.Module, loss: nn.Module
) -> Trainable:
    prep, spec = make_prep(info, engine, config), config.augmentation
    return Trainable(prep, model, loss, None if spec is None else imported("augmentation", spec))


def _direction_weight(config: Config, info: ModelInfo) -> float:
    """Return the weight of the loss of directions; raise UsageError if the model has none."""
    suits = info.model == RESNET34_UNET and not info.has_classes
    if config.direction == "auto":
        untrained = config.init_from is None and config.encoder_weights == "none"
        return _DIRECTION if suits and untrained and info.targets == "binary" else 0.0
    if config.direction and not suits:
        raise UsageError(
            f"`direction` {config.direction:g} needs roads and `model` {RESNET34_UNET}: leave it "
            "out, or give 0"
        )
    return config.direction


def _check_weights(config: Config, info: ModelInfo) -> None:
    """Raise UsageError for weights that are for other targets."""
    if config.channel_weights != "none" and info.targets != "bins":
        raise UsageError(f"`channel_weights` auto needs `targets` bins, not {info.targets}")
    if config.class_weights != "none" and not info.has_classes:
        raise UsageError(
            f"`class_weights` {config.class_weights} needs labels of classes; for bins of speed "
            "use `channel_weights`"
        )
    if config.loss == "ce-dice" and not info.has_classes:
        raise UsageError("`loss` ce-dice is for classes: use bce-dice or focal-dice for roads")


def class_share(stores: Sequence[StoreReader], names: Sequence[str]) -> Tensor:
    """Return the share of each class in the labelled pixels of the train splits, fp32 (class,)."""
    pixels = torch.from_numpy(class_pixels(stores, names))
    return (pixels / pixels.sum().clamp(min=1)).float()


def class_weights(given: str, info: ModelInfo, share: Tensor) -> Tensor | None:
    """Return the loss weights of classes, fp32 (class,) with mean 1; None for equal ones.

    Parameters
    ----------
    given
        ``none``; ``auto`` for those of `inverse_root`; or the path of a YAML file of names and
        numbers, where classes without a number have 1.
    info
        The classes.
    share
        fp32 (class,), see `class_share`.

    Raises
    ------
    UsageError
        The file cannot be read, names another class, or holds something else than numbers.
    """
    if given in ("none", "auto"):
        return inverse_root(share) if given == "auto" else None
    import yaml

    try:
        values = yaml.safe_load(Path(given).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).replace("\n", " ")
        raise UsageError(f"`class_weights` {given} cannot be read: {reason}") from error
    values = values if isinstance(values, dict) else {str(values): math.nan}
    for name, value in values.items():
        if name not in info.class_names:
            raise UsageError(
                f"`class_weights` {given}: there is no class {name!r}; use lines of CLASS: WEIGHT "
                f"with {', '.join(info.class_names)}"
            )
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise UsageError(f"`class_weights` {given}: {name}: {value} is not a weight from 0 up")
    weight = torch.tensor([float(values.get(name, 1)) for name in info.class_names])
    if not weight.any():
        raise UsageError(f"`class_weights` {given}: all weights are 0")
    return weight / weight.mean()


def channel_share(stores: Sequence[StoreReader]) -> Tensor:
    """Return the share of labelled pixels on which each channel of the target ``bins`` is 1.

    Parameters
    ----------
    stores
        Their train splits are counted together.

    Returns
    -------
    Tensor
        fp32 (8,): bins 1..7 and any road; zeros without labelled pixels.
    """
    counts = sum(
        (torch.from_numpy(store.histogram_speed.astype("float64")) for store in stores),
        start=torch.zeros(256, dtype=torch.float64),
    )
    labelled = (counts * torch.from_numpy(VALID_TABLE.astype("float64"))).sum().clamp(min=1)
    return (counts @ torch.from_numpy(CHANNEL_TABLE.astype("float64")) / labelled).float()


def channel_weights(stores: Sequence[StoreReader], *, largest: float = 5.0) -> Tensor:
    """Return channel weights that favour rare speeds: 1 / sqrt(share), scaled to mean 1.

    Weights of 1 / share would let a handful of pixels dominate the loss. Bins that never occur in
    the train split have the weight of the most common one.

    Parameters
    ----------
    stores
        Their train splits are counted together.
    largest
        Maximum ratio of a weight to the smallest.

    Returns
    -------
    Tensor
        fp32 (8,).
    """
    return inverse_root(channel_share(stores), largest=largest)


def inverse_root(share: Tensor, *, largest: float = 5.0) -> Tensor:
    """Return 1 / sqrt(share) with mean 1, as `channel_weights`.

    Parameters
    ----------
    share
        fp32 (channel,); a channel with 0 has the weight of the most common one.
    largest
        Maximum ratio of a weight to the smallest.
    """
    common = share.max().clamp(min=1e-12)
    weight = (common / torch.where(share > 0, share, common)).sqrt().clamp(max=largest)
    return weight / weight.mean()
