"""What a map says about itself: its bands, its tags, and how it was made."""

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
from training.checkpoint import Facts
from training.prediction.cog.directory import TILE, Tags, read_tags
from training.prediction.images import Source

SIGNATURE_TAG = "PREDICTION"


def check_targets(facts: Facts) -> None:
    """Raise UsageError for a checkpoint whose channels are no probabilities of roads."""
    if facts.targets not in ("bins", "binary"):
        raise UsageError(
            f"the checkpoint was trained on {facts.targets} targets: maps are made from bins "
            "(probabilities and speed) and binary (probabilities)"
        )


def band_names(facts: Facts) -> list[str]:
    """Return the name of every band of a map: ``road``, ``speed``, and one per speed bin."""
    classes = len(facts.class_mph)
    if not classes:
        return ["road"]
    if classes == BIN_COUNT:
        names = [f"road, {bin_label(i)} mph" for i in range(1, classes + 1)]
    else:
        names = [f"road, about {mph:g} mph" for mph in facts.class_mph]
    return ["road", "speed", *names]


def map_tags(source: Source, facts: Facts, signed: dict[str, Any]) -> Tags:
    """Return the TIFF tags of a map, all but the places of its tiles.

    Parameters
    ----------
    source
        The image.
    facts
        Of the network.
    signed
        The map's signature, see `training.prediction.mapping.Mapper.signature`.
    """
    names = band_names(facts)
    is_speed = [name == "speed" for name in names]
    first = len(names) - len(facts.class_mph) + 1
    classes = [
        {"band": i, "name": names[i - 1], "mph": mph}
        for i, mph in enumerate(facts.class_mph, start=first)
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
                NETWORK=facts.network,
                ROAD_THRESHOLD=f"{signed['threshold']:g}",
                CLASSES=json.dumps(classes),
            )
        return read_tags(bytes(memory.getbuffer()))


def found_signature(target: Path) -> dict[str, Any] | None:
    """Return the signature of a file, or None where it is no map of ours."""
    try:
        with rasterio.open(target) as dataset:
            found = json.loads(dataset.tags().get(SIGNATURE_TAG, "null"))
    except (RasterioError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def difference(
    found: dict[str, Any] | None, wanted: dict[str, Any], loose: Collection[str] = ()
) -> str:
    """Return in words how a file that exists differs from the map that would be made.

    Parameters
    ----------
    found, wanted
        Signatures.
    loose
        Keys that may differ.

    Returns
    -------
    str
        Empty where it does not.
    """
    if found is None:
        return "was not made by training.predict"
    keys = [key for key in wanted if key not in loose and found.get(key) != wanted[key]]
    if not keys:
        return ""
    if "format" in keys:
        return "was made by another version of geoprep"
    if "checkpoint" in keys:
        return "was made from another checkpoint"
    if keys == ["image"]:
        return "was made from another version of the image"
    return f"was made with other options ({', '.join(keys)})"
