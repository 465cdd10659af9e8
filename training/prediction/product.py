"""What a map says about itself: its bands, its tags, and how it was made."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rasterio
import xxhash
from rasterio.errors import RasterioError

from geoprep import __version__
from geoprep.errors import UsageError
from geoprep.speed import BIN_COUNT, NO_DATA
from geoprep.views import bin_label
from training.checkpoint import Facts
from training.prediction.cog.directory import Compression, Tags, gdal_tags
from training.prediction.source import Source, Wishes
from training.prediction.tta import Augmentation

RECIPE_TAG = "PREDICTION"
_READ = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that the pixels of a map depend on beside the image.

    Attributes
    ----------
    checkpoint
        Hash of its file, see `file_hash`.
    wishes
        How the image is read.
    window, overlap
        In pixels of the network's grid.
    tta
        Views averaged over.
    threshold
        Least probability of any road for a speed.
    precision
        Of the network: ``bfloat16`` or ``float32``.
    compression
        Of the map's tiles.
    """

    checkpoint: str
    wishes: Wishes
    window: int
    overlap: int
    tta: Augmentation
    threshold: float
    precision: str
    compression: Compression

    def plain(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        values = asdict(self)
        wishes = values.pop("wishes")
        return {**values, **wishes, "bands": list(wishes["bands"])}


def file_hash(path: Path) -> str:
    """Return XXH3-128 of a file's bytes, in hexadecimal digits."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while data := file.read(_READ):
            digest.update(data)
    return str(digest.hexdigest())


def check_targets(facts: Facts) -> None:
    """Raise UsageError for a checkpoint whose channels are no probabilities of roads."""
    if facts.targets not in ("bins", "binary"):
        raise UsageError(
            f"the checkpoint was trained on {facts.targets} targets: maps are made from bins "
            "(probabilities and speed) and binary (probabilities)"
        )


def band_names(facts: Facts) -> list[str]:
    """Return the name of every band of a map."""
    classes = len(facts.class_mph)
    if not classes:
        return ["road"] * facts.channels
    if classes == BIN_COUNT:
        names = [f"road, {bin_label(i)} mph" for i in range(1, classes + 1)]
    else:
        names = [f"road, about {mph:g} mph" for mph in facts.class_mph]
    return [*names, "road", "speed"]


def map_tags(source: Source, facts: Facts, recipe: Recipe) -> Tags:
    """Return the TIFF tags of a map, all but the places of its tiles."""
    names = band_names(facts)
    has_speed = bool(facts.class_mph)
    probabilities = len(names) - has_speed

    def dress(dataset: Any) -> None:  # noqa: ANN401 - rasterio has no types
        dataset.descriptions = names
        dataset.scales = (1 / 255,) * probabilities + (1.0,) * has_speed
        dataset.units = ("probability",) * probabilities + ("mph",) * has_speed
        dataset.update_tags(
            **{RECIPE_TAG: json.dumps(signature(source, recipe))},
            TIFFTAG_SOFTWARE=f"geoprep {__version__}",
            SOURCE=source.name,
            NETWORK=facts.network,
            ROAD_THRESHOLD=f"{recipe.threshold:g}",
            CLASSES=json.dumps(
                [
                    {"band": i, "name": names[i - 1], "mph": mph}
                    for i, mph in enumerate(facts.class_mph, start=1)
                ]
            ),
        )

    profile = {
        "width": source.width,
        "height": source.height,
        "count": len(names),
        "dtype": "uint8",
        "crs": source.crs,
        "transform": source.transform,
        "nodata": NO_DATA,
        "compress": recipe.compression,
        "interleave": "band",
        "photometric": "minisblack",
        "alpha": "no",
    }
    return gdal_tags(profile, dress)


def signature(source: Source, recipe: Recipe) -> dict[str, Any]:
    """Return what tells one map from another of the same name, as plain JSON."""
    return {**recipe.plain(), "image": [source.name, *source.stamp]}


def found_signature(target: Path) -> dict[str, Any] | None:
    """Return the signature of a file, or None where it is no map of ours."""
    try:
        with rasterio.open(target) as dataset:
            found = json.loads(dataset.tags().get(RECIPE_TAG, "null"))
    except (RasterioError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def difference(found: dict[str, Any] | None, wanted: dict[str, Any]) -> str:
    """Return in words how a file that exists differs from the map that would be made."""
    if found is None:
        return "was not made by training.predict"
    keys = [key for key in wanted if found.get(key) != wanted[key]]
    if "checkpoint" in keys:
        return "was made from another checkpoint"
    if keys == ["image"]:
        return "was made from another version of the image"
    return f"was made with other options ({', '.join(keys)})"
