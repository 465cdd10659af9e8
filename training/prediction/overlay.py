"""Pictures of predictions over their images, and styles for QGIS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import rasterio
from numpy.typing import NDArray
from PIL import Image

from geoprep import imagery
from geoprep.palette import BACKGROUND_COLOUR, NODATA_GREYS, SPEED_COLOURS, speed_colours
from geoprep.speed import BACKGROUND, NODATA
from geoprep.storage import open_image, replaced
from geoprep.store import BACKGROUND_NAME, ClassTable
from geoprep.views import natural_bands
from training.checkpoint import ModelInfo
from training.monitor import (
    ANY_ROAD_MPH,
    LEGEND_WIDTH,
    LINE,
    class_entries,
    draw_legend,
    legend_entries,
)
from training.prediction.blend import CLASS_BAND, ROAD_BAND, SPEED_BAND
from training.prediction.images import ImageSource
from training.prediction.window_rows import bounded_cache

LONGEST = 2048
"""Largest side of an overlay in pixels."""

_OPACITY = 0.85
_CLASS_OPACITY = 0.55
_DIMMED = 0.7
_QML = """<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<qgis version="3.28" styleCategories="Symbology">
  <pipe>
    <rasterrenderer type="singlebandpseudocolor" band="{band}" opacity="1" alphaBand="-1"
        classificationMin="0" classificationMax="254">
      <rastershader>
        <colorrampshader colorRampType="DISCRETE" classificationMode="1" clip="0"
            minimumValue="0" maximumValue="254">
{items}
        </colorrampshader>
      </rastershader>
    </rasterrenderer>
  </pipe>
</qgis>
"""
"""One class per colour, up to its ``value``; the first one, background, is transparent."""

_CLASS_QML = """<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<qgis version="3.28" styleCategories="Symbology">
  <pipe>
    <rasterrenderer type="paletted" band="{band}" opacity="1" alphaBand="-1">
      <colorPalette>
{items}
      </colorPalette>
    </rasterrenderer>
  </pipe>
</qgis>
"""


def write_overlay(source: ImageSource, target: Path, info: ModelInfo, threshold: float) -> None:
    """Write ``NAME.png`` next to a prediction: its roads or classes over the image."""
    band = CLASS_BAND if info.has_classes else SPEED_BAND if info.class_mph else ROAD_BAND
    with rasterio.open(target) as dataset:
        label: NDArray[np.uint8] = dataset.read(1 + band, out_shape=_size(dataset.shape))
    nodata, hidden, opacity = label == NODATA, BACKGROUND, _OPACITY
    if info.has_classes:
        colours, legend = info.classes.colour_table(), class_entries(info.classes)
        opacity = _CLASS_OPACITY
        hidden = 0 if info.class_names[0] == BACKGROUND_NAME else NODATA
    else:
        colours = speed_colours()
        legend = legend_entries(None if info.class_mph else ANY_ROAD_MPH)
        if not info.class_mph:  # one speed for all roads
            label = np.where(label >= threshold * 255, ANY_ROAD_MPH, BACKGROUND).astype(np.uint8)
    picture = _brightened(source, info.bands, label.shape) * _DIMMED
    shown = ~nodata & (label != hidden)
    picture[shown] += (colours[label][shown] - picture[shown]) * opacity
    picture[nodata] = NODATA_GREYS[0]
    _write_sheet(target, picture, legend)


def _size(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a size with the same proportions and at most `LONGEST` pixels a side."""
    scale = max(1.0, max(shape) / LONGEST)
    return tuple(max(1, round(side / scale)) for side in shape)


def _write_sheet(
    target: Path, picture: NDArray[np.float32], legend: Sequence[tuple[str, tuple[int, int, int]]]
) -> None:
    """Write a picture, float32 (y, x, 3), with a legend below it."""
    height, width = picture.shape[:2]
    sheet = Image.new("RGB", (max(width, LEGEND_WIDTH), height + LINE), BACKGROUND_COLOUR)
    sheet.paste(Image.fromarray(picture.round().astype(np.uint8)), (0, 0))
    draw_legend(sheet, height, [*legend, ("no data", NODATA_GREYS[0])])
    with replaced(target.with_suffix(".png")) as partial:
        sheet.save(partial, "PNG")


def write_class_style(path: Path, classes: ClassTable) -> None:
    """Write ``NAME.qml`` next to a prediction of classes: their names and colours for QGIS."""
    items = "\n".join(
        f'        <paletteEntry value="{value}" label={quoteattr(name)} color="{colour}" '
        f'alpha="255"/>'
        for value, (name, colour) in enumerate(zip(classes.names, classes.colors, strict=True))
    )
    with replaced(path) as partial:
        partial.write_text(_CLASS_QML.format(band=1 + CLASS_BAND, items=items), encoding="utf-8")


def write_style(path: Path, has_speed: bool, threshold: float) -> None:
    """Write ``NAME.qml`` next to a prediction, a QGIS style with the colours of the overlay."""
    if has_speed:
        steps = [(0.0, "no road", BACKGROUND_COLOUR)]
        steps += [
            (10.0 * number if number < len(SPEED_COLOURS) else 254.0, label, colour)
            for number, (label, colour) in enumerate(legend_entries(), start=1)
        ]
    else:
        (label, colour), *_ = legend_entries(ANY_ROAD_MPH)
        steps = [
            (np.ceil(threshold * 255) - 1, f"no {label}", BACKGROUND_COLOUR),
            (254.0, label, colour),
        ]
    items = "\n".join(
        f'          <item value="{value:g}" label={quoteattr(label)} '
        f'color="#{bytes(colour).hex()}" alpha="{255 if number else 0}"/>'
        for number, (value, label, colour) in enumerate(steps)
    )
    band = 1 + (SPEED_BAND if has_speed else ROAD_BAND)
    with replaced(path) as partial:
        partial.write_text(_QML.format(band=band, items=items), encoding="utf-8")


def _brightened(
    source: ImageSource, names: tuple[str, ...], shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """Return the image in natural colours, float32 (y, x, 3), stretched to its percentiles."""
    shown = natural_bands(names)
    with bounded_cache(), open_image(source.address) as dataset:
        read: Any = dataset.read([source.bands[i] for i in shown], out_shape=(len(shown), *shape))
        nodata = dataset.nodata
    values = np.ascontiguousarray(np.moveaxis(read, 0, 2), imagery.held_dtype(source.dtype))
    valid = None
    if imagery.is_held_wide(values):
        usable = imagery.find_usable(values, nodata)
        values[~usable] = 0
        valid = usable.view(np.uint8)
    tables = imagery.lookup_tables(
        imagery.percentile_limits(imagery.count_source(imagery.ImageWindow(values, valid))),
        source.dtype,
    )
    return np.repeat(imagery.to_bytes(values, tables), 3 // len(shown), axis=-1).astype(np.float32)
