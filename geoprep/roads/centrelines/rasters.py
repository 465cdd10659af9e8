"""What a raster says of roads: probabilities, speeds or a plain mask, window by window."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.crs import is_georeferenced
from geoprep.errors import ImageError, UsageError
from geoprep.grid import Grid
from geoprep.roads.centrelines.cover import Cover
from geoprep.roads.centrelines.pixels import ArrayPixels, FilePixels, Files, Pixels, drawn_on
from geoprep.speed import BIN_COUNT, BIN_WIDTH_MPH, NODATA

Kind = Literal["probability", "speed", "mask"]
KINDS: Final[tuple[Kind, ...]] = ("probability", "speed", "mask")

_SAMPLED: Final = 1024
"""Pixels a side that are looked at to tell a mask from probabilities."""
_MOST_SPEEDS: Final = 24
_STRIP: Final = 1024
MOST_MPH: Final = 100
"""Values up to here may be speeds."""


@dataclass(frozen=True, slots=True)
class RoadRaster:
    """A raster, and which of its bands say what.

    Attributes
    ----------
    name
        What to call it in messages.
    pixels
        Where its bands are read from.
    gsd_m
        Metres on the ground that a pixel is wide and high.
    place
        Where it lies on the ground; None for a plain plane.
    kind
        ``probability``, ``speed`` (mph: 0 no road, 255 no data) or ``mask`` (not 0 is road).
    road
        Bands whose greatest value says whether there is a road.
    classes
        Bands of the probabilities of speeds, and the mph that each stands for.
    speed
        Band of speeds in mph; 0 for none.
    one
        Value that means a probability of 1; of what looks like a mask, its value on roads.
    nodata
        Value that means that nothing is known.
    image_shape
        Rows and columns of the image that a map was made of, which may have finer pixels; None
        where the raster tells of none.
    """

    name: str
    pixels: Pixels
    gsd_m: tuple[float, float]
    place: Grid | None
    kind: Kind
    road: tuple[int, ...]
    classes: tuple[tuple[int, float], ...] = ()
    speed: int = 0
    one: float = 255.0
    nodata: float | None = None
    image_shape: tuple[int, int] | None = None

    @property
    def image(self) -> tuple[Grid | None, tuple[float, float]]:
        """Place and pixel size in metres (x, y) of the image that a map was made of, or its own."""
        (rows, columns), (height, width) = self.shape, self.image_shape or self.shape
        place = self.place and self.place.resized(height, width)
        return place, (self.gsd_m[0] * columns / width, self.gsd_m[1] * rows / height)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pixels.shape

    @property
    def cover(self) -> Cover:
        """Which pixels there are."""
        return self.pixels.cover

    def is_blank(self) -> bool:
        """Return whether nothing is known of any pixel: all NaN, or no data."""
        height, width = self.shape
        for top in range(0, height, _STRIP):
            rows = min(_STRIP, height - top)
            for band in self.road:
                if self._known(self.pixels.read(band, top, 0, rows, width)).any():
                    return False
        return True

    def _known(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values say something."""
        known = np.ones(values.shape, np.bool_)
        if np.issubdtype(values.dtype, np.floating):
            known &= np.isfinite(values)
        if self.nodata is not None:
            known &= values != self.nodata
        return known

    def evidence(self, top: int, left: int, height: int, width: int) -> NDArray[np.uint8]:
        """Return the probability of a road, 0..255, of a window that may reach past the border.

        Beyond the border every pixel is like the nearest one within. No data is no road.
        """
        window = (top, left, height, width)
        values = self._evidence(self.road[0], window)
        for band in self.road[1:]:
            np.maximum(values, self._evidence(band, window), out=values)
        return values

    def _evidence(self, band: int, window: tuple[int, int, int, int]) -> NDArray[np.uint8]:
        values = drawn_on(self.pixels, band, window)
        if self.kind == "probability" and values.dtype == np.uint8 and self.one == 255:
            if self.nodata is not None and 0 <= self.nodata <= 255:
                np.putmask(values, values == self.nodata, 0)
            return np.asarray(values, np.uint8)
        known = self._known(values) & (values != 0)
        if self.kind != "probability":
            return np.where(known, np.uint8(255), np.uint8(0))
        scaled = np.where(known, values, 0) * (255.0 / self.one)
        if scaled.size and not (scaled.min() >= 0 and scaled.max() <= 255.5):
            raise ImageError(
                f"{self.name}: {scaled.max() / 255:g} is no probability: say what the values are "
                "with --kind mask or --kind speed"
            )
        return np.rint(scaled).astype(np.uint8)


@contextmanager
def open_raster(
    path: Path, *, kind: Kind | None = None, band: int | None = None, pixel_size_m: float | None
) -> Iterator[RoadRaster]:
    """Open a map, a mask or any raster of probabilities or speeds.

    Maps of ``training.predict`` and exported masks say themselves what their bands are. Eight bands
    of bytes without a word are those of CRESI (seven bins of 10 mph, then any road). One band is a
    mask where it holds one value beside 0, speeds where it holds few whole numbers up to 100, and
    probabilities otherwise.

    Parameters
    ----------
    kind, band
        What it is, and its band of roads; None: as it says itself, or as it looks.
    pixel_size_m
        Metres that a pixel is wide, for a raster without a place on the ground.

    Raises
    ------
    ImageError
        It cannot be read, or nobody can tell which band is the one.
    UsageError
        It has no place and no pixel size is given, or both.
    """
    with closing(Files()) as files:
        yield described(path, files, kind=kind, band=band, pixel_size_m=pixel_size_m)


def described(
    path: Path, files: Files, *, kind: Kind | None, band: int | None, pixel_size_m: float | None
) -> RoadRaster:
    """Return what `open_raster` does, of a file that ``files`` open when it is read."""
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning, RasterioError

    with rasterio.Env(), warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        try:
            dataset = files.get(path)
        except RasterioError as error:
            raise ImageError(f"{path}: not readable as a raster: {error}") from error
        return _described(path, dataset, FilePixels(path, files), kind, band, pixel_size_m)


def pixel_size_of(path: Path, pixel_size_m: float | None) -> tuple[float, float]:
    """Return the metres that an image's pixels are wide and high, by its place or as given.

    Errors are those of `open_raster`.
    """
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning, RasterioError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        try:
            with rasterio.open(path) as dataset:
                return _place(path, dataset, pixel_size_m)[1]
        except RasterioError as error:
            raise ImageError(f"{path}: not readable as a raster: {error}") from error


def array_raster(
    values: NDArray[Any], *, pixel_size_m: float, kind: Kind, name: str = "array"
) -> RoadRaster:
    """Return a raster of one band (y, x) in memory, on a plain plane."""
    size = (pixel_size_m, pixel_size_m)
    one = 255.0 if values.dtype == np.uint8 else 1.0
    raster = RoadRaster(name, ArrayPixels(values[None]), size, None, kind, (1,), one=one)
    return as_speeds(raster) if kind == "speed" else raster


def _described(
    path: Path,
    dataset: Any,  # noqa: ANN401 - rasterio has no types
    pixels: Pixels,
    kind: Kind | None,
    band: int | None,
    pixel_size_m: float | None,
) -> RoadRaster:
    """Find out what the bands are and where the raster lies."""
    if band is not None and not 1 <= band <= dataset.count:
        raise UsageError(f"{path}: has no band {band}: it has {dataset.count}")
    place, gsd = _place(path, dataset, pixel_size_m)
    whole = np.issubdtype(np.dtype(dataset.dtypes[0]), np.integer)
    one = float(np.iinfo(dataset.dtypes[0]).max) if whole else 1.0
    raster = RoadRaster(
        str(path),
        pixels,
        gsd,
        place,
        "probability",
        (1,),
        one=one,
        nodata=dataset.nodata,
        image_shape=_image_shape(dataset),
    )
    names = [name or "" for name in dataset.descriptions]
    if kind is None and band is None and dataset.count > 1:
        return _of_bands(raster, names, dataset)
    chosen = band or 1
    raster = replace(raster, kind=kind or raster.kind, road=(chosen,))
    if kind is None:
        looks, one = _look(raster, dataset, chosen)
        raster = replace(raster, kind=looks, one=one)
    return as_speeds(raster) if raster.kind == "speed" else raster


def as_speeds(raster: RoadRaster) -> RoadRaster:
    """Return a raster of one band, read as speeds in mph."""
    return replace(raster, kind="speed", speed=raster.road[0], nodata=NODATA)


def _image_shape(dataset: Any) -> tuple[int, int] | None:  # noqa: ANN401
    """Return rows and columns of a map's image, as the map says."""
    told = re.fullmatch(r"([1-9]\d{0,8}) ([1-9]\d{0,8})", dataset.tags().get("SOURCE_SIZE", ""))
    return (int(told[1]), int(told[2])) if told else None


def _of_bands(raster: RoadRaster, names: Sequence[str], dataset: Any) -> RoadRaster:  # noqa: ANN401
    """Read a raster of several bands by what it says of them."""
    classes = json.loads(dataset.tags().get("CLASSES", "[]"))
    bins = tuple((int(one["band"]), float(one["mph"])) for one in classes)
    roads = [i for i, name in enumerate(names, 1) if name == "road"]
    if roads or bins:
        speed = names.index("speed") + 1 if "speed" in names else 0
        road = tuple(roads) or tuple(band for band, _ in bins)
        return replace(raster, road=road, classes=bins, speed=speed)
    if not any(names) and dataset.count == BIN_COUNT + 1 and dataset.dtypes[0] == "uint8":
        middle = BIN_WIDTH_MPH * (np.arange(BIN_COUNT) + 0.5) + 0.5
        return replace(
            raster,
            road=(BIN_COUNT + 1,),
            classes=tuple((i, float(mph)) for i, mph in enumerate(middle, 1)),
        )
    raise ImageError(
        f"{raster.name}: has {dataset.count} bands and does not say which is the road: name it "
        "with --band"
    )


def _look(raster: RoadRaster, dataset: Any, band: int) -> tuple[Kind, float]:  # noqa: ANN401
    """Tell by its words or its values what a single band holds, and which value means 1."""
    if dataset.descriptions[band - 1] == "road" or dataset.units[band - 1] == "probability":
        return "probability", raster.one
    if dataset.descriptions[band - 1] == "speed" or dataset.units[band - 1] == "mph":
        return "speed", raster.one
    shape = tuple(min(side, _SAMPLED) for side in raster.shape)
    values = np.unique(dataset.read(band, out_shape=shape))
    values = values[np.isfinite(values) & (values != 0)]
    if len(values) <= 1:
        return "mask", float(values.max(initial=0))
    speeds = values[values != NODATA]
    whole = bool((speeds == np.round(speeds)).all() and speeds.max() <= MOST_MPH)
    return ("speed" if whole and len(speeds) <= _MOST_SPEEDS else "probability"), raster.one


def _place(
    path: Path,
    dataset: Any,  # noqa: ANN401
    pixel_size_m: float | None,
) -> tuple[Grid | None, tuple[float, float]]:
    """Return where a raster lies and the metres of its pixels."""
    if not is_georeferenced(dataset.crs, dataset.transform):
        if pixel_size_m is None:
            raise UsageError(
                f"{path}: is not georeferenced: say how large its pixels are with "
                "--pixel-size METRES"
            )
        return None, (pixel_size_m, pixel_size_m)
    if pixel_size_m is not None:
        raise UsageError(f"{path}: is georeferenced: leave --pixel-size out")
    code = dataset.crs.to_epsg()
    crs = f"EPSG:{code}" if code else dataset.crs.to_wkt()
    grid = Grid(dataset.height, dataset.width, dataset.transform, crs)
    gsd = grid.gsd_m()
    if not all(np.isfinite(gsd)) or min(gsd) <= 0:
        raise ImageError(f"{path}: lies nowhere on Earth; check its CRS {crs[:60]} and transform")
    return grid, gsd
