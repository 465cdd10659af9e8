"""Model, loss and optimizer of a run, from settings and stores."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from geoprep.errors import UsageError
from geoprep.speed import CHANNEL_TABLE, VALID_TABLE
from geoprep.store import StoreReader
from loaders import Augmentation
from training.checkpoint import ModelInfo
from training.cli import read_yaml
from training.data import class_pixels, make_prep
from training.engine import CUDA_GRAPHS, Engine
from training.model.build import RESNET34_UNET, build_model, imported
from training.model.losses import ClassLoss, RoadLoss, Trainable
from training.model.norm import copy_no_kernels, fuse_norms
from training.model.unet import ResNetUNet, set_prior
from training.settings import Config

_DIRECTION = 0.1
"""Weight of the loss of directions for binary targets from random weights: see the measurements in
docs/performance/training.md."""


_LARGEST = 5.0
"""Largest weight of a channel or class over that of the most common one."""

MOMENTUM = 0.9

STATE_PER_PARAMETER: dict[str, int] = {"adamw": 2, "adam": 2, "sgd": 1}
"""fp32 values that an optimizer stores per parameter."""


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


def class_share(stores: Sequence[StoreReader], names: Sequence[str]) -> Tensor:
    """Return the share of each class in the labelled pixels of the train splits, fp32 (class,)."""
    pixels = torch.from_numpy(class_pixels(stores, names))
    return (pixels / pixels.sum().clamp(min=1)).float()


def class_weights(given: str, info: ModelInfo, share: Tensor) -> Tensor | None:
    """Return the loss weights of classes, fp32 (class,) with mean 1; None for equal ones."""
    if given in ("none", "auto"):
        return inverse_root(share) if given == "auto" else None
    values = read_yaml(given, "class_weights")
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
    """Return the share of labelled pixels on which each channel of the target ``bins`` is 1."""
    counts = np.sum([store.histogram_speed for store in stores], axis=0).astype(np.float64)
    return torch.from_numpy(counts @ CHANNEL_TABLE / max(counts @ VALID_TABLE, 1)).float()


def inverse_root(share: Tensor) -> Tensor:
    """Return weights that favour what is rare: 1 / sqrt(share), scaled to mean 1.

    Weights of 1 / share would let a handful of pixels dominate the loss. What never occurs has the
    weight of the most common one.
    """
    common = share.max().clamp(min=1e-12)
    weight = (common / torch.where(share > 0, share, common)).sqrt().clamp(max=_LARGEST)
    return weight / weight.mean()


def make_optimizer(model: nn.Module, config: Config) -> Optimizer:
    """Return the optimizer of a model's parameters.

    Weight decay applies to kernels only: decaying biases and BatchNorm factors costs accuracy
    (He et al. 2019, "Bag of tricks").
    """
    factor = config.encoder_lr
    encoder = getattr(model, "encoder", None)
    if factor != 1 and not isinstance(encoder, nn.Module):
        raise UsageError("`encoder_lr`: this model has no part named encoder")
    slow = set() if factor == 1 or encoder is None else set(encoder.parameters())
    for parameter in slow:
        parameter.requires_grad_(factor > 0)
    groups: list[dict[str, Any]] = [
        {
            "params": [
                p
                for p in model.parameters()
                if p.requires_grad and (p.ndim > 1, p in slow) == (kernel, slower)
            ],
            "weight_decay": config.weight_decay if kernel else 0.0,
            "factor": factor if slower else 1.0,
        }
        for slower in (False, True)
        for kernel in (True, False)
    ]
    kinds: dict[str, Callable[..., Optimizer]] = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": partial(torch.optim.SGD, momentum=MOMENTUM, nesterov=True),
    }
    used = [group for group in groups if group["params"]]
    return kinds[config.optimizer](used, lr=config.lr, fused=True)


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
