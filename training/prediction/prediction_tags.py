"""The TIFF tags of a prediction: its bands, and the signature of how it was made."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import rasterio
from rasterio.errors import RasterioError
from rasterio.io import MemoryFile

from geoprep import __version__
from geoprep.errors import UsageError
from geoprep.palette import bin_label
from geoprep.speed import BIN_COUNT, NODATA
from training.checkpoint import ModelInfo
from training.prediction.cog.directory import TILE, Tags, read_tags
from training.prediction.images import ImageSource

SIGNATURE_TAG = "PREDICTION"


def check_targets(info: ModelInfo) -> None:
    """Raise UsageError unless the channels of a model are probabilities of roads."""
    if info.targets not in ("bins", "binary"):
        raise UsageError(
            f"the model was trained on {info.targets} targets, which cannot be predicted: use a "
            "model of bins (probabilities and speed) or binary targets (probabilities)"
        )


def band_names(info: ModelInfo) -> list[str]:
    """Return the names of a prediction's bands: ``road``, ``speed``, and one per speed bin."""
    classes = len(info.class_mph)
    if not classes:
        return ["road"]
    if classes == BIN_COUNT:
        names = [f"road, {bin_label(i)} mph" for i in range(1, classes + 1)]
    else:
        names = [f"road, about {mph:g} mph" for mph in info.class_mph]
    return ["road", "speed", *names]


def tiff_tags(source: ImageSource, info: ModelInfo, signed: dict[str, Any]) -> Tags:
    """Return the TIFF tags of a prediction, without the offsets of its tiles.

    Parameters
    ----------
    source
        The image.
    info
        What the model was trained for.
    signed
        Signature of the prediction, see `training.prediction.predictor.Predictor.signature`.
    """
    names = band_names(info)
    is_speed = [name == "speed" for name in names]
    first = len(names) - len(info.class_mph) + 1
    classes = [
        {"band": i, "name": names[i - 1], "mph": mph}
        for i, mph in enumerate(info.class_mph, start=first)
    ]
    profile = {
        **{"driver": "GTiff", "tiled": True, "blockxsize": TILE, "blockysize": TILE},
        **{"sparse_ok": True, "bigtiff": "no", "interleave": "band", "photometric": "minisblack"},
        **{"width": source.width, "height": source.height, "count": len(names), "dtype": "uint8"},
        **{"crs": source.crs, "transform": source.transform, "nodata": NODATA, "alpha": "no"},
        "compress": signed["compression"],
    }
    with MemoryFile() as memory:
        with memory.open(**profile) as dataset:
            dataset.descriptions = names
            dataset.scales = [1.0 if speed else 1 / 255 for speed in is_speed]
            dataset.units = ["mph" if speed else "probability" for speed in is_speed]
            dataset.update_tags(
                **{SIGNATURE_TAG: json.dumps(signed)},
                TIFFTAG_SOFTWARE=f"geoprep {__version__}",
                SOURCE=source.name,
                SOURCE_SIZE="{} {}".format(*source.lengths),
                NETWORK=info.model,
                ROAD_THRESHOLD=f"{signed['threshold']:g}",
                CLASSES=json.dumps(classes),
            )
        return read_tags(bytes(memory.getbuffer()))


def found_signature(target: Path) -> dict[str, Any] | None:
    """Return the signature of a prediction; None for any other file."""
    try:
        with rasterio.open(target) as dataset:
            found = json.loads(dataset.tags().get(SIGNATURE_TAG, "null"))
    except (RasterioError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def difference(
    found: dict[str, Any] | None, wanted: dict[str, Any], loose: Collection[str] = ()
) -> str:
    """Return how an existing file differs from the prediction that is requested.

    Parameters
    ----------
    found, wanted
        Signatures.
    loose
        Keys that may differ.

    Returns
    -------
    str
        The end of a sentence about the file; empty if it does not differ.
    """
    if found is None:
        return "was not made by training.predict"
    keys = [key for key in wanted if key not in loose and found.get(key) != wanted[key]]
    if not keys:
        return ""
    if "format" in keys:
        return "was made by another version of geoprep"
    if "checkpoint" in keys:
        return "was made with another checkpoint or model file"
    if keys == ["image"]:
        return "was made from another version of the image"
    return f"was made with other options ({', '.join(keys)})"
