"""INT8: the tiles that it is calibrated on, and the layers that it leaves in float."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from torch import Tensor, nn

from geoprep.errors import UsageError
from loaders import BatchLoader
from training.checkpoint import ModelInfo
from training.data import tiles_of
from training.runners.graph import inference_module
from training.runners.runner import pad_image


def calibration_tiles(
    stores: Sequence[str | Path], info: ModelInfo, count: int, seed: int
) -> list[Tensor]:
    """Return at most ``count`` training tiles in random order, uint8 (1, band, y, x) each."""
    tiles = tiles_of(info, stores)
    loader = BatchLoader(tiles, 1, shuffle=True, seed=seed, drop_last=False)
    # The loader reuses its buffers.
    return [pad_image(batch.image).clone() for batch in islice(loader, count)]


def named_layers(network: nn.Module, info: ModelInfo, names: Iterable[str]) -> tuple[str, ...]:
    """Return the layers with weights that are named, or are part of a named module, in order.

    Their names are those of the module that is exported, such as ``network.head``.
    """
    weighted = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
    modules = inference_module(network, info).named_modules()
    layers = [layer for layer, module in modules if isinstance(module, weighted)]
    chosen: set[str] = set()
    for name in names:
        meant = {layer for layer in layers if layer == name or layer.startswith(f"{name}.")}
        if not meant:
            raise UsageError(
                f"`keep_float` {name}: no such layer. The layers are {', '.join(layers)}"
            )
        chosen |= meant
    return tuple(layer for layer in layers if layer in chosen)
