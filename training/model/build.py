"""Models by name or by the factory of a user."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from geoprep.errors import UsageError
from training.model.unet import STRIDE, ResNetUNet

RESNET34_UNET = "resnet34-unet"
SMP = "smp:"
"""Prefix of models of segmentation_models_pytorch: ``smp:ARCHITECTURE:ENCODER``."""

SMP_PACKAGE = "segmentation_models_pytorch"


def build_model(
    spec: str = RESNET34_UNET, *, bands: int, channels: int, directions: bool = False
) -> nn.Module:
    """Return a model that maps normalised images (n, band, y, x) to logits of the same size.

    ``spec`` is ``resnet34-unet``, which alone learns ``directions``; ``smp:ARCHITECTURE:ENCODER``;
    or ``package.module:factory``, called as ``factory(bands=bands, channels=channels)``.
    """
    if spec == RESNET34_UNET:
        return ResNetUNet(bands, channels, directions=directions)
    if not is_code(spec) and not spec.startswith(SMP):
        raise UsageError(
            f"`model` {spec}: use {RESNET34_UNET}, smp:ARCHITECTURE:ENCODER or "
            "package.module:factory; a factory is called with bands and channels and returns the "
            "model"
        )
    factory = imported("model", spec) if is_code(spec) else smp_factory(spec)
    try:
        model = factory(bands=bands, channels=channels)
    except Exception as error:  # users' code may raise anything
        raise UsageError(
            f"`model` {spec}, called with bands={bands}, channels={channels}: {_summary(error)}"
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"`model` {spec} returned a {type(model).__name__}, not a torch module")
    _check_output(model, spec, bands, channels)
    return model


def factory_of(model: nn.Module) -> str:
    """Return the name of the built-in model; raise UsageError for another one."""
    if isinstance(model, ResNetUNet):
        return RESNET34_UNET
    raise UsageError(
        f"`factory` is missing: the model is a {type(model).__name__}. Name what builds it again, "
        "smp:ARCHITECTURE:ENCODER or package.module:factory; a factory is called with bands and "
        "channels and returns the model"
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
            f"`{parameter}` {spec}: {error}; install the package, or set PYTHONPATH to its folder"
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
            f"`model` {spec} needs {missing} ({error}): pip install {package}"
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
            f"`model` {spec} fails on an image of (1, {bands}, {side}, {side}): {_summary(error)}"
        ) from error
    finally:
        model.train(training)
    if not isinstance(logits, Tensor) or logits.shape != (1, channels, side, side):
        returned = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UsageError(
            f"`model` {spec} returns {returned} for an image of (1, {bands}, {side}, {side}); it "
            f"has to return logits of (1, {channels}, {side}, {side})"
        )


def _summary(error: Exception) -> str:
    """Return type, message and place of an error in users' code, in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first} ({last.filename}:{last.lineno})"
