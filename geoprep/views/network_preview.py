"""Draw a road network: edges coloured by speed, over an image or a dark background."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import reproject
from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.palette import BACKGROUND_COLOUR, SPEED_COLOURS, bin_label
from geoprep.roads import RoadGraph
from geoprep.speed import BIN_TABLE, to_byte
from geoprep.storage import open_image, outputs, replaced, require_suffix
from geoprep.views.display import SUFFIXES
from geoprep.views.sheet import save

if TYPE_CHECKING:
    from geoprep.storage import StrPath

_PIXELS: Final = 1600
_INCHES: Final = 10.0
_UNKNOWN: Final = (210, 213, 220)
_PAPER: Final = "#ffffff"
_CASING_PT, _LINE_PT = 3.2, 1.9


@dataclass(frozen=True, slots=True)
class Picture:
    """An image at the resolution of a picture, uint8 (y, x, 3), and the grid of its file."""

    rgb: NDArray[np.uint8]
    grid: Grid

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top in the CRS, as matplotlib wants them."""
        (left, top), _, (right, bottom), _ = self.grid.corners.tolist()
        return left, right, bottom, top


_Backdrop = tuple[NDArray[np.uint8], NDArray[np.object_]]
"""The image below the roads, uint8 (y, x, 3), and the lines in its pixel coordinates."""


def preview_network(
    network: RoadGraph,
    out: Path,
    *,
    over: Path | None = None,
    pixel_size_m: float | tuple[float, float] | None = None,
) -> Path:
    """Draw a road network with a legend of its speeds and their length in the picture.

    ``pixel_size_m`` is that of ``over``, for a network that is not georeferenced.
    """
    require_suffix(out, *SUFFIXES)
    outputs(out, inputs=[over] if over else [])
    rgb, lines = _dark(network) if over is None else _image(network, over, pixel_size_m)
    with replaced(out) as partial:
        _draw(partial, network, rgb, lines)
    return out


def _dark(network: RoadGraph) -> _Backdrop:
    """Return a dark background slightly larger than the road network."""
    if not len(network.lines):
        return np.full((_PIXELS, _PIXELS, 3), BACKGROUND_COLOUR, np.uint8), network.lines
    west, south, east, north = shapely.total_bounds(network.lines)
    scale = 0.94 * _PIXELS / max(east - west, north - south, 1.0)
    margin = 0.03 * _PIXELS
    size = np.ceil(np.array([north - south, east - west]) * scale + 2 * margin).astype(int)
    lines = shapely.transform(
        network.lines, lambda xy: (xy - [west, north]) * [scale, -scale] + margin
    )
    return np.full((*size, 3), BACKGROUND_COLOUR, np.uint8), lines


def _image(
    network: RoadGraph, over: Path, pixel_size_m: float | tuple[float, float] | None
) -> _Backdrop:
    """Return an image, and the lines in its pixels."""
    picture = read_picture(over)
    grid = picture.grid
    lines = _in_pixels(network, over, grid, pixel_size_m)
    if len(lines):
        left, top, right, bottom = shapely.total_bounds(lines)
        if not (left < grid.width and right > 0 and top < grid.height and bottom > 0):
            raise UsageError(f"{over} does not overlap the roads. Give an image of the same area")
    scale = np.array(picture.rgb.shape[1::-1]) / grid.shape[::-1]
    return picture.rgb, shapely.transform(lines, lambda xy: xy * scale)


def read_picture(path: StrPath) -> Picture:
    """Read an image with at most about 1600 pixels per side; other dtypes become uint8."""
    from geoprep.imagery import Raster

    with open_image(str(path)) as image:
        raster = Raster.of(image, str(path))
        step = max(1.0, max(image.shape) / _PIXELS)
        shape = tuple(max(1, round(side / step)) for side in image.shape)
        bands = [1, 2, 3] if image.count >= 3 else [1]
        values = image.read(bands, out_shape=(len(bands), *shape))
    return Picture(_shown(values), raster.grid)


def _in_pixels(
    network: RoadGraph,
    over: Path,
    grid: Grid,
    pixel_size_m: float | tuple[float, float] | None,
) -> NDArray[np.object_]:
    """Return the lines of a road network in pixel coordinates of an image."""
    if network.crs is None:
        if pixel_size_m is None:
            raise UsageError(
                f"the road network is not georeferenced. Give the pixel size of {over} in metres "
                "by `pixel_size`"
            )
        return shapely.transform(network.lines, lambda xy: xy * [1, -1] / pixel_size_m)
    if not grid.georeferenced:
        raise UsageError(f"{over} is not georeferenced, but the roads are. Give another image")
    return shapely.transform(reproject(network.lines, network.crs, grid.crs), grid.to_pixels)


def _shown(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return uint8 (y, x, 3); other dtypes are stretched between percentiles 1 and 99."""
    if values.dtype != np.uint8:
        low, high = np.nanpercentile(values, (1, 99))
        values = np.clip((values - low) * (255 / max(high - low, 1e-9)), 0, 255)
        values = np.nan_to_num(values).astype(np.uint8)
    return np.broadcast_to(np.moveaxis(values, 0, -1), (*values.shape[1:], 3))


def _draw(
    path: Path, network: RoadGraph, rgb: NDArray[np.uint8], drawn: NDArray[np.object_]
) -> None:
    import matplotlib.patheffects as effects
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    height, width = rgb.shape[:2]
    inches = _INCHES * np.array([width, height]) / max(width, height)
    figure = Figure(figsize=inches, facecolor=_PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(rgb, extent=(0, width, height, 0), interpolation="bilinear")
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    casing = [effects.Stroke(linewidth=_CASING_PT, foreground="black"), effects.Normal()]
    handles = []
    known = np.isfinite(network.speed_mph)
    bins = np.where(known, BIN_TABLE[to_byte(np.where(known, network.speed_mph, 1.0))], 0)
    within = shapely.length(shapely.intersection(drawn, shapely.box(0, 0, width, height)))
    metres = network.length_m * within / np.maximum(shapely.length(drawn), 1e-9)
    for number in np.unique(bins).tolist():
        mine = bins == number
        colour = np.array(SPEED_COLOURS[number - 1] if number else _UNKNOWN) / 255
        kilometres = metres[mine].sum() / 1000
        name = f"{bin_label(number)} mph" if number else "speed unknown"
        lines = LineCollection(
            [shapely.get_coordinates(line) for line in drawn[mine]],
            colors=[colour],
            linewidths=_LINE_PT,
            capstyle="round",
            label=f"{name}  ({kilometres:.1f} km)",
            path_effects=casing,
        )
        handles.append(axes.add_collection(lines))
    if handles:
        axes.legend(
            handles=handles,
            loc="upper left",
            framealpha=0.9,
            facecolor="#3a3f4b",
            labelcolor="white",
            fontsize=10,
        )
    save(figure, path, dpi=_PIXELS / _INCHES)
