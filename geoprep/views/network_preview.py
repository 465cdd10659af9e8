"""Draw roads coloured by speed or polygons by class, over an image or a dark background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, crs_name, metric_crs, reproject
from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid
from geoprep.outputs import require_suffix
from geoprep.palette import BACKGROUND_COLOUR, SPEED_COLOURS, bin_label, class_colours
from geoprep.roads.network import RoadGraph
from geoprep.speed import BIN_TABLE, to_byte
from geoprep.storage.output_files import replaced
from geoprep.views.display import CLASS_OPACITY, SUFFIXES, hatch, natural_bands
from geoprep.views.sheet import draw_legend, save

if TYPE_CHECKING:
    from geoprep.imagery.decoding import ImageWindow

_PIXELS: Final = 1600
_INCHES: Final = 10.0
_UNKNOWN: Final = (210, 213, 220)
_PAPER: Final = "#ffffff"
_LINE_PT, _OUTLINE_PT, _CASING_PT = 1.9, 1.2, 1.3


_Backdrop = tuple[NDArray[np.uint8], NDArray[np.object_]]
"""The picture below some lines or polygons, uint8 (y, x, 3), and these in its pixel coordinates."""
_Group = tuple[str, NDArray[np.float64], NDArray[np.object_]]
"""Text of the legend, colour (red, green and blue, 0 to 1), and lines in pixel coordinates."""


def preview_network(
    network: RoadGraph,
    out: Path,
    *,
    over: Path | None = None,
    pixel_size_m: float | None = None,
) -> Path:
    """Draw a road network with a legend of its speeds and their length in the picture.

    ``pixel_size_m`` is that of ``over``, for a network that is not georeferenced.
    """
    rgb, lines = _backdrop(network.lines, network.crs, "roads", out, over, pixel_size_m)
    known = np.isfinite(network.speed_mph)
    bins = np.where(known, BIN_TABLE[to_byte(np.where(known, network.speed_mph, 1.0))], 0)
    within = shapely.length(shapely.intersection(lines, shapely.box(0, 0, *rgb.shape[1::-1])))
    metres = network.length_m * within / np.maximum(shapely.length(lines), 1e-9)
    groups: list[_Group] = []
    for number in np.unique(bins).tolist():
        mine = bins == number
        name = f"{bin_label(number)} mph" if number else "speed unknown"
        colour = np.array(SPEED_COLOURS[number - 1] if number else _UNKNOWN) / 255
        groups.append((f"{name}  ({metres[mine].sum() / 1000:.1f} km)", colour, lines[mine]))
    return _draw(out, rgb, groups, _LINE_PT)


def preview_polygons(
    path: Path, out: Path, *, over: Path | None = None, pixel_size_m: float | None = None
) -> Path:
    """Draw the polygons of a file in the colours of their field ``class``, or else of their layers.

    ``pixel_size_m`` is that of ``over``, for polygons that are not georeferenced. Raises LabelError
    if the file has no polygons.
    """
    from rasterio.features import rasterize

    from geoprep.labels.vector_files import VectorFile

    file = VectorFile.open(path)
    layers = [layer for layer in file.layers.values() if "LineString" not in layer.kind]
    crs = crs_name(layers[0].crs) if layers else None
    placed = layers if crs else [replace(layer, crs=LONLAT) for layer in layers]
    features = file.read(placed, ["class"]) if layers else None
    polygon = shapely.GeometryType.POLYGON
    if features is None or (shapely.get_type_id(features.shapes) != polygon).any():
        raise LabelError(f"{path}: has no layer of polygons alone")
    metric = metric_crs(features.shapes, crs)
    shapes = features.shapes
    if over is None:
        shapes = reproject(shapes, features.crs, metric or features.crs)
    if not np.isfinite(shapely.bounds(shapes)).all():
        raise UsageError(f"{path}: not on Earth by its CRS {features.crs}. Give it the right CRS")
    placed_in = metric if over is None else crs
    rgb, shapes = _backdrop(shapes, placed_in, "polygons", out, over, pixel_size_m)
    owners = zip(features.attributes, features.layers, strict=True)
    names = np.array([str(row.get("class") or layer) for row, layer in owners])[features.feature]
    classes = list(dict.fromkeys(names.tolist()))
    groups: list[_Group] = []
    for name, text in zip(classes, class_colours(classes), strict=True):
        mine, colour = shapes[names == name], np.array([*bytes.fromhex(text[1:])])
        inside = rasterize(mine, out_shape=rgb.shape[:2])[..., None] > 0
        mixed = CLASS_OPACITY * colour + (1 - CLASS_OPACITY) * rgb
        rgb = np.where(inside, mixed, rgb).astype(np.uint8)
        groups.append((name, colour / 255, shapely.get_parts(shapely.boundary(mine))))
    return _draw(out, rgb, groups, _OUTLINE_PT)


def _backdrop(
    shapes: NDArray[np.object_],
    crs: str | None,
    what: str,
    out: Path,
    over: Path | None,
    pixel_size_m: float | None,
) -> _Backdrop:
    """Return an image, or a dark background slightly larger than the shapes; and these on it."""
    require_suffix(out, *SUFFIXES)
    if over is None:
        return _dark(shapes)
    rgb, grid = _read_image(over)
    if crs is None:
        if pixel_size_m is None:
            raise UsageError(
                f"the {what} are not georeferenced. Give the pixel size of {over} in metres by "
                "`pixel_size`"
            )
        shapes = shapely.transform(shapes, lambda xy: xy * [1, -1] / pixel_size_m)
    elif not grid.georeferenced:
        raise UsageError(f"{over} is not georeferenced, but the {what} are. Give another image")
    else:
        is_area = shapely.get_dimensions(shapes) == 2
        placed = shapes.copy()
        placed[is_area] = grid.areas_near(shapes[is_area], crs)
        placed[~is_area] = reproject(shapes[~is_area], crs, grid.crs)
        shapes = shapely.transform(placed, grid.to_pixels)
    if len(shapes):
        left, top, right, bottom = shapely.total_bounds(shapes)
        if not (left < grid.width and right > 0 and top < grid.height and bottom > 0):
            raise UsageError(f"{over} does not overlap the {what}. Give an image of the same area")
    scale = np.array(rgb.shape[1::-1]) / grid.shape[::-1]
    return rgb, shapely.transform(shapes, lambda xy: xy * scale)


def _dark(shapes: NDArray[np.object_]) -> _Backdrop:
    if not len(shapes):
        return np.full((_PIXELS, _PIXELS, 3), BACKGROUND_COLOUR, np.uint8), shapes
    west, south, east, north = shapely.total_bounds(shapes)
    scale = 0.94 * _PIXELS / max(east - west, north - south, 1.0)
    margin = 0.03 * _PIXELS
    size = np.ceil(np.array([north - south, east - west]) * scale + 2 * margin).astype(int)
    shapes = shapely.transform(shapes, lambda xy: (xy - [west, north]) * [scale, -scale] + margin)
    return np.full((*size, 3), BACKGROUND_COLOUR, np.uint8), shapes


def _read_image(path: Path) -> tuple[NDArray[np.uint8], Grid]:
    """Return an image, uint8 (y, x, 3), at most about 1600 pixels per side, and its grid.

    Bands, palette and nodata are those of its description; nodata is hatched.
    """
    from geoprep.imagery.values import open_values

    with open_values(str(path)) as image:
        raster = image.raster
        step = max(1.0, max(raster.grid.shape) / _PIXELS)
        shape = tuple(max(1, round(side / step)) for side in raster.grid.shape)
        names = [raster.names[number - 1] for number in raster.default_bands]
        shown = natural_bands([name[-1] or name[0] for name in names])
        bands = [raster.default_bands[i] for i in shown]
        return _shown(image.picture(shape, bands)), raster.grid


def _shown(pixels: ImageWindow) -> NDArray[np.uint8]:
    """Return uint8 (y, x, 3); other dtypes are stretched between percentiles 1 and 99."""
    values, valid = pixels.values, np.ones(pixels.values.shape[:2], np.bool_)
    if pixels.valid is not None:
        valid = pixels.valid != 0
    if values.dtype != np.uint8 and valid.any():
        low, high = np.percentile(values[valid], (1, 99))
        scaled = (values.astype(np.float64) - low) * (255 / max(high - low, 1e-9))
        values = np.nan_to_num(np.clip(scaled, 0, 255))
    return np.where(valid[..., None], values.astype(np.uint8), hatch(valid.shape))


def _draw(path: Path, rgb: NDArray[np.uint8], groups: Sequence[_Group], line_pt: float) -> Path:
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
    casing = [effects.Stroke(linewidth=line_pt + _CASING_PT, foreground="black"), effects.Normal()]
    for _, colour, lines in groups:
        collection = LineCollection(
            [shapely.get_coordinates(line) for line in lines],
            colors=[colour],
            linewidths=line_pt,
            capstyle="round",
            path_effects=casing,
        )
        axes.add_collection(collection)
    if groups:
        draw_legend(
            *(axes, [name for name, *_ in groups], axes.collections),
            loc="upper left",
            framealpha=0.9,
            facecolor="#3a3f4b",
            labelcolor="white",
            fontsize=10,
        )
    with replaced(path) as partial:
        save(figure, partial, dpi=_PIXELS / _INCHES)
    return path
