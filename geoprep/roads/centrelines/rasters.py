"""Rasters of roads: probabilities, speeds or a plain mask, read window by window."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from geoprep.crs import is_georeferenced
from geoprep.errors import ImageError, UsageError
from geoprep.grid import Grid
from geoprep.roads.centrelines.bands import (
    ArrayBands,
    Bands,
    FileBands,
    OpenRasters,
    open_dataset,
    read_extended,
)
from geoprep.roads.centrelines.coded_speeds import coded_speeds
from geoprep.roads.centrelines.cover import Cover
from geoprep.roads.network import Plane
from geoprep.roads.options import Kind, check_kind
from geoprep.speed import BIN_COUNT, BIN_WIDTH_MPH, NODATA, UNKNOWN_SPEED

_SAMPLED: Final = 1024
"""Pixels per side of the sample that tells a mask from probabilities and speeds."""
_MOST_SPEEDS: Final = 24
"""A band with more distinct values than this does not hold speeds."""
_STRIP: Final = 1024
_MOST_DECODED: Final = 64 << 20
MOST_MPH: Final = 100
"""Largest value that may be a speed in mph."""


@dataclass(frozen=True, slots=True)
class RoadRaster:
    """A raster of roads and the meaning of its bands and values."""

    name: str  # name in messages
    bands: Bands  # source of pixels
    gsd_m: tuple[float, float]  # pixel width and height on the ground in metres
    grid: Grid | None  # position on the ground; None for a raster that is not georeferenced
    # ``probability``, ``speed`` (mph; 0 background, 254 unknown, 255 nodata) or ``mask`` (road
    # where not 0)
    kind: Kind
    road_bands: tuple[int, ...]  # bands, counted from 1, whose maximum is the probability of a road
    # Bands of the probabilities of speed classes, each with its speed in mph
    speed_classes: tuple[tuple[int, float], ...] = ()
    speed_band: int = 0  # band of speeds, counted from 1; 0 for none
    # Value that means a probability of 1; of a raster that looks like a mask, its value on roads
    full_value: float = 255.0
    nodata: float | None = None  # value of pixels without data; None: there is none
    # Rows and columns of the image that a prediction was made from, which may have finer pixels;
    # None if unknown
    image_shape: tuple[int, int] | None = None
    # Speed in mph of the values 0 to 255 of the speed band; empty where values are mph
    mph_of_value: tuple[float, ...] = ()
    # Minimum probability of road pixels that a prediction states; None: not stated
    threshold: float | None = None
    warning: str = ""  # why roads of this raster may be missing; empty if there is no doubt
    # (y, x): the probability of a road of all pixels, if it is in memory (`decoded`)
    probabilities: NDArray[np.uint8] | None = None

    @property
    def image(self) -> tuple[Grid | None, tuple[float, float]]:
        """Grid and pixel size in metres (x, y) of the predicted image, or of the raster itself."""
        (rows, columns), (height, width) = self.shape, self.image_shape or self.shape
        grid = self.grid and self.grid.resized(height, width)
        return grid, (self.gsd_m[0] * columns / width, self.gsd_m[1] * rows / height)

    @property
    def plane(self) -> Plane:
        """The raster's plane in metres."""
        return Plane(self.gsd_m)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.bands.shape

    @property
    def cover(self) -> Cover:
        """The pixels that exist."""
        return self.bands.cover

    @property
    def area_m2(self) -> float:
        """Area of the covered ground in square metres."""
        return self.cover.area * self.gsd_m[0] * self.gsd_m[1]

    def is_blank(self) -> bool:
        """Return whether no pixel has data."""
        height, width = self.shape
        for top in range(0, height, _STRIP):
            rows = min(_STRIP, height - top)
            for band in self.road_bands:
                if self._has_data(self.bands.read(band, top, 0, rows, width)).any():
                    return False
        return True

    def _has_data(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values are finite and not nodata."""
        known = np.ones(values.shape, np.bool_)
        if np.issubdtype(values.dtype, np.floating):
            known &= np.isfinite(values)
        if self.nodata is not None:
            known &= values != self.nodata
        return known

    def probability(self, top: int, left: int, height: int, width: int) -> NDArray[np.uint8]:
        """Return the probability of a road, 0 to 255, in a window that may reach outside.

        Pixels outside repeat the nearest pixel inside. Nodata pixels have the probability 0.
        """
        window = (top, left, height, width)
        if self.probabilities is not None:
            return read_extended(ArrayBands(self.probabilities[None]), 1, window)
        values = self._probability(self.road_bands[0], window)
        for band in self.road_bands[1:]:
            np.maximum(values, self._probability(band, window), out=values)
        return values

    def decoded(self) -> RoadRaster:
        """Return the raster with its probabilities in memory, if they take at most 64 MiB.

        Tracing reads most pixels ten times. Without this, every time they are decompressed, and
        nodata is set to 0.
        """
        height, width = self.shape
        if height * width > _MOST_DECODED:
            return self
        return replace(self, probabilities=self.probability(0, 0, height, width))

    def _probability(self, band: int, window: tuple[int, int, int, int]) -> NDArray[np.uint8]:
        values = read_extended(self.bands, band, window)
        if self.kind == "probability" and values.dtype == np.uint8 and self.full_value == 255:
            if self.nodata is not None and 0 <= self.nodata <= 255:
                np.putmask(values, values == self.nodata, 0)
            return np.asarray(values, np.uint8)
        road = self._has_data(values) & (values != 0)
        if self.kind != "probability":
            return np.where(road, np.uint8(255), np.uint8(0))
        scaled = np.where(road, values, 0) * (255.0 / self.full_value)
        if scaled.size and not (scaled.min() >= 0 and scaled.max() <= 255.5):
            wrong = scaled.min() if scaled.min() < 0 else scaled.max()
            raise ImageError(
                f"{self.name}: {wrong / 255:g} is not a probability. Set `kind` to mask or speed "
                "if the values are that."
            )
        return np.rint(scaled).astype(np.uint8)


@contextmanager
def open_raster(
    path: Path, *, kind: Kind | None = None, band: int | None = None, pixel_size_m: float | None
) -> Iterator[RoadRaster]:
    """Open a prediction, a mask, or any raster of probabilities or speeds.

    Predictions and exported masks state what their bands are. Eight unnamed uint8 bands are read as
    CRESI's (seven classes of 10 mph, then any road). A single band is a mask if it has one value
    besides 0; speeds if it has few whole numbers up to 100, or the codes of CRESI's masks of
    speeds; probabilities otherwise.
    """
    with closing(OpenRasters()) as files:
        yield describe_raster(path, files, kind=kind, band=band, pixel_size_m=pixel_size_m)


def describe_raster(
    path: Path,
    files: OpenRasters,
    *,
    kind: Kind | None,
    band: int | None,
    pixel_size_m: float | None,
) -> RoadRaster:
    """Return what `open_raster` yields, for a file that ``files`` keeps open."""
    check_kind(kind)
    dataset = files.get(path)
    if band is not None and not 1 <= band <= dataset.count:
        raise UsageError(f"{path}: `band` is {band}, but the file has {dataset.count}")
    grid, gsd = _grid(path, dataset, pixel_size_m)
    whole = np.issubdtype(np.dtype(dataset.dtypes[0]), np.integer)
    raster = RoadRaster(
        str(path),
        FileBands(path, files, (dataset.height, dataset.width)),
        gsd,
        grid,
        kind or "probability",
        (band or 1,),
        full_value=float(np.iinfo(dataset.dtypes[0]).max) if whole else 1.0,
        nodata=dataset.nodata,
        image_shape=_image_shape(dataset),
        threshold=_threshold(str(path), dataset),
    )
    names = _class_names(raster.name, dataset) if kind is None and band is None else []
    if names and "road" not in dataset.descriptions:
        return _with_class(raster, names)
    if kind is None and band is None and dataset.count > 1:
        return _with_bands(raster, dataset)
    return _with_meaning(raster, dataset, kind)


def pixel_size_of(path: Path, pixel_size_m: float | None) -> tuple[float, float]:
    """Return the pixel width and height of an image in metres, from its georeference or as given.

    Errors are those of `open_raster`.
    """
    with closing(open_dataset(path)) as dataset:
        return _grid(path, dataset, pixel_size_m)[1]


def as_speeds(raster: RoadRaster) -> RoadRaster:
    """Return a raster of one band, read as speeds in mph."""
    return replace(raster, kind="speed", speed_band=raster.road_bands[0], nodata=NODATA)


def as_coded_speeds(raster: RoadRaster, mph_of_value: tuple[float, ...]) -> RoadRaster:
    """Return a raster of one band, read as codes of speeds."""
    return replace(raster, kind="speed", speed_band=raster.road_bands[0], mph_of_value=mph_of_value)


def _image_shape(dataset: Any) -> tuple[int, int] | None:  # noqa: ANN401 - rasterio has no types
    """Return rows and columns of the image that a prediction was made from, by its tag."""
    size = re.fullmatch(r"([1-9]\d{0,8}) ([1-9]\d{0,8})", dataset.tags().get("SOURCE_SIZE", ""))
    return (int(size[1]), int(size[2])) if size else None


def _threshold(name: str, dataset: Any) -> float | None:  # noqa: ANN401 - as above
    """Return the minimum probability of road pixels by the tag of a prediction."""
    tag = dataset.tags().get("ROAD_THRESHOLD")
    try:
        value = None if tag is None else float(tag)
    except ValueError:
        value = 0.0
    if value is not None and not 0 < value <= 1:
        raise ImageError(
            f"{name}: its tag ROAD_THRESHOLD is {tag[:60]!r}. It should be above 0 and at most 1; "
            "predict again or correct the tag."
        )
    return value


def stated_threshold(path: Path) -> float | None:
    """Return the threshold that a prediction states (tag ``ROAD_THRESHOLD``); None for others."""
    with closing(OpenRasters()) as files:
        return _threshold(str(path), files.get(path))


def _with_bands(raster: RoadRaster, dataset: Any) -> RoadRaster:  # noqa: ANN401 - as above
    """Return a raster of several bands, read by its tags and band names."""
    names: Sequence[str] = [name or "" for name in dataset.descriptions]
    classes = _speed_classes(raster.name, dataset)
    roads = [i for i, name in enumerate(names, 1) if name == "road"]
    if roads or classes:
        speed = names.index("speed") + 1 if "speed" in names else 0
        road = tuple(roads) or tuple(band for band, _ in classes)
        return replace(raster, road_bands=road, speed_classes=classes, speed_band=speed)
    if not any(names) and dataset.count == BIN_COUNT + 1 and dataset.dtypes[0] == "uint8":
        middle = BIN_WIDTH_MPH * (np.arange(BIN_COUNT) + 0.5) + 0.5
        return replace(
            raster,
            road_bands=(BIN_COUNT + 1,),
            speed_classes=tuple((i, float(mph)) for i, mph in enumerate(middle, 1)),
        )
    raise ImageError(
        f"{raster.name}: has {dataset.count} bands, and none is named road. Set `band` to the band "
        "of roads."
    )


class ClassMask:
    """The pixels of one class in a band of classes, read as a mask; see `Bands`."""

    def __init__(self, bands: FileBands, value: int) -> None:
        self._bands, self._value = bands, value
        self.shape, self.cover = bands.shape, bands.cover

    def warped(self, grid: Grid, *, smooth: bool) -> tuple[ClassMask, float]:
        """Return the mask resampled onto another grid, and its value without data."""
        return ClassMask(self._bands.warped(grid, smooth=False)[0], self._value), float(NODATA)

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return uint8 (y, x): 1 in the class, 0 in others, 255 without data."""
        values = self._bands.read(band, top, left, height, width)
        mask: NDArray[np.uint8] = (values == self._value).astype(np.uint8)
        mask[(values == NODATA) | (values < 0)] = NODATA
        return mask


def _class_names(name: str, dataset: Any) -> list[str]:  # noqa: ANN401 - as above
    """Return the names of the classes of a prediction by its tag; none for other files."""
    try:
        names = json.loads(dataset.tags().get("CLASS_NAMES", "[]"))
    except ValueError:
        names = None
    if not isinstance(names, list):
        raise ImageError(f"{name}: its tag CLASS_NAMES is malformed: predict again")
    return [str(one) for one in names]


def _with_class(raster: RoadRaster, names: Sequence[str]) -> RoadRaster:
    """Return a prediction of classes with the class ``road`` as a mask."""
    if "road" not in names:
        raise ImageError(
            f"{raster.name}: has the classes {', '.join(names)}, and none is named road"
        )
    bands = ClassMask(cast(FileBands, raster.bands), list(names).index("road"))
    return replace(raster, bands=bands, kind="mask", full_value=1.0, nodata=float(NODATA))


def _speed_classes(name: str, dataset: Any) -> tuple[tuple[int, float], ...]:  # noqa: ANN401
    """Return the bands of speed classes and their mph, by the tag of a prediction."""
    tag = dataset.tags().get("CLASSES", "[]")
    try:
        classes = tuple((int(one["band"]), float(one["mph"])) for one in json.loads(tag))
    except (ValueError, TypeError, KeyError) as error:
        raise ImageError(
            f"{name}: its tag CLASSES is malformed: {tag[:60]!r}. It should be a JSON list of "
            'objects such as {"band": 1, "mph": 25}; predict again or correct the tag.'
        ) from error
    wrong = [band for band, _ in classes if not 1 <= band <= dataset.count]
    if wrong:
        raise ImageError(
            f"{name}: its tag CLASSES names band {wrong[0]}, but the file has {dataset.count}"
        )
    return classes


def _with_meaning(raster: RoadRaster, dataset: Any, kind: Kind | None) -> RoadRaster:  # noqa: ANN401
    """Return a raster of one band with its kind, by its tags or a sample of its values."""
    band = raster.road_bands[0]
    name, unit = dataset.descriptions[band - 1], dataset.units[band - 1]
    if kind == "probability" or (kind == "mask" and not raster.nodata):
        return raster
    if name == "speed" or unit == "mph":
        return as_speeds(raster) if kind in (None, "speed") else raster
    if kind is None and (name == "road" or unit == "probability"):
        return raster
    shape = tuple(min(side, _SAMPLED) for side in raster.shape)
    sample = np.unique(dataset.read(band, out_shape=shape))
    sample = sample[np.isfinite(sample)]
    values, has_zero = sample[sample != 0], bool((sample == 0).any())
    if kind == "speed":
        return _speeds_or_codes(raster, values, has_zero)
    if kind == "mask" or len(values) <= 1:
        value = float(values.max(initial=0))
        if kind is None:
            raster = replace(raster, kind="mask", full_value=value)
        if len(values) == 1 and value == raster.nodata and has_zero:
            raster = replace(raster, warning=_hidden_by_nodata(raster.name, value))
        return raster
    if dataset.dtypes[band - 1] == "uint8" and (codes := coded_speeds(values)):
        return as_coded_speeds(raster, codes)
    speeds = values[values != NODATA]
    all_whole = bool((speeds == np.round(speeds)).all() and speeds.max() <= MOST_MPH)
    return as_speeds(raster) if all_whole and len(speeds) <= _MOST_SPEEDS else raster


def _speeds_or_codes(raster: RoadRaster, values: NDArray[Any], has_zero: bool) -> RoadRaster:
    """Return a raster that was called one of speeds, with a warning if its values are not."""
    if codes := coded_speeds(values, least=1):
        return as_coded_speeds(raster, codes)
    speeds, warning = values[(values != NODATA) & (values != UNKNOWN_SPEED)], ""
    if has_zero and values.tolist() == [NODATA]:
        warning = (
            f"{raster.name}: its only value besides 0 is 255, which means nodata in a raster of "
            "speeds, so it has no roads. Set `kind` to mask if 255 marks roads."
        )
    elif has_zero and values.tolist() == [1]:
        warning = (
            f"{raster.name}: its only value besides 0 is 1, so all roads have 1 mph. Set `kind` to "
            "mask if 1 marks roads."
        )
    elif speeds.max(initial=0) > MOST_MPH:
        warning = (
            f"{raster.name}: has values up to {speeds.max():g}, too many for speeds in mph. Set "
            "`kind` to probability if they are that, or convert speeds to mph."
        )
    return replace(as_speeds(raster), warning=warning)


def _hidden_by_nodata(name: str, value: float) -> str:
    return (
        f"{name}: its only value besides 0 is {value:g}, which its nodata tag excludes, so it has "
        f"no roads. If {value:g} marks roads, remove the tag: rio edit-info --unset-nodata {name}"
    )


def _grid(
    path: Path,
    dataset: Any,  # noqa: ANN401 - rasterio has no types
    pixel_size_m: float | None,
) -> tuple[Grid | None, tuple[float, float]]:
    """Return a raster's grid on the ground, if any, and its pixel size in metres."""
    if not is_georeferenced(dataset.crs, dataset.transform):
        if pixel_size_m is None:
            raise UsageError(
                f"{path}: not georeferenced. Set `pixel_size_m`, the width of a pixel in metres, "
                "or give the file a CRS and a transform."
            )
        return None, (pixel_size_m, pixel_size_m)
    if pixel_size_m is not None:
        raise UsageError(f"{path}: georeferenced, so its pixel size is known: omit `pixel_size_m`")
    code = dataset.crs.to_epsg()
    crs = f"EPSG:{code}" if code else dataset.crs.to_wkt()
    grid = Grid(dataset.height, dataset.width, dataset.transform, crs)
    gsd = grid.gsd_m()
    if not all(np.isfinite(gsd)) or min(gsd) <= 0:
        raise ImageError(
            f"{path}: its transform lies outside the domain of its CRS {crs[:60]}. Correct one of "
            "them."
        )
    return grid, gsd
