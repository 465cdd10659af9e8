"""Models by name or by the factory of a user, and the record of their input and output."""

from __future__ import annotations

import importlib
import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from geoprep.errors import UsageError
from geoprep.store.classes import ClassTable, are_colours
from geoprep.typed import require, typed
from training.model.unet import STRIDE, ResNetUNet, SmallUNet, UNet

RESNET34_UNET, UNET_SMALL = "resnet34-unet", "unet-small"
BUILT_IN: dict[str, type[UNet]] = {RESNET34_UNET: ResNetUNet, UNET_SMALL: SmallUNet}
"""The models of this package by name."""

SMP = "smp:"
"""Prefix of models of segmentation_models_pytorch: ``smp:ARCHITECTURE:ENCODER``."""

SMP_PACKAGE = "segmentation_models_pytorch"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's index of CPU builds."""

_MOST_CHANNELS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Inputs and outputs of a trained model: all that prediction needs besides its weights.

    Attributes
    ----------
    model
        As `build_model` takes it: a name, or ``package.module:factory``.
    bands
        Names of the input bands, in order.
    channels
        Number of output channels.
    targets
        Meaning of the channels: ``bins`` or ``binary``, see `loaders.SpeedTarget`, or ``classes``,
        see `loaders.ClassTarget`.
    mean, std
        Mean and standard deviation of each band in grey values, for `loaders.Normalize`.
    rescale
        Rule that mapped source values to bytes in the store: ``scene``, ``city``, ``none`` or
        ``LO,HI``.
    gsd_m
        Pixel size along x and y in metres, at the level trained last.
    level
        Tile side in pixels of that level.
    class_mph
        Speed of each speed channel in mph; empty unless targets are bins.
    stores
        Locations of the training data, for messages.
    limits
        Source values of each band that became black and white, if all training scenes share them
        (the rule ``city``); empty otherwise.
    folds, fold
        Number of folds, and the one used for validation, see `loaders.Folds`; None if the splits
        of the stores were used.
    threshold
        Road probability threshold chosen on validation scenes; None if never validated.
    version
        Version of this record.
    class_names, class_colors
        Name and display colour (``#RRGGBB``) of the class of each channel; empty unless targets
        are classes.
    nodata
        Nodata rule of the training images, as `geoprep.build_zarr` takes it: a pixel value,
        ``none``, or None for the default.
    limits_of
        What the limits of the rules ``city`` and ``LO,HI`` belong to: ``unit``, also values that
        scale and offset give, or ``integers`` of more than 8 bits. Empty if unknown, or 8 bits.
    """

    model: str
    bands: tuple[str, ...]
    channels: int
    targets: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    rescale: str
    gsd_m: tuple[float, float]
    level: int
    class_mph: tuple[float, ...]
    stores: tuple[str, ...] = ()
    limits: tuple[tuple[float, float], ...] = ()
    folds: int | None = None
    fold: int | None = None
    threshold: float | None = None
    version: int = 1
    class_names: tuple[str, ...] = ()
    class_colors: tuple[str, ...] = ()
    nodata: float | Literal["none"] | None = None
    limits_of: str = ""

    @property
    def has_classes(self) -> bool:
        """Whether the channels are the probabilities of classes, which add up to 1."""
        return self.targets == "classes"

    @property
    def classes(self) -> ClassTable:
        """Names and colours of the classes."""
        return ClassTable(self.class_names, self.class_colors)

    @property
    def score(self) -> str:
        """Name of the metric that the best checkpoint has most of."""
        return "mean_iou" if self.has_classes else "road_iou"

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> ModelInfo:
        """Return the record of plain values; ValueError names a field with another value."""
        info = typed(cls, values)
        bands, figures = len(info.bands), (*info.mean, *info.std, *info.class_mph)
        rules = {
            "bands": bands > 0,
            "targets": info.targets in ("bins", "binary", "classes"),
            "channels": 0 < info.channels <= _MOST_CHANNELS,
            "mean": len(info.mean) == bands and all(map(math.isfinite, figures)),
            "std": len(info.std) == bands and all(std >= 0 for std in info.std),
            "level": info.level > 0,
            "limits": len(info.limits) in (0, bands),
            "threshold": info.threshold is None or 0 <= info.threshold <= 1,
            "class_mph": len(info.class_mph) <= info.channels,
            "class_names": len(info.class_names) in (0, info.channels),
            "class_colors": are_colours(info.class_colors),
        }
        require(info, rules)
        return info


def build_model(spec: str = RESNET34_UNET, *, bands: int, channels: int) -> nn.Module:
    """Return a model that maps normalised images (n, band, y, x) to logits of the same size.

    ``spec`` is one of `BUILT_IN`; ``smp:ARCHITECTURE:ENCODER``;
    or ``package.module:factory``, called as ``factory(bands=bands, channels=channels)``.
    """
    if spec in BUILT_IN:
        return BUILT_IN[spec](bands, channels)
    if not is_code(spec) and not spec.startswith(SMP):
        raise UsageError(
            "model",
            f"{spec}: use {', '.join(BUILT_IN)}, smp:ARCHITECTURE:ENCODER or "
            "package.module:factory; a factory is called with bands and channels and returns the "
            "model",
        )
    factory = imported("model", spec) if is_code(spec) else smp_factory(spec)
    try:
        model = factory(bands=bands, channels=channels)
    except Exception as error:  # users' code may raise anything
        raise UsageError(
            "model", f"{spec}, called with bands={bands}, channels={channels}: {_summary(error)}"
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError("model", f"{spec} returned a {type(model).__name__}, not a torch module")
    _check_output(model, spec, bands, channels)
    return model


def factory_of(model: nn.Module) -> str:
    """Return the name of the built-in model; raise UsageError for another one."""
    for name, kind in BUILT_IN.items():
        if type(model) is kind:
            return name
    raise UsageError(
        "factory",
        f"is missing: the model is a {type(model).__name__}. Name what builds it again, "
        "smp:ARCHITECTURE:ENCODER or package.module:factory; a factory is called with bands and "
        "channels and returns the model",
    )


def unwrapped(model: nn.Module) -> nn.Module:
    """Return a model without what torch.compile and DDP wrap around it."""
    ddp = isinstance(model, DistributedDataParallel)
    inner = model.module if ddp else getattr(model, "_orig_mod", None)
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def is_code(spec: str) -> bool:
    """Return whether a specification is ``package.module:factory``, code outside this package."""
    return ":" in spec and not spec.startswith(SMP)


def imported(parameter: str, spec: str) -> Any:  # noqa: ANN401 - any object can be imported
    """Return the object named ``package.module:name``."""
    name, _, attribute = spec.partition(":")
    try:
        return getattr(importlib.import_module(name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            parameter, f"{spec}: {error}; install the package, or set PYTHONPATH to its folder"
        ) from error


def smp_factory(spec: str, encoder_weights: str | None = None) -> Callable[..., nn.Module]:
    """Return a factory of a model of segmentation_models_pytorch."""
    _, architecture, encoder, *_ = *spec.split(":"), "", ""
    try:
        create = importlib.import_module(SMP_PACKAGE).create_model
    except ImportError as error:
        # A package that it imports may be missing as well, such as torchvision.
        missing = (getattr(error, "name", None) or SMP_PACKAGE).partition(".")[0]
        package = "segmentation-models-pytorch" if missing == SMP_PACKAGE else missing
        raise UsageError(
            "model", f"{spec} needs {missing} ({error}): pip install {package}"
        ) from error
    except RuntimeError as error:  # plain pip brings a torchvision for CUDA
        raise UsageError(
            "model",
            f"{spec} needs a torchvision built as torch is ({error}): pip install "
            f"--force-reinstall --no-deps torchvision --index-url {CPU_INDEX}",
        ) from error
    return lambda bands, channels: create(
        architecture, encoder or "resnet34", encoder_weights, in_channels=bands, classes=channels
    )


def _check_output(model: nn.Module, spec: str, bands: int, channels: int) -> None:
    """Raise UsageError if a model does not map an image to logits of its size."""
    side = 4 * STRIDE
    training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=()):  # it is on the CPU
            logits = model.eval()(torch.zeros(1, bands, side, side))
    except Exception as error:  # as in build_model
        raise UsageError(
            "model", f"{spec} fails on an image of (1, {bands}, {side}, {side}): {_summary(error)}"
        ) from error
    finally:
        model.train(training)
    if not isinstance(logits, Tensor) or logits.shape != (1, channels, side, side):
        returned = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UsageError(
            "model",
            f"{spec} returns {returned} for an image of (1, {bands}, {side}, {side}); it "
            f"has to return logits of (1, {channels}, {side}, {side})",
        )


def _summary(error: Exception) -> str:
    """Return type, message and place of an error in users' code, in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first} ({last.filename}:{last.lineno})"
