"""How one image is read: bands, pixel grid and limits of rescaling.

`inspect_image` reads the header, and `look` what follows from the pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray

from geoprep.building.options import parse_nodata
from geoprep.cpus import usable_cpus
from geoprep.errors import ImageError, UsageError
from geoprep.imagery.band_names import Names, band_numbers, common_name, match_bands, parse_bands
from geoprep.imagery.counts import count_source
from geoprep.imagery.description import NOTHING_STATED, Raster, Stated
from geoprep.imagery.headers import describe
from geoprep.imagery.looks import Count, Look
from geoprep.imagery.rescale import percentile_limits
from geoprep.imagery.rows import HeldStrips, SceneRows, fits_memory, strips
from geoprep.imagery.scenes import OpenScene, open_scene
from geoprep.imagery.validity import write_bits
from geoprep.storage.addresses import shown_address
from training.checkpoint import ModelInfo
from training.prediction.area import Polygons, area_in_pixels, read_area
from training.prediction.predict_options import ImageOptions, known_limits

TOLERANCE = 0.1
"""Relative difference from the model's pixel size above which an image is resampled."""

_EXACT = 0.001
READ_BYTES = 48 << 20
"""Bytes of decoded pixels from which bytes of the model's grid are made at a time."""
_MOST_COUNTED = 64_000_000
"""Pixels of an image above which its limits are those of a sample of its rows."""
_COUNTED_ROWS = 512
"""Rows that are counted at a time: a row of blocks of most large images."""


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Size, bands and grid of an image, as read from its header.

    The model's grid has ``height`` x ``width`` pixels, which differ from the image's if it is
    resampled. The prediction has the pixels of the image, unless the model's are asked for.
    """

    scene: OpenScene  # how the image is read, bands in the order of the model's
    scales: tuple[float, float]  # pixels of the image per pixel of the model's grid, y and x
    height: int
    width: int
    transform: Affine  # of the prediction
    crs: str | None  # WKT; None if the image is not georeferenced
    gsd_m: tuple[float, float] | None  # of the model's grid, x and y; None if it is unknown
    version: str  # changes with any of its files, see `imagery.Raster.version`; ETag of an object
    copied: str = ""  # the version of the local files; "" if it is not looked at
    # Values that become black and white, float64 (band, 2); None: percentiles of the image.
    limits: NDArray[np.float64] | None = field(default=None, compare=False)
    on_image: bool = False  # the prediction is resampled from the model's grid to the image's
    notes: tuple[str, ...] = ()  # for the user
    files: tuple[str, ...] = ()  # all files that it consists of, see `imagery.Raster.files`
    # What is predicted, in pixels of the image (column, row); None: all of it
    area: Polygons | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.scene.address.rpartition("/")[2]

    @property
    def lengths(self) -> tuple[int, int]:
        """Rows and columns of the image."""
        return self.scene.grid.shape

    @property
    def resampled(self) -> bool:
        """Whether the model's grid differs from the image's."""
        return self.scales != (1.0, 1.0)

    @property
    def extent(self) -> tuple[int, int, int, int]:
        """First row and column of the prediction, and its last ones plus one, in its pixels."""
        height, width = self.lengths if self.on_image else (self.height, self.width)
        if self.area is None:
            return 0, 0, height, width
        left, top, right, bottom = shapely.total_bounds(np.array(self.area, object)).tolist()
        y, x = (1.0, 1.0) if self.on_image else self.scales
        return (
            max(0, math.floor(top / y)), max(0, math.floor(left / x)),
            min(height, math.ceil(bottom / y)), min(width, math.ceil(right / x)),
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the prediction."""
        top, left, bottom, right = self.extent
        return bottom - top, right - left

    @property
    def part_lengths(self) -> tuple[int, int]:
        """Rows and columns of the image under the prediction."""
        if self.area is None or self.on_image:
            return self.lengths if self.area is None else self.shape
        (height, width), (y, x) = self.shape, self.scales
        return round(height * y), round(width * x)

    @property
    def rows_at_a_time(self) -> int:
        """Rows of the image whose pixels are `READ_BYTES`; one, if it takes more."""
        size = np.dtype(self.scene.dtype).itemsize
        return max(1, READ_BYTES // (self.lengths[1] * (len(self.scene.bands) + 1) * size))

    @property
    def grid_rows_at_a_time(self) -> int:
        """Rows of the model's grid that take, as the pixels under them do, `READ_BYTES` at most."""
        rows = READ_BYTES // (self.width * (len(self.scene.bands) + 1))
        return max(1, min(rows, int(self.rows_at_a_time / self.scales[0])))

    def require_unchanged(self) -> None:
        """Raise ImageError if a file of the image is not the one that its header was read from."""
        if self.copied and describe(self.scene.address).version() != self.copied:
            raise ImageError(
                f"{shown_address(self.scene.address)}: changed while it was predicted. Run the "
                "command again when the file is complete"
            )

    @property
    def outside(self) -> bool:
        """Whether no pixel is in the area that is asked for."""
        return self.area is not None and (not self.area or min(self.shape) < 1)


def inspect_image(
    address: str,
    info: ModelInfo,
    options: ImageOptions,
    version: str = "",
    stated: Stated = NOTHING_STATED,
) -> ImageSource:
    """Return the bands, grid and dtype of an image.

    ``version`` is that of a copied object, ``stated`` has the statements of a STAC item.
    """
    raster = describe(address)
    bands, note = choose_bands(raster, info.bands, parse_bands(options.bands), stated.names)
    grid, placed = raster.grid, raster.grid.georeferenced
    if not placed and options.allow_no_crs and options.pixel_size is None:
        height, width, scales, transform = *grid.shape, (1.0, 1.0), grid.transform
        crs, gsd, fed = None, None, "pixels of unknown size"
    else:
        try:
            grid = raster.placed(options.pixel_size)
        except ImageError as error:
            if placed:
                raise
            raise ImageError(
                f"{error}; or use `allow_no_crs` to predict it pixel by pixel"
            ) from error
        (x, y), (trained_x, trained_y) = grid.gsd_m(), info.gsd_m
        height, scale_y = _resampled(grid.height, y, trained_y, options.gsd)
        width, scale_x = _resampled(grid.width, x, trained_x, options.gsd)
        scales = scale_y, scale_x
        transform = grid.transform
        if options.grid == "model":
            transform = grid.scaled(height, width, scale_y, scale_x).transform
        if not grid.georeferenced:  # nor is its prediction
            transform = Affine.identity()
        crs = raster.crs if grid.georeferenced else None
        gsd = x * scale_x, y * scale_y
        fed = f"pixels of {gsd[0]:.3g} x {gsd[1]:.3g} m"
    nodata = info.nodata if options.nodata == "checkpoint" else parse_nodata(options.nodata)
    scene = open_scene(raster, bands, grid, nodata, stated)
    limits = known_limits(info, options.rescale, scene.dtype, scene.units, raster.name)
    if not note and scene.leaves_out_alpha:
        note = "band 4 is called alpha and marks nodata; if it is near infrared, `bands` reads it"
    notes = [text for text in (note, scene.doubt) if text]
    x, y = info.gsd_m
    known = min(x, y) > 0 and max(x, y) < math.inf
    if known and (gsd is None or max(abs(gsd[0] / x - 1), abs(gsd[1] / y - 1)) > TOLERANCE):
        notes.append(f"the model gets {fed}, and was trained on pixels of {x:.3g} x {y:.3g} m")
    area: Polygons | None = None
    if options.area is not None:
        if crs is None:
            raise ImageError(f"{shown_address(address)} is not georeferenced, as `area` needs")
        polygons, area_crs, _ = read_area(options.area, options.where)
        area = area_in_pixels(polygons, area_crs, grid)
    copied = raster.version()
    return ImageSource(
        scene, scales, height, width, transform, crs, gsd,
        version or copied, copied, limits,
        scales != (1.0, 1.0) and options.grid == "image", tuple(notes), raster.files, area,
    )  # fmt: skip


def choose_bands(
    raster: Raster,
    needed: Sequence[str],
    chosen: Sequence[int | str],
    names: Sequence[Names] = (),
) -> tuple[tuple[int, ...], str]:
    """Return the 1-based bands of an image for those that a model needs, in their order; a note.

    1. Those that the user chose.
    2. Those that `imagery.match_bands` finds by their names, those of the file or else ``names``.
    """
    if chosen:  # 1
        if len(chosen) != len(needed):
            raise UsageError(
                "bands",
                f"names {len(chosen)} band(s), but the model needs {len(needed)}: "
                f"{', '.join(needed)}",
            )
        return band_numbers(chosen, raster.names_or(names), raster.name), ""
    names, bands = raster.names_or(names), raster.default_bands
    wanted = [(name, common_name(name)) for name in needed]
    match = match_bands(wanted, names, [band - 1 for band in bands])  # 2
    listed = ", ".join(f"{band} ({names[band - 1][0]})" for band in bands)
    if not match.missing:
        unclear = match.unnamed and len(needed) > 1
        read = ", ".join(str(place + 1) for place in match.places)
        note = f"{raster.name}: bands {read} are read as {', '.join(needed)}, as not all have names"
        return tuple(place + 1 for place in match.places), note if unclear else ""
    fix = "Use an image with these bands, or a model trained on fewer"
    if len(bands) >= len(needed):
        example = ",".join(map(str, bands[: len(needed)]))
        called = " or ".join(match.missing)
        fix = f"No band is called {called}. Choose them with `bands`, for example {example}"
    raise ImageError(
        f"{raster.name} has band(s) {listed}, but the model needs {len(needed)}: "
        f"{', '.join(needed)}. {fix}"
    )


def _resampled(length: int, metres: float, trained: float, gsd: str) -> tuple[int, float]:
    """Return the pixels of the model's axis, and their length in pixels of the image.

    Pixels of the image have ``metres``, those that the model was trained on ``trained``.

    1. The pixel size of the image, if ``gsd`` says so or that of the training is not known.
    2. A whole multiple of it, as between the levels of a store, if that is near enough; the last
       pixel may then extend beyond the image.
    3. Pixels of the requested size, so many that they cover the image.
    """
    size = {"image": metres, "checkpoint": trained}.get(gsd)
    size = float(gsd) if size is None else size
    ratio = size / metres if 0 < size < math.inf else 1.0  # 1
    multiple = max(1, round(ratio))
    if abs(ratio / multiple - 1) <= (TOLERANCE if gsd == "checkpoint" else _EXACT):  # 2
        return -(-length // multiple), float(multiple)
    count = max(1, round(length / ratio))  # 3
    return count, length / count


def scene_rows(source: ImageSource, mask: Path, *, ahead: bool) -> SceneRows:
    """Return what reads an image; ``mask`` is where black decides, ``ahead``: by several threads.

    Pixels that `look` reads stay in memory if they fit. Otherwise strips are read for an area only.
    """
    scene = source.scene
    kept = fits_memory(scene) and (source.limits is None or scene.black_decides)
    held = HeldStrips() if ahead or kept else HeldStrips(0)
    file = str(mask) if scene.black_decides else None
    narrow = source.area is not None and not kept
    return SceneRows(scene, source.version, file, held=held, narrow=narrow)


def look(
    source: ImageSource, rows: SceneRows, mask: Path, count: Count = count_source
) -> NDArray[np.float64]:
    """Return the limits of an image, float64 (band, 2); write its ``mask`` if black decides on it.

    The limits are those that are known, or percentiles of the valid pixels. All pixels count, or
    so many rows of a large image, evenly spread, that these are not decoded twice. The image is
    read once, unless neither is needed.
    """
    scene, limits = source.scene, source.limits
    if limits is not None and not scene.black_decides:
        return limits
    height, width = scene.grid.shape
    together = min(source.rows_at_a_time, _COUNTED_ROWS)
    every = math.ceil(height * width / _MOST_COUNTED)
    counted = None if every == 1 else np.arange(height) // together % every == 0
    runs = strips(scene)
    if not (scene.black_decides or counted is None or fits_memory(scene)):
        tops = range(0, height, together * every)
        runs = [(top, min(top + together, height)) for top in tops]

    def shown(first: int, last: int) -> Look:
        with rows.again() as own:
            pixels = own.surveyed(first, last)
        return Look.at(first, pixels, counted, count if limits is None else lambda _: 0)

    total = Look()
    # Eight threads: each decodes a strip.
    with ThreadPoolExecutor(min(8, usable_cpus()), "predict-count") as pool:
        for seen in pool.map(shown, *zip(*runs, strict=True)):
            total += seen
    if scene.black_decides:
        bits, *_ = total.decided(scene, counted)
        bits = np.full((height, -(-width // 8)), 255, np.uint8) if bits is None else bits
        write_bits(str(mask), bits)
    return percentile_limits(total.counts) if limits is None else limits
