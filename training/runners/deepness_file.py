"""Models as files for Deepness, a plugin of QGIS: ONNX with metadata, which the plugin reads.

Its rules, from the source of PUTvision/qgis-plugin-deepness: one input, float32 (n, band, y, x),
bytes divided by 255 and standardised; one output, (n, class, y, x), of equal sides; fixed sizes;
metadata, each a JSON text. Values of the output below the threshold become 0, then the largest
class counts; a single channel makes two classes, where it is 0 and where not.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from geoprep.building.options import parse_rescale
from geoprep.errors import UsageError
from geoprep.storage.output_files import replaced
from training.checkpoint import ModelInfo
from training.runners.decoding import chosen_threshold
from training.runners.export_record import required_module
from training.runners.graph import exported, inference_module
from training.runners.onnx_file import onnx_of

_SIDE = 512
_OVERLAP_PERCENT = 10


class _UnitImages(nn.Module):
    """Probabilities of roads or classes, (n, class, y, x), of images from 0 to 1."""

    def __init__(self, network: nn.Module, info: ModelInfo) -> None:
        super().__init__()
        self.module = inference_module(network, info)
        self.first = 0 if info.has_classes else info.channels - 1  # the last channel is any road

    def forward(self, image: Tensor) -> Tensor:
        """Return fp32 (n, class, y, x), contiguous, of fp32 (n, band, y, x)."""
        probabilities: Tensor = self.module(image * 255)[..., self.first :]
        return probabilities.permute(0, 3, 1, 2).contiguous()


def stretch_note(info: ModelInfo) -> str:
    """Return what makes bytes of a layer as the model expects them; empty if they are left alone.

    Raises
    ------
    UsageError
        Each training image was stretched by its own percentiles, which no layer is.
    """
    fixed = parse_rescale(info.rescale)
    limits = info.limits if fixed is None else [fixed] * len(info.bands)
    if not limits:
        raise UsageError(
            f"the training images were rescaled by the rule {info.rescale}, each in its own way, "
            "and Deepness gives the model the bytes of a layer. Train on a store that was built "
            "with --rescale none or LO,HI"
        )
    if fixed == (0, 255):
        return ""
    scales = (f"-scale_{band} {lo:g} {hi:g} 0 255" for band, (lo, hi) in enumerate(limits, 1))
    return (
        f"make its layer with: gdal_translate -ot Byte {' '.join(scales)} IMAGE LAYER.tif\n"
        "(if bands of IMAGE state a scale or offset, take the result of gdal_translate -ot Float32 "
        "-unscale IMAGE UNSCALED.tif instead of it)"
    )


def write(path: Path, network: nn.Module, info: ModelInfo) -> None:
    """Write the ``.onnx`` file of a model of roads or classes, for batches of one tile."""
    stretch_note(info)
    onnx = required_module("onnx", "a .onnx file")
    bands, (x, y) = len(info.bands), info.gsd_m
    example = torch.rand(1, bands, _SIDE, _SIDE)
    model = onnx_of(exported(_UnitImages(network, info).eval(), info, example), example)
    names = info.class_names if info.has_classes else ("background", "road")
    metadata = {
        "model_type": "Segmentor",
        "class_names": {str(number): name for number, name in enumerate(names)},
        "resolution": 100 * (x * y) ** 0.5,
        "tile_size": _SIDE,
        "tiles_overlap": _OVERLAP_PERCENT,
        "seg_thresh": 0 if info.has_classes else chosen_threshold(info),
        "seg_small_segment": 0,
        # The model normalises the image itself.
        "standardization_mean": [0.0] * bands,
        "standardization_std": [1.0] * bands,
    }
    onnx.helper.set_model_props(model, {key: json.dumps(metadata[key]) for key in metadata})
    with replaced(path) as partial:
        partial.write_bytes(model.SerializeToString())
