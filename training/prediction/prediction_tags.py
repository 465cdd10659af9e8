"""The TIFF tags of a prediction: its bands, and the signature of how it was made."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import rasterio
from affine import Affine
from rasterio.errors import RasterioError
from rasterio.io import DatasetWriter

from geoprep import __version__
from geoprep.cog.spool import Shape
from geoprep.cog.tiff import Tags, described
from geoprep.palette import bin_label
from geoprep.speed import NODATA
from training.checkpoint import ModelInfo
from training.prediction.images import ImageSource
from training.prediction.predict_options import PredictOptions

SIGNATURE_TAG = "PREDICTION"
SPREAD = "spread"
"""Name of the band with the standard deviation of probabilities over several models."""


def band_names(info: ModelInfo, options: PredictOptions, *, spread: bool = False) -> list[str]:
    """Return the names of a prediction's bands, with the ``spread`` of several models."""
    last = [SPREAD] * spread
    if info.has_classes:
        confidence = ["confidence"] * options.confidence
        return ["class", *confidence, *info.class_names * options.probabilities, *last]
    names = [f"road, {bin_label(i)} mph" for i, _ in enumerate(info.class_mph, start=1)]
    return ["road", *["speed"] * bool(names), *names * (options.outputs == "all"), *last]


def tiff_tags(
    source: ImageSource, info: ModelInfo, names: Sequence[str], signed: dict[str, Any]
) -> Tags:
    """Return the TIFF tags of a prediction, without the offsets of its tiles.

    ``names`` are those of its bands, and ``signed`` is its signature. A file with one band of
    classes has a palette. TIFF has none for several bands.
    """
    has_palette = info.has_classes and len(names) == 1
    top, left, *_ = source.extent
    units = ["class" if info.has_classes else "probability"]
    units += ["mph" if info.class_mph and i == 1 else "probability" for i in range(1, len(names))]
    if info.has_classes:
        contents = {
            "CLASS_NAMES": json.dumps(info.class_names),
            "CLASS_COLORS": json.dumps(info.class_colors),
        }
    else:
        speeds = [name for name in names[2:] if name != SPREAD]
        bins = enumerate(zip(speeds, info.class_mph, strict=False), start=3)
        classes = [{"band": i, "name": name, "mph": mph} for i, (name, mph) in bins]
        contents = {"ROAD_THRESHOLD": f"{signed['threshold']:g}", "CLASSES": json.dumps(classes)}
    origin = {
        SIGNATURE_TAG: json.dumps(signed),
        "TIFFTAG_SOFTWARE": f"geoprep {__version__}",
        "SOURCE": source.name,
        "SOURCE_SIZE": "{} {}".format(*source.part_lengths),
        "NETWORK": info.model,
    }

    def describe(dataset: DatasetWriter) -> None:
        dataset.descriptions = names
        dataset.scales = [1 / 255 if unit == "probability" else 1.0 for unit in units]
        dataset.units = units
        if has_palette:
            rgb = info.classes.rgb.tolist()
            dataset.write_colormap(1, {i: (*colour, 255) for i, colour in enumerate(rgb)})
        # In this order, which the file keeps.
        dataset.update_tags(**(contents | origin if info.has_classes else origin | contents))

    return described(
        *(Shape(len(names), *source.shape), signed["compression"], describe),
        nodata=NODATA,
        crs=source.crs,
        transform=source.transform * Affine.translation(left, top),
        photometric="palette" if has_palette else "minisblack",
    )


def signature_of(target: Path) -> dict[str, Any] | None:
    """Return the signature of a prediction; None for any other file."""
    try:
        with rasterio.open(target) as dataset:
            signature = json.loads(dataset.tags().get(SIGNATURE_TAG, "null"))
    except (RasterioError, ValueError):
        return None
    return signature if isinstance(signature, dict) else None


def difference(
    signed: dict[str, Any], requested: dict[str, Any], loose: Collection[str] = ()
) -> str:
    """Return how a file differs from the prediction requested, as the end of a sentence; or "".

    Keys in ``loose`` may differ.
    """
    names = {**requested, **signed}
    keys = [key for key in names if key not in loose and signed.get(key) != requested.get(key)]
    if not keys:
        return ""
    if "format" in keys:
        return "was made by another version of geoprep"
    if "checkpoint" in keys:
        return "was made with another checkpoint or model file"
    if keys == ["image"]:
        return "was made from another version of the image"
    return f"was made with other options ({', '.join(keys)})"
