"""The tiles that INT8 takes its ranges from, and which layers it harms too much.

INT8 is imitated in the float network: the input of a layer and its kernel are rounded to the 256
values that a quantiser would leave them, the input by one scale per tensor, the kernel by one per
output channel. So no format has to be built to find out, and what is found holds for all of them.
A BatchNorm behind a convolution changes nothing of it: it scales whole output channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from geoprep.errors import UsageError
from loaders import BatchLoader, DevicePrep, Normalize, SpeedTarget
from training.checkpoint import ModelInfo
from training.data import tiles_of
from training.inference.graph import inference_module

BOUND = 0.01
"""Mean difference of probabilities from the float network that INT8 may have.

A choice, not a measurement: maps hold probabilities in steps of 1 / 255, and this is two and a half
of them. It says nothing of roads; `training.evaluate --compare` does.
"""

AUTO = "auto"
TRIED, SIDE = 4, 192
"""Windows that each layer is tried on, cut from the middle of tiles, and their side at most."""

_Layer = nn.Conv2d | nn.ConvTranspose2d | nn.Linear
_OUTPUTS = {nn.Conv2d: 0, nn.ConvTranspose2d: 1, nn.Linear: 0}
"""Axis of a kernel along which its output channels lie."""


def calibration_tiles(
    stores: Sequence[str | Path], info: ModelInfo, count: int, seed: int
) -> list[Tensor]:
    """Return tiles that a network was trained on, drawn by the loader, uint8 (1, band, y, x) each.

    Parameters
    ----------
    stores
        One or more.
    info
        Of the network: bands, level, folds.
    count
        How many; fewer where there are not as many.
    seed
        Decides which.

    Raises
    ------
    StoreError, UsageError
        A store cannot be used, or does not belong to the network.
    """
    tiles = tiles_of(info, stores)
    pad = DevicePrep(Normalize(info.mean, info.std), SpeedTarget("binary")).pad
    loader = BatchLoader(tiles, 1, shuffle=True, seed=seed, drop_last=False)
    # Buffers of the loader are used again.
    return [pad(batch.image).clone() for batch in islice(loader, count)]


def layers_of(module: nn.Module) -> dict[str, _Layer]:
    """Return the layers that a quantiser rounds, by name, such as ``network.head``."""
    return {name: part for name, part in module.named_modules() if isinstance(part, _Layer)}


def named_layers(network: nn.Module, info: ModelInfo, names: Iterable[str]) -> tuple[str, ...]:
    """Return the layers that names mean: each a layer, or a module that has some.

    Parameters
    ----------
    network
        Trained, in eval mode.
    info
        Of its checkpoint.
    names
        As `layers_of` gives them.

    Raises
    ------
    UsageError
        A name is none of the network's.
    """
    layers = list(layers_of(inference_module(network, info)))
    found: set[str] = set()
    for name in names:
        meant = {layer for layer in layers if layer == name or layer.startswith(f"{name}.")}
        if not meant:
            raise UsageError(f"--keep-float {name}: no such layer; there are {', '.join(layers)}")
        found |= meant
    return tuple(layer for layer in layers if layer in found)


def layers_to_keep(
    network: nn.Module, info: ModelInfo, tiles: Sequence[Tensor], bound: float = BOUND
) -> tuple[tuple[str, ...], float]:
    """Return the layers to leave in float, and what INT8 then costs.

    Each layer is first rounded alone. Then all of them are, and the one that did most harm alone is
    given back its floats, and the next, until the difference is within the bound.

    Parameters
    ----------
    network
        Trained, in eval mode.
    info
        Of its checkpoint.
    tiles
        uint8 (n, band, y, x) each; the first `TRIED` are used.
    bound
        Most that the mean difference of probabilities may be.

    Returns
    -------
    tuple
        Names, worst first, and the mean difference of probabilities with them in float.
    """
    module = inference_module(network, info)
    layers, windows = layers_of(module), [_middle(tile) for tile in tiles[:TRIED]]
    ranges, expected = _watched(module, layers.values(), windows)

    def apart(names: Iterable[str]) -> float:
        """Return the mean difference of probabilities where these layers are rounded."""
        with ExitStack() as stack, torch.no_grad():
            for layer in (layers[name] for name in names):
                if layer in ranges:  # one that is never called changes nothing
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
    """Return the middle of a tile, in whole strides of the network."""
    rows, columns = (min(side, SIDE) for side in tile.shape[2:])
    top, left = (tile.shape[2] - rows) // 2, (tile.shape[3] - columns) // 2
    return tile[:, :, top : top + rows, left : left + columns]


@torch.no_grad()
def _watched(
    module: nn.Module, layers: Iterable[_Layer], tiles: Sequence[Tensor]
) -> tuple[dict[nn.Module, tuple[float, float]], Tensor]:
    """Return the least and greatest number, or 0, that goes into each layer, and all answers."""
    ranges: dict[nn.Module, tuple[float, float]] = {}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        low, high = ranges.get(layer, (0.0, 0.0))
        ranges[layer] = min(low, float(inputs[0].min())), max(high, float(inputs[0].max()))

    handles = [layer.register_forward_pre_hook(note) for layer in layers]
    answers = torch.cat([module(tile).flatten() for tile in tiles])
    for handle in handles:
        handle.remove()
    return ranges, answers


@contextmanager
def _rounded(layer: _Layer, low: float, high: float) -> Iterator[None]:
    """Let a layer compute with the numbers that INT8 has: inputs 0..255, kernels -127..127."""
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
