"""A ResNet34 encoder with a UNet decoder: the model of the step that loading is measured against.

The encoder follows He et al. (2016), table 1; the decoder halves channels at every level, joins the
encoder's features of the same size, and has two convolutions a level (Ronneberger et al., 2015).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_BLOCKS = (3, 4, 6, 3)
_WIDTHS = (64, 128, 256, 512)
_DECODER = (256, 128, 64, 32, 16)


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class _Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _conv(inputs, outputs, 3, stride)
        self.second = nn.Sequential(
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.second(self.first(x)) + self.shortcut(x), inplace=True)


class ResNet34UNet(nn.Module):
    """Logits for every pixel.

    Parameters
    ----------
    bands
        Of the image.
    channels
        Of the target.
    """

    def __init__(self, bands: int, channels: int) -> None:
        super().__init__()
        self.stem = _conv(bands, _WIDTHS[0], 7, 2)
        stages = []
        inputs = _WIDTHS[0]
        for number, (blocks, width) in enumerate(zip(_BLOCKS, _WIDTHS, strict=True)):
            stride = 1 if number == 0 else 2
            rest = [_Residual(width, width, 1) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(_Residual(inputs, width, stride), *rest))
            inputs = width
        self.stages = nn.ModuleList(stages)
        joined = (*_WIDTHS[-2::-1], _WIDTHS[0], 0)
        self.decoder = nn.ModuleList()
        for skip, width in zip(joined, _DECODER, strict=True):
            self.decoder.append(nn.Sequential(_conv(inputs + skip, width), _conv(width, width)))
            inputs = width
        self.head = nn.Conv2d(inputs, channels, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Return (n, channel, y, x) for an image (n, band, y, x) whose sides divide by 32."""
        x = self.stem(image)
        features = [x]
        x = functional.max_pool2d(x, 3, 2, 1)
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        x = features.pop()
        for block in self.decoder:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            if features:
                x = torch.cat([x, features.pop()], dim=1)
            x = block(x)
        logits: Tensor = self.head(x)
        return logits
