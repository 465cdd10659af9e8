"""Rasters of roads opened: what their bands and values mean, by tags, names and a sample."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import ImageError, UsageError
from geoprep.grid import Grid
from geoprep.imagery.description import Raster
from geoprep.imagery.headers import describe
from geoprep.roads.centrelines.bands import FileBands
from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.options import Kind, RasterOptions
from geoprep.speed import BIN_COUNT, BIN_MPH, NODATA, UNKNOWN_SPEED

T = TypeVar("T")

_OF_MASKS: Final = 2
"""Values of a mask without blurred edges."""
_MOST_SPEEDS: Final = 24
"""A band with more distinct values than this does not hold speeds."""
_MOST_BLURRED: Final = 0.01
"""Share of pixels of a mask that may have other values than its two most frequent ones."""
_MOST_MPH: Final = 100
"""Largest value that may be a speed in mph."""


def open_raster(path: Path, reading: RasterOptions | None = None) -> RoadRaster:
    """Return a prediction, a mask, or any raster of probabilities or speeds.

    Predictions and exported masks state what their bands are. Eight unnamed uint8 bands are read as
    CRESI's (seven classes of 10 mph, then any road). A single band is a mask if it has one value
    besides 0; speeds if it has few whole numbers up to 100; probabilities otherwise.
    """
    reading = reading or RasterOptions()
    kind, band = reading.kind, reading.band
    stated = describe(str(path))
    if band is not None and not 1 <= band <= len(stated.bands):
        raise UsageError(f"{path}: `band` is {band}, but the file has {len(stated.bands)}")
    grid, gsd = _grid(stated, reading.pixel_size)
    chosen = stated.bands[(band or 1) - 1]
    full = np.iinfo(chosen.dtype).max if np.dtype(chosen.dtype).kind in "iu" else 1.0
    raster = RoadRaster(
        str(path),
        FileBands(path, stated.grid.shape),
        gsd,
        grid,
        kind or "probability",
        (band or 1,),
        full_value=float(full) if chosen.scale in (0, 1) else 1 / chosen.scale,
        nodata=chosen.nodata,
        image_shape=_image_shape(stated),
        threshold=_tag(stated, "ROAD_THRESHOLD", _share),
    )
    if kind is None and band is None:
        names = _tag(stated, "CLASS_NAMES", lambda text: list(map(str, json.loads(text))))
        if names and all(band.description != "road" for band in stated.bands):
            return _with_class(raster, names)
    if band is None and len(stated.bands) > 1:
        return _with_bands(raster, stated)
    return _with_meaning(raster, stated, kind)


def _image_shape(stated: Raster) -> tuple[int, int] | None:
    """Return rows and columns of the image that a prediction was made from, by its tag."""
    size = re.fullmatch(r"([1-9]\d{0,8}) ([1-9]\d{0,8})", stated.tags.get("SOURCE_SIZE", ""))
    return (int(size[1]), int(size[2])) if size else None


def _tag(stated: Raster, tag: str, parse: Callable[[str], T]) -> T | None:
    """Return the value of a prediction's tag; None if there is none."""
    text = stated.tags.get(tag)
    if text is None:
        return None
    try:
        return parse(text)
    except (ValueError, TypeError, KeyError) as error:
        raise ImageError(
            f"{stated.name}: its tag {tag} is malformed: {text[:60]!r} ({error}). Predict again or "
            "correct the tag."
        ) from error


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError("it should be above 0 and at most 1")
    return value


def _grid(stated: Raster, pixel_size: float | None) -> tuple[Grid | None, tuple[float, float]]:
    """Return a raster's grid on the ground, if any, and its pixel size in metres."""
    if not stated.grid.georeferenced:
        if pixel_size is None:
            raise UsageError(
                f"{stated.name}: not georeferenced. Set `pixel_size`, the width of a pixel in "
                "metres, or give the file a CRS and a transform."
            )
        return None, (pixel_size, pixel_size)
    if pixel_size is not None:
        raise UsageError(
            f"{stated.name}: georeferenced, so its pixel size is known: omit `pixel_size`"
        )
    grid = stated.placed()
    return grid, grid.gsd_m()


def as_speeds(raster: RoadRaster) -> RoadRaster:
    """Return a raster of one band, read as speeds in mph."""
    return replace(raster, kind="speed", speed_band=raster.road_bands[0], nodata=NODATA)


def _with_bands(raster: RoadRaster, stated: Raster) -> RoadRaster:
    """Return a raster of several bands, read by its tags and band names."""
    names, count = [band.description for band in stated.bands], len(stated.bands)
    classes = _tag(stated, "CLASSES", partial(_speed_classes, count=count)) or ()
    roads = [i for i, name in enumerate(names, 1) if name == "road"]
    if raster.kind == "speed" and "speed" in names:
        return as_speeds(replace(raster, road_bands=(names.index("speed") + 1,)))
    if raster.kind == "mask" and roads:
        return replace(raster, road_bands=(roads[0],), nodata=stated.bands[roads[0] - 1].nodata)
    if raster.kind == "probability" and (roads or classes):
        speed = names.index("speed") + 1 if "speed" in names else 0
        road = tuple(roads) or tuple(band for band, _ in classes)
        nodata = stated.bands[road[0] - 1].nodata
        # With a band of speeds, seven bands less are read, and travel times are as good.
        classes = () if speed else classes
        return replace(
            raster, road_bands=road, speed_classes=classes, speed_band=speed, nodata=nodata
        )
    unnamed = raster.kind == "probability" and not any(names)
    if unnamed and count == BIN_COUNT + 1 and stated.bands[0].dtype == "uint8":
        return replace(
            raster,
            road_bands=(BIN_COUNT + 1,),
            speed_classes=tuple(enumerate(BIN_MPH, 1)),
        )
    raise ImageError(
        f"{raster.name}: has {count} bands, and none is named "
        f"{'speed' if raster.kind == 'speed' else 'road'}. Set `band` to the band of roads."
    )


def _with_class(raster: RoadRaster, names: Sequence[str]) -> RoadRaster:
    """Return a prediction of classes with the class ``road`` as a mask."""
    if "road" not in names:
        raise ImageError(
            f"{raster.name}: has the classes {', '.join(names)}, and none is named road. "
            "`geoprep polygonize` makes polygons of classes"
        )
    value = list(names).index("road")
    return replace(raster, kind="mask", road_value=value, full_value=1.0, nodata=float(NODATA))


def _speed_classes(text: str, count: int) -> tuple[tuple[int, float], ...]:
    """Return the bands of speed classes and their mph, of a tag of a prediction of some bands."""
    classes = tuple((int(entry["band"]), float(entry["mph"])) for entry in json.loads(text))
    wrong = [band for band, _ in classes if not 1 <= band <= count]
    if wrong:
        raise ValueError(f"it names band {wrong[0]}, but the file has {count}")
    return classes


def _with_meaning(raster: RoadRaster, stated: Raster, kind: Kind | None) -> RoadRaster:
    """Return a raster of one band with its kind, by its tags or a sample of its values."""
    number = raster.road_bands[0]
    band = stated.bands[number - 1]
    if kind == "probability":
        return raster
    if band.description == "speed" or band.unit == "mph":
        return as_speeds(raster) if kind in (None, "speed") else raster
    if kind is None and (band.description == "road" or band.unit == "probability"):
        return raster
    from geoprep.imagery.values import open_values

    with open_values(raster.name) as source:
        pixels = source.sample(number)
    sample = np.unique(pixels)
    sample = sample[np.isfinite(sample)]
    values, has_zero = sample[sample != 0], bool((sample == 0).any())
    if kind == "speed":
        return _doubted_speeds(raster, values, has_zero)
    if kind == "mask" and len(sample) > _OF_MASKS:
        _require_sharp(raster, pixels)
    if kind == "mask" or len(values) <= 1:
        value = float(values.max(initial=0))
        if kind is None:
            raster = replace(raster, kind="mask", full_value=value)
        if len(values) == 1 and value == raster.nodata and has_zero:
            warning = (
                f"{raster.name}: its only value besides 0 is {value:g}, which its nodata tag "
                f"excludes, so it has no roads. If {value:g} marks roads, remove the tag: "
                f"rio edit-info --unset-nodata {raster.name}"
            )
            raster = replace(raster, warning=warning)
        return raster
    return as_speeds(raster) if _may_be_speeds(values) else raster


def _may_be_speeds(values: NDArray[Any]) -> bool:
    """Return whether values besides 0 may be speeds in mph, or numbers of classes."""
    few = values[values != NODATA]
    whole = bool((few == np.round(few)).all() and few.max(initial=0) <= _MOST_MPH)
    return whole and len(few) <= _MOST_SPEEDS


def _require_sharp(raster: RoadRaster, pixels: NDArray[Any]) -> None:
    """Refuse a mask with edges of other values: its faintest pixels would be road."""
    values, counts = np.unique(pixels[np.isfinite(pixels)], return_counts=True)
    counts, values = counts[values != raster.nodata], values[values != 0]
    others = 1 - np.sort(counts)[-2:].sum() / max(counts.sum(), 1)
    if others > _MOST_BLURRED and not _may_be_speeds(values):
        raise ImageError(
            f"{raster.name}: {others:.0%} of its pixels have other values than its two most "
            "frequent ones, so its edges are blurred. Set `kind` to probability and a `threshold`, "
            "such as 0.5."
        )


def _doubted_speeds(raster: RoadRaster, values: NDArray[Any], has_zero: bool) -> RoadRaster:
    """Return a raster that the user calls speeds, with a warning if its values are not speeds."""
    speeds, warning = values[(values != NODATA) & (values != UNKNOWN_SPEED)], ""
    looks_like_mask = has_zero and values.tolist() in ([1], [NODATA])
    if looks_like_mask or speeds.max(initial=0) > _MOST_MPH:
        warning = (
            f"{raster.name}: its values besides 0 are up to {values.max():g}, which are no speeds "
            "in mph (255 is nodata). Set `kind` to mask or probability if they are that."
        )
    return replace(as_speeds(raster), warning=warning)


def of_one_kind(rasters: Sequence[RoadRaster]) -> list[RoadRaster]:
    """Return rasters in which masks of one value or none are read as the other rasters."""
    kinds = {raster.kind for raster in rasters}
    full = next((raster.full_value for raster in rasters if raster.kind == "probability"), 0.0)

    def matched(raster: RoadRaster) -> RoadRaster:
        if raster.kind != "mask":
            return raster
        if "speed" not in kinds:
            alike = full > 0 and raster.full_value in (0, full)
            return replace(raster, kind="probability", full_value=full) if alike else raster
        return as_speeds(raster) if raster.full_value <= _MOST_MPH else raster

    return [matched(raster) for raster in rasters]
