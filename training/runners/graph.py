"""The module that predicts: uint8 in, probabilities out. The form that is exported and compiled.

Kernels include the BatchNorm after them, and those of `UpConv` are computed once: a quantiser sees
plain weights. The last convolution computes two pixels at a time. Any number and size of windows.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from loaders import Normalize
from training.checkpoint import ModelInfo
from training.model.unet import (
    STRIDE,
    BasicBlock,
    DecoderStep,
    ResNet34,
    SmallEncoder,
    UNet,
    UpConv,
)

IMAGE, PROBABILITY = "image", "probability"
"""Names of the input and the output in formats that name them."""

_EXAMPLE = (2, 4 * STRIDE, 6 * STRIDE)
_NORMS = {"conv1": "bn1", "conv2": "bn2", "up": "up_bn", "mix": "mix_bn"}
"""Convolutions of the modules of `unet`, and the BatchNorm after each."""
_MOST_WINDOWS, _MOST_STRIDES = 1024, 1024


class Probabilities(nn.Module):
    """Normalisation, model and sigmoid or softmax in one module: they compile together."""

    def __init__(self, network: nn.Module, info: ModelInfo) -> None:
        super().__init__()
        self.normalize = Normalize(info.mean, info.std)
        self.network = network
        self.exclusive = info.has_classes

    def forward(self, image: Tensor) -> Tensor:
        """Return fp32 (n, y, x, channel), contiguous, of uint8 (n, band, y, x)."""
        logits: Tensor = self.network(self.normalize(image))
        # In fp32: steps of bf16 are 0.004 near 1, as large as those of the predictions.
        if self.exclusive:
            return logits.permute(0, 2, 3, 1).float().softmax(dim=-1).contiguous()
        return logits.permute(0, 2, 3, 1).float().sigmoid_().contiguous()


class PairedHead(nn.Conv2d):
    """A 3 x 3 convolution to few channels, for two neighbours of a row at a time.

    Eight channels fill half of a vector, and an eighth of a tile of AMX. A third more products take
    0.7 to 0.8 of the time (INT8 of OpenVINO, AVX512_VNNI and AMX).
    """

    def __init__(self, head: nn.Conv2d) -> None:
        super().__init__(head.in_channels, 2 * head.out_channels, (3, 4), (1, 2), 1)
        assert head.bias is not None
        shifted = [functional.pad(head.weight, sides) for sides in ((0, 1), (1, 0))]
        self.weight = nn.Parameter(torch.cat(shifted))
        self.bias = nn.Parameter(head.bias.repeat(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, channels, y, x), whose memory is in the order (n, y, x, channel)."""
        n, _, rows, columns = x.shape
        pairs = super().forward(x).permute(0, 2, 3, 1)
        return pairs.reshape(n, rows, columns, self.out_channels // 2).permute(0, 3, 1, 2)


def folded(network: nn.Module) -> nn.Module:
    """Return a copy in which each convolution and its BatchNorm are one; same function."""
    result = copy.deepcopy(network).eval()
    if isinstance(result, UNet):
        result.head = PairedHead(result.head)
    for module in result.modules():
        if isinstance(module, BasicBlock | ResNet34 | SmallEncoder | DecoderStep):
            layers = dict(module.named_children())
            for name, norm in _NORMS.items():
                if norm in layers:
                    setattr(module, name, _with_batch_norm(layers[name], layers[norm]))
                    setattr(module, norm, nn.Identity())
            if "downsample" in layers:
                module.downsample = _with_batch_norm(*layers["downsample"].children())
    return result


@torch.no_grad()
def _with_batch_norm(layer: nn.Module, norm: nn.Module) -> nn.Module:
    """Return one convolution that does what both layers do."""
    assert isinstance(norm, nn.BatchNorm2d)
    if isinstance(layer, nn.Conv2d):
        return fuse_conv_bn_eval(layer, norm)
    assert isinstance(layer, UpConv)
    outputs, inputs = layer.weight.shape[:2]
    up = nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1, bias=False).eval()
    up.weight = nn.Parameter(layer.kernel())
    return fuse_conv_bn_eval(up, norm, transpose=True)


def inference_module(network: nn.Module, info: ModelInfo) -> Probabilities:
    """Return the module to export: uint8 (n, band, y, x) -> fp32 (n, y, x, channel)."""
    module = Probabilities(folded(network), info).eval()
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs know this argument alone
    return module


def example_image(info: ModelInfo) -> Tensor:
    """Return random images with the model's bands, uint8 (n, band, y, x), channels last."""
    count, rows, columns = _EXAMPLE
    image = torch.randint(0, 256, (count, len(info.bands), rows, columns), dtype=torch.uint8)
    return image.contiguous(memory_format=torch.channels_last)


def exported(module: nn.Module, info: ModelInfo, example: Tensor | None = None) -> ExportedProgram:
    """Return the graph of a module, for images of any number and size, or those of an example."""
    count = Dim("n", min=1, max=_MOST_WINDOWS)
    rows, columns = (STRIDE * Dim(name, min=1, max=_MOST_STRIDES) for name in "yx")
    free = ({0: count, 2: rows, 3: columns},)
    with torch.no_grad():
        if example is None:
            program = torch.export.export(module, (example_image(info),), dynamic_shapes=free)
        else:
            program = torch.export.export(module, (example,))
    # Stack traces name files of this machine, and would be in the exported file.
    for part in program.graph_module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program
