"""U-Nets for any number of bands and channels: ResNet34-UNet, and a small one for CPUs.

The parameters of ResNet34 are named like torchvision's, so that published weights load. The decoder
is that of the SpaceNet 3 winner, with BatchNorm in place of biases and with `UpConv`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from geoprep.errors import UsageError
from training.model.compiled import norm_relu

STRIDE = 32
"""Divisor of the sides of input images: the encoder halves them five times."""

_PRIOR = 0.05
"""Probability of every channel that an untrained model predicts."""


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
        x = norm_relu(self.bn1, self.conv1(x))
        return norm_relu(self.bn2, self.conv2(x), shortcut)


class ResNet34(nn.Module):
    """The encoder: torchvision's ResNet34 without its classifier."""

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
        maps = [norm_relu(self.bn1, self.conv1(image))]
        maps.append(self.layer1(functional.max_pool2d(maps[0], 3, 2, 1)))
        for stage in (self.layer2, self.layer3, self.layer4):
            maps.append(stage(maps[-1]))
        return maps


def _stage(inputs: int, outputs: int, blocks: int, *, stride: int) -> nn.Sequential:
    rest = [BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(BasicBlock(inputs, outputs, stride), *rest)


class SmallEncoder(nn.Module):
    """Residual blocks, one per size: few channels at half size, where a CPU spends its time."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        widths = SmallUNet.encoder_widths
        self.conv1 = nn.Conv2d(bands, widths[0], 5, 2, 2, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.blocks = nn.ModuleList(BasicBlock(*pair, 2) for pair in pairwise(widths))

    def forward(self, image: Tensor) -> list[Tensor]:
        """Return the feature maps at 1/2, 1/4, 1/8, 1/16 and 1/32 of the size."""
        maps = [norm_relu(self.bn1, self.conv1(image))]
        for block in self.blocks:
            maps.append(block(maps[-1]))
        return maps


class UpConv(nn.Module):
    """Nearest-neighbour doubling followed by a 3 x 3 convolution, in one step.

    Doubling is a transposed convolution of stride 2 with a 2 x 2 kernel of ones. Both operations
    together are one with the 4 x 4 kernel that is the full convolution of both kernels. It needs 4
    products instead of 9 and stores no tensor of the doubled size for the backward pass: 9 % of a
    step on a CPU (measured).
    """

    spread: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        # Row y of the flipped kernel falls on rows y and y + 1 of the larger one.
        # On no other device: a model that is built without weights has this one.
        taps = torch.eye(4, 3, device="cpu")
        rows = (taps + taps.roll(1, 0)).flip(1)
        self.register_buffer("spread", torch.kron(rows, rows), persistent=False)

    def kernel(self) -> Tensor:
        """Return the kernel of the transposed convolution, (inputs, outputs, 4, 4)."""
        outputs, inputs = self.weight.shape[:2]
        # A kernel in the order that the convolution reads, from copies in blocks or runs: copies of
        # single values took 3 % of a step.
        rows = self.weight.permute(0, 2, 3, 1).reshape(outputs, 9 * inputs)
        if rows.requires_grad:
            rows.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]  # torch's
        taps = rows.t().contiguous().view(9, inputs * outputs)
        kernel = (self.spread @ taps).view(16, inputs, outputs).transpose(0, 1)
        return kernel.contiguous().view(inputs, 4, 4, outputs).permute(0, 3, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, outputs, 2 y, 2 x)."""
        return functional.conv_transpose2d(x, self.kernel(), stride=2, padding=1)


class DecoderStep(nn.Module):
    """Decoder block: double the size, append the encoder's features of that size, convolve."""

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
        x = norm_relu(self.up_bn, self.up(x))
        if self.mix is None or skip is None:
            return x
        return norm_relu(self.mix_bn, self.mix(_join(x, skip)))


def _join(*maps: Tensor) -> Tensor:
    """Return maps one after the other along the channels; their gradients are contiguous.

    Other operators read a slice of the gradient's channels at a fifth of the rate on a CPU; on CUDA
    the copies take longer than they save (H100).
    """
    if maps[0].is_cuda:
        return torch.cat(maps, 1)
    parts = [part.view_as(part) if part.requires_grad else part for part in maps]
    for part in parts:
        if part.requires_grad:
            part.register_hook(_contiguous)  # type: ignore[no-untyped-call]  # torch's
    return torch.cat(parts, 1)


def _contiguous(gradient: Tensor) -> Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


class UNet(nn.Module):
    """U-Net of an encoder with five feature maps, each of half the size of the one before."""

    make_encoder: ClassVar[type[nn.Module]]
    encoder_widths: ClassVar[tuple[int, ...]]
    decoder_widths: ClassVar[tuple[int, ...]]

    def __init__(self, bands: int, channels: int) -> None:
        super().__init__()
        self.encoder = self.make_encoder(bands)
        widths = (self.encoder_widths[-1], *self.decoder_widths)
        skips = (*reversed(self.encoder_widths[:-1]), 0)
        self.decoder = nn.ModuleList(
            DecoderStep(*step) for step in zip(widths[:-1], skips, widths[1:], strict=True)
        )
        self.head = nn.Conv2d(widths[-1], channels, 3, 1, 1)
        if not self.head.weight.is_meta:  # else weights of a checkpoint follow
            self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d | UpConv):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.head.weight, std=0.01)
        set_prior(self, torch.full((self.head.out_channels,), _PRIOR))

    def forward(self, image: Tensor) -> Tensor:
        """Return logits (n, channels, y, x) of a normalised image (n, band, y, x)."""
        if image.shape[-2] % STRIDE or image.shape[-1] % STRIDE:
            raise UsageError(
                f"an image of {image.shape[-2]} x {image.shape[-1]} pixels cannot be halved five "
                f"times: pad its sides to a multiple of {STRIDE}"
            )
        *skips, x = self.encoder(image)
        for step, skip in zip(self.decoder, [*reversed(skips), None], strict=True):
            x = step(x, skip)
        logits: Tensor = self.head(x)
        return logits


class ResNetUNet(UNet):
    """U-Net with a ResNet34 encoder."""

    make_encoder = ResNet34
    encoder_widths = (64, 64, 128, 256, 512)
    decoder_widths = (256, 128, 64, 64, 32)


class SmallUNet(UNet):
    """U-Net of 2 million parameters: a step takes a CPU a fifth of the time of `ResNetUNet`."""

    make_encoder = SmallEncoder
    encoder_widths = (24, 48, 96, 144, 192)
    decoder_widths = (144, 96, 48, 24, 16)


def set_prior(model: nn.Module, share: Tensor, *, exclusive: bool = False) -> None:
    """Set the bias of an untrained model's head so that it predicts the given probabilities.

    Without it the first steps are spent on learning that roads are rare (Lin et al. 2017, "Focal
    loss", section 4.1). A model without a convolution named ``head`` is not changed.
    """
    head = getattr(model, "head", None)
    if isinstance(head, nn.Conv2d) and head.bias is not None:
        with torch.no_grad():
            known = share.to(head.bias)
            head.bias.copy_(
                known.clamp(min=1e-4).log() if exclusive else torch.logit(known, eps=1e-4)
            )
