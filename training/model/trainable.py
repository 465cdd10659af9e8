"""What a run trains: `Trainable` runs normalisation, model and loss, as settings and stores ask."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.profiler import record_function

from geoprep.errors import UsageError
from geoprep.store import StoreReader
from loaders import Augmentation, DevicePrep
from training.checkpoint import ModelInfo
from training.data import make_prep
from training.engine import CUDA_GRAPHS, CompileMode, Engine
from training.model.build import RESNET34_UNET, build_model, imported
from training.model.compiled import Compiled
from training.model.loss_weights import channel_share, class_share, class_weights, inverse_root
from training.model.losses import ClassLoss, LossParts, RoadLoss
from training.model.norm import copy_no_kernels, fuse_norms
from training.model.optimizer import make_optimizer
from training.model.unet import ResNetUNet, set_prior
from training.settings import Config

_DIRECTION = 0.1
"""Weight of the loss of directions for binary targets from random weights: see the measurements in
docs/performance/training.md."""

Timed = Callable[[str], AbstractContextManager[object]]
"""Returns a context manager around a phase of a step, given its name."""

WAIT, NORMALISE = "wait for the batch", "normalise, targets"
COPY, AVERAGE = "copy to the device", "averaged weights"


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


def make_trainable(
    config: Config, info: ModelInfo, engine: Engine, stores: Sequence[StoreReader]
) -> Trainable:
    """Return an untrained model with its normalisation and loss, on the CPU in fp32."""
    direction = _direction_weight(config, info)
    size = {"bands": len(info.bands), "channels": info.channels}
    model = build_model(info.model, **size, directions=direction > 0)
    _check_weights(config, info)
    loss: nn.Module
    if info.has_classes:
        share = class_share(stores, info.class_names)
        set_prior(model, share, exclusive=True)
        loss = ClassLoss(config.loss, class_weights(config.class_weights, info, share), config.dice)
    else:
        weights = None
        if info.targets == "bins":
            share = channel_share(stores)
            set_prior(model, share)
            weights = inverse_root(share) if config.channel_weights == "auto" else None
        loss = RoadLoss(config.loss, weights, config.dice, direction)
    own = None if config.augmentation is None else own_augmentation(config.augmentation)
    return Trainable(make_prep(info, engine, config), model, loss, own)


def own_augmentation(spec: str) -> Augmentation:
    """Return the augmentation of a user; it and its results are checked."""
    function = imported("augmentation", spec)
    wanted = "write function(image, label, key), which returns image and label"
    try:
        inspect.signature(function).bind("image", "label", "key")
    except TypeError as error:
        raise UsageError(f"`augmentation` {spec}: {error}: {wanted}") from error
    except ValueError:  # of a function without a signature, such as many in C
        pass

    if isinstance(function, nn.Module):  # it stays a part of the module, which moves to the device
        return function

    def augment(image: Tensor, label: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        found = function(image, label, key)
        pair = found if isinstance(found, tuple) else (found,)
        given = [(tuple(one.shape), one.dtype) for one in pair if isinstance(one, Tensor)]
        if given != [(tuple(one.shape), one.dtype) for one in (image, label)]:
            kinds = ", ".join(f"{str(kind)[6:]} {shape}" for shape, kind in given)
            raise UsageError(
                f"`augmentation` {spec} returned {kinds or type(found).__name__} for uint8 "
                f"{tuple(image.shape)} and uint8 {tuple(label.shape)}: {wanted}, of the same shapes"
            )
        return found  # type: ignore[no-any-return]  # just checked

    return augment


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


def prepare(trainable: Trainable, engine: Engine, config: Config) -> Optimizer:
    """Move a module to the engine's device, compile its parts, and return its optimizer.

    The module is changed in place; the names in its ``state_dict`` stay the same.
    """
    trainable.to(device=engine.device)
    trainable.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's own stubs lack this form
    optimizer = make_optimizer(trainable.model, config)
    trainable.model, optimizer = engine.optimize(trainable.model, optimizer)
    native = engine.name == "native" and engine.device.type == "cpu"
    if native:
        copy_no_kernels(optimizer)
    if native and engine.compile_mode == "loss" and isinstance(trainable.model, ResNetUNet):
        fuse_norms(trainable.model)
    trainable.compile_parts(engine.compile_mode)
    if engine.compile_mode in CUDA_GRAPHS:
        # A graph writes its gradients to its own memory. Those of several batches need another.
        for parameter in trainable.model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    return optimizer
