"""ResNet34-UNet for any number of bands and channels, and any other network by its factory.

The encoder's parameters are named like torchvision's ResNet (``encoder.conv1.weight``,
``encoder.layer1.0.conv1.weight``, ...), so that published ImageNet weights load. The decoder is
that of the SpaceNet 3 winner, which the CRESI baseline took over, with two changes:

- Every decoder convolution but the last is followed by BatchNorm in place of a bias. From random
  weights it finds its first roads sooner (25 steps of 8 x 128 at a rate of 1e-3 on a synthetic
  city: validation road IoU 0.055 against 0.005, one run each).
- Doubling the size by nearest neighbours and the 3 x 3 convolution after it are one transposed
  convolution, see `UpConv`: the same function of the same parameters at 4/9 of the arithmetic.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from geoprep.errors import UsageError

RESNET34_UNET = "resnet34-unet"
SMP = "smp:"
"""Before the names of an architecture and an encoder of segmentation_models_pytorch."""

STRIDE = 32
"""Sides of the input are a multiple of this: the encoder halves five times."""

_ENCODER_WIDTHS = (64, 64, 128, 256, 512)
_DECODER_WIDTHS = (256, 128, 64, 64, 32)
_PRIOR = 0.05
"""Share of pixels that an untrained network takes for road, in every channel."""


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut (He et al. 2016), named as in torchvision."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, outputs, y / stride, x / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return functional.relu(self.bn2(self.conv2(x)).add_(shortcut), inplace=True)


class ResNet34(nn.Module):
    """The encoder: torchvision's ResNet34 without its classifier.

    Parameters
    ----------
    bands
        Of the image.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(bands, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(64, 64, 3, stride=1)
        self.layer2 = _stage(64, 128, 4, stride=2)
        self.layer3 = _stage(128, 256, 6, stride=2)
        self.layer4 = _stage(256, 512, 3, stride=2)

    def forward(self, image: Tensor) -> list[Tensor]:
        """Return the feature maps at 1/2, 1/4, 1/8, 1/16 and 1/32 of the size."""
        maps = [functional.relu(self.bn1(self.conv1(image)), inplace=True)]
        maps.append(self.layer1(functional.max_pool2d(maps[0], 3, 2, 1)))
        for stage in (self.layer2, self.layer3, self.layer4):
            maps.append(stage(maps[-1]))
        return maps


def _stage(inputs: int, outputs: int, blocks: int, *, stride: int) -> nn.Sequential:
    rest = [BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(BasicBlock(inputs, outputs, stride), *rest)


class UpConv(nn.Module):
    """Nearest-neighbour doubling followed by a 3 x 3 convolution, in one step.

    Doubling is a transposed convolution of stride 2 with a 2 x 2 kernel of ones; the two in a row
    are one with the 4 x 4 kernel that is the full convolution of both kernels. That needs 4
    products where 9 were, and no tensor of the doubled size is kept for the backward pass: 9 % of
    a whole step on a CPU (measured).

    Parameters
    ----------
    inputs, outputs
        Channels. The weight is that of the 3 x 3 convolution.
    """

    spread: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        # Row y of the flipped kernel falls on rows y and y + 1 of the larger one.
        rows = (torch.eye(4, 3) + torch.eye(4, 3).roll(1, 0)).flip(1)
        self.register_buffer("spread", torch.kron(rows, rows), persistent=False)

    def kernel(self) -> Tensor:
        """Return the kernel of the transposed convolution, (inputs, outputs, 4, 4)."""
        outputs, inputs = self.weight.shape[:2]
        # As a matrix product in the weight's channels-last order, so that nothing is transposed.
        kernel = self.spread @ self.weight.permute(0, 2, 3, 1).reshape(outputs, 9, inputs)
        return kernel.view(outputs, 4, 4, inputs).permute(3, 0, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, outputs, 2 y, 2 x)."""
        return functional.conv_transpose2d(x, self.kernel(), stride=2, padding=1)


class DecoderStep(nn.Module):
    """Double the size, join the encoder's map of that size, mix.

    Parameters
    ----------
    inputs, skip, outputs
        Channels of what comes from below, of the encoder's map (0 for none), of the result.
    """

    def __init__(self, inputs: int, skip: int, outputs: int) -> None:
        super().__init__()
        self.up = UpConv(inputs, outputs)
        self.up_bn = nn.BatchNorm2d(outputs)
        self.mix: nn.Module | None = None
        if skip:
            self.mix = nn.Conv2d(outputs + skip, outputs, 3, 1, 1, bias=False)
            self.mix_bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor, skip: Tensor | None) -> Tensor:
        """Return (n, outputs, 2 y, 2 x)."""
        x = functional.relu(self.up_bn(self.up(x)), inplace=True)
        if self.mix is None or skip is None:
            return x
        x = self.mix(torch.cat([x, skip], 1))
        return functional.relu(self.mix_bn(x), inplace=True)


class ResNetUNet(nn.Module):
    """ResNet34-UNet.

    Parameters
    ----------
    bands, channels
        Of the image and of the result.
    """

    def __init__(self, bands: int, channels: int) -> None:
        super().__init__()
        self.encoder = ResNet34(bands)
        widths = (_ENCODER_WIDTHS[-1], *_DECODER_WIDTHS)
        skips = (*reversed(_ENCODER_WIDTHS[:-1]), 0)
        self.decoder = nn.ModuleList(
            DecoderStep(*step) for step in zip(widths[:-1], skips, widths[1:], strict=True)
        )
        self.head = nn.Conv2d(widths[-1], channels, 3, 1, 1)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d | UpConv):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.head.weight, std=0.01)
        set_prior(self, torch.full((self.head.out_channels,), _PRIOR))

    def forward(self, image: Tensor) -> Tensor:
        """Return logits (n, channels, y, x) of a normalised image (n, band, y, x).

        Raises
        ------
        UsageError
            A side is not a multiple of 32.
        """
        if image.shape[-2] % STRIDE or image.shape[-1] % STRIDE:
            raise UsageError(
                f"an image of {image.shape[-2]} x {image.shape[-1]} pixels does not halve five "
                f"times; pad its sides to a multiple of {STRIDE}"
            )
        *skips, x = self.encoder(image)
        for step, skip in zip(self.decoder, [*reversed(skips), None], strict=True):
            x = step(x, skip)
        logits: Tensor = self.head(x)
        return logits


def set_prior(network: nn.Module, share: Tensor) -> None:
    """Let an untrained network predict these shares: the bias of its head becomes their logit.

    Else the first steps from random weights go into learning that roads are rare. The idea is that
    of the focal loss's authors (Lin et al. 2017, section 4.1). A network without
    a convolution named ``head`` is left alone.

    Parameters
    ----------
    share
        fp32 (channel,), between 0 and 1, see `training.losses.channel_share`.
    """
    head = getattr(network, "head", None)
    if isinstance(head, nn.Conv2d) and head.bias is not None:
        with torch.no_grad():
            head.bias.copy_(torch.logit(share.to(head.bias), eps=1e-4))


def build_network(spec: str = RESNET34_UNET, *, bands: int, channels: int) -> nn.Module:
    """Return a network that maps normalised images (n, band, y, x) to logits of the same size.

    Parameters
    ----------
    spec
        ``resnet34-unet``; ``smp:Unet:resnet34`` or the like, an architecture and an encoder of
        segmentation_models_pytorch (``tu-`` before those of timm); or ``package.module:factory``,
        called as ``factory(bands=bands, channels=channels)``.
    bands, channels
        Of the image and of the result.

    Raises
    ------
    UsageError
        There is no such factory, or what it returns is no module.
    """
    if spec == RESNET34_UNET:
        return ResNetUNet(bands, channels)
    if not is_code(spec) and not spec.startswith(SMP):
        raise UsageError(
            f"--model {spec} is neither {RESNET34_UNET}, smp:ARCHITECTURE:ENCODER nor "
            "package.module:factory; a factory is called with bands and channels and returns the "
            "network"
        )
    factory = imported("--model", spec) if is_code(spec) else _of_smp(spec)
    try:
        network = factory(bands=bands, channels=channels)
    except Exception as error:  # whatever code of others raises is about that code
        raise UsageError(
            f"--model {spec}, called with bands={bands}, channels={channels}: {_told(error)}"
        ) from error
    if not isinstance(network, nn.Module):
        raise UsageError(f"--model {spec} returned a {type(network).__name__}, not a torch module")
    _check_output(network, spec, bands, channels)
    return network


def is_code(spec: str) -> bool:
    """Return whether a network's name is ``package.module:factory``, which has to be imported."""
    return ":" in spec and not spec.startswith(SMP)


def imported(flag: str, spec: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Return what ``package.module:name`` names.

    Raises
    ------
    UsageError
        There is no such thing; the message begins with the flag.
    """
    name, _, attribute = spec.partition(":")
    try:
        return getattr(importlib.import_module(name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{flag} {spec}: {error}; install the package, or set PYTHONPATH to its folder"
        ) from error


def _of_smp(spec: str) -> Callable[..., nn.Module]:
    """Return a factory of a network of segmentation_models_pytorch, with random weights."""
    _, architecture, encoder, *_ = *spec.split(":"), "", ""
    try:
        create = importlib.import_module("segmentation_models_pytorch").create_model
    except ImportError as error:
        raise UsageError(
            f"--model {spec} needs segmentation_models_pytorch ({error}): pip install "
            "segmentation-models-pytorch"
        ) from error
    return lambda bands, channels: create(
        architecture, encoder or "resnet34", None, in_channels=bands, classes=channels
    )


def _check_output(network: nn.Module, spec: str, bands: int, channels: int) -> None:
    """Raise UsageError where a network does not map an image to logits of its size."""
    side = 4 * STRIDE
    training = network.training
    try:
        with torch.no_grad(), torch.random.fork_rng():
            logits = network.eval()(torch.zeros(1, bands, side, side))
    except Exception as error:  # as in build_network
        raise UsageError(
            f"--model {spec} fails on an image of (1, {bands}, {side}, {side}): {_told(error)}"
        ) from error
    finally:
        network.train(training)
    if not isinstance(logits, Tensor) or logits.shape != (1, channels, side, side):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UsageError(
            f"--model {spec} returns {found} for an image of (1, {bands}, {side}, {side}); logits "
            f"of (1, {channels}, {side}, {side}) are needed"
        )


def _told(error: Exception) -> str:
    """Return what a person's code raised and where, in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first} ({last.filename}:{last.lineno})"
