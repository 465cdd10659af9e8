"""Tiles that INT8 is calibrated on, and the layers that INT8 harms most.

INT8 is simulated in the float model: input (one scale) and kernel (one scale per output channel) of
a layer are rounded, so that the result holds for every format. A BatchNorm makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from geoprep.errors import UsageError
from loaders import BatchLoader
from training.checkpoint import ModelInfo
from training.data import tiles_of
from training.inference.graph import inference_module
from training.inference.runner import pad_image

BOUND = 0.01
"""Largest mean difference between the probabilities of INT8 and of the float model.

A choice: two and a half of the steps of 1 / 255 that predictions have. The command
`training.evaluate --compare` measures the effect on roads.
"""

AUTO = "auto"
TRIED, SIDE = 4, 192
"""Number of windows that each layer is tested on, and their largest side in pixels."""

_Layer = nn.Conv2d | nn.ConvTranspose2d | nn.Linear
_OUTPUTS = {nn.Conv2d: 0, nn.ConvTranspose2d: 1, nn.Linear: 0}
"""Axis of the output channels in a kernel."""


def calibration_tiles(
    stores: Sequence[str | Path], info: ModelInfo, count: int, seed: int
) -> list[Tensor]:
    """Return at most ``count`` training tiles in random order, uint8 (1, band, y, x) each."""
    tiles = tiles_of(info, stores)
    loader = BatchLoader(tiles, 1, shuffle=True, seed=seed, drop_last=False)
    # The loader reuses its buffers.
    return [pad_image(batch.image).clone() for batch in islice(loader, count)]


def layers_of(module: nn.Module) -> dict[str, _Layer]:
    """Return the layers that INT8 quantises, by name, such as ``network.head``."""
    return {name: part for name, part in module.named_modules() if isinstance(part, _Layer)}


def named_layers(network: nn.Module, info: ModelInfo, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of all layers that are named, or are part of a named module."""
    layers = list(layers_of(inference_module(network, info)))
    found: set[str] = set()
    for name in names:
        meant = {layer for layer in layers if layer == name or layer.startswith(f"{name}.")}
        if not meant:
            raise UsageError(
                f"`keep_float` {name}: no such layer. The layers are {', '.join(layers)}"
            )
        found |= meant
    return tuple(layer for layer in layers if layer in found)


def layers_to_keep(
    network: nn.Module, info: ModelInfo, tiles: Sequence[Tensor], bound: float = BOUND
) -> tuple[tuple[str, ...], float]:
    """Return the layers to leave in float, and the mean difference of probabilities then.

    Each layer is first rounded alone. Then all are rounded, and those with the largest
    difference alone are left in float one after the other, until the difference is within the
    bound.
    """
    module = inference_module(network, info)
    layers, windows = layers_of(module), [_middle(tile) for tile in tiles[:TRIED]]
    ranges, expected = _observed(module, layers.values(), windows)

    def apart(names: Iterable[str]) -> float:
        """Return the mean difference of probabilities if these layers are rounded."""
        with ExitStack() as stack, torch.no_grad():
            for layer in (layers[name] for name in names):
                if layer in ranges:  # a layer that is never called changes nothing
                    stack.enter_context(_rounded(layer, *ranges[layer]))
            found = torch.cat([module(window).flatten() for window in windows])
        return float((found - expected).abs().mean(dtype=torch.float64))

    ranked = sorted(layers, key=lambda name: apart([name]), reverse=True)
    count, cost = 0, apart(ranked)
    while cost > bound and count < len(ranked):
        count += 1
        cost = apart(ranked[count:])
    return tuple(ranked[:count]), cost


def _middle(tile: Tensor) -> Tensor:
    """Return the centre of a tile, at most `SIDE` pixels wide."""
    rows, columns = (min(side, SIDE) for side in tile.shape[2:])
    top, left = (tile.shape[2] - rows) // 2, (tile.shape[3] - columns) // 2
    return tile[:, :, top : top + rows, left : left + columns]


@torch.no_grad()
def _observed(
    module: nn.Module, layers: Iterable[_Layer], tiles: Sequence[Tensor]
) -> tuple[dict[nn.Module, tuple[float, float]], Tensor]:
    """Return the range of each layer's input, 0 included, and all outputs of the model."""
    ranges: dict[nn.Module, tuple[float, float]] = {}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        low, high = ranges.get(layer, (0.0, 0.0))
        ranges[layer] = min(low, float(inputs[0].min())), max(high, float(inputs[0].max()))

    handles = [layer.register_forward_pre_hook(note) for layer in layers]
    outputs = torch.cat([module(tile).flatten() for tile in tiles])
    for handle in handles:
        handle.remove()
    return ranges, outputs


@contextmanager
def _rounded(layer: _Layer, low: float, high: float) -> Iterator[None]:
    """Round the input of a layer to 0..255 and its kernel to -127..127, as INT8 does."""
    scale = max((high - low) / 255, 1e-12)
    zero = round(-low / scale)

    def round_input(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        first, *rest = inputs
        return (torch.fake_quantize_per_tensor_affine(first, scale, zero, 0, 255), *rest)

    kernel = layer.weight.data
    axis = _OUTPUTS[type(layer)]
    most = kernel.transpose(0, axis).flatten(1).abs().amax(1)
    scales, zeros = (most / 127).clamp_min(1e-12), torch.zeros(len(most), dtype=torch.int32)
    layer.weight.data = torch.fake_quantize_per_channel_affine(
        kernel, scales, zeros, axis, -127, 127
    )
    handle = layer.register_forward_pre_hook(round_input)
    try:
        yield
    finally:
        handle.remove()
        layer.weight.data = kernel
