"""Pictures of predictions over their images, and styles for QGIS."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np
import rasterio
from numpy.typing import NDArray
from PIL import Image
from rasterio.windows import Window

from geoprep.imagery.counts import count_source
from geoprep.imagery.resample import rendered
from geoprep.imagery.rescale import lookup_tables, percentile_limits
from geoprep.imagery.values import open_values
from geoprep.palette import BACKGROUND_COLOUR, NODATA_GREYS
from geoprep.speed import BACKGROUND, NODATA
from geoprep.storage.output_files import replaced
from geoprep.store.classes import BACKGROUND_NAME
from geoprep.texts import printable
from geoprep.views.display import CLASS_OPACITY, natural_bands
from training.checkpoint import ModelInfo
from training.pictures import ANY_ROAD_MPH, LEGEND_WIDTH, LINE, colours_of, draw_legend
from training.prediction.images import ImageSource
from training.runners.decoding import CLASS_BAND, ROAD_BAND, SPEED_BAND

LONGEST = 2048
"""Largest side of an overlay in pixels."""

_OPACITY = 0.85
_DIMMED = 0.7
_QML = """<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<qgis version="3.28" styleCategories="Symbology">
  <pipe>
    <rasterrenderer type="{renderer}" band="{band}" opacity="1" alphaBand="-1"{colours}
    </rasterrenderer>
  </pipe>
</qgis>
"""
_SPEEDS = """
        classificationMin="0" classificationMax="{top:g}">
      <rastershader>
        <colorrampshader colorRampType="DISCRETE" classificationMode="1" clip="0"
            minimumValue="0" maximumValue="{top:g}">
{items}
        </colorrampshader>
      </rastershader>"""
"""One class per colour, up to its ``value``; the first one, background, is transparent.

QGIS compares with values in the unit of the band: those of the file times its scale.
"""

_CLASSES = """>
      <colorPalette>
{items}
      </colorPalette>"""


def write_overlay(source: ImageSource, target: Path, info: ModelInfo, threshold: float) -> None:
    """Write ``NAME.png`` next to a prediction: its roads or classes over the image."""
    with rasterio.open(target) as dataset:
        label: NDArray[np.uint8] = dataset.read(1 + _band(info), out_shape=_size(dataset.shape))
    nodata, hidden, opacity, brightness = label == NODATA, BACKGROUND, _OPACITY, _DIMMED
    if info.has_classes:
        opacity, brightness = CLASS_OPACITY, 1.0
        hidden = 0 if info.class_names[0] == BACKGROUND_NAME else NODATA
    elif not info.class_mph:  # one speed for all roads
        label = np.where(label >= threshold * 255, ANY_ROAD_MPH, BACKGROUND).astype(np.uint8)
    colours, legend = colours_of(info.classes, bool(info.class_mph))
    picture = _brightened(source, info.bands, label.shape) * brightness
    shown = ~nodata & (label != hidden)
    picture[shown] += (colours[label][shown] - picture[shown]) * opacity
    picture[nodata] = NODATA_GREYS[0]
    larger = -(-LEGEND_WIDTH // label.shape[1])  # of small images, to the width of the legend
    picture = picture.repeat(larger, axis=0).repeat(larger, axis=1)
    height, width = picture.shape[:2]
    sheet = Image.new("RGB", (max(width, LEGEND_WIDTH), height + LINE), BACKGROUND_COLOUR)
    sheet.paste(Image.fromarray(picture.round().astype(np.uint8)), (0, 0))
    if info.has_classes and hidden == BACKGROUND:
        legend = legend[1:]
    draw_legend(sheet, height, [*legend, ("nodata", NODATA_GREYS[0])])
    with replaced(target.with_suffix(".png")) as partial:
        sheet.save(partial, "PNG")


def _band(info: ModelInfo) -> int:
    """Return the index of the band that is shown."""
    return CLASS_BAND if info.has_classes else SPEED_BAND if info.class_mph else ROAD_BAND


def _size(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a size with the same proportions and at most `LONGEST` pixels a side."""
    scale = max(1.0, max(shape) / LONGEST)
    return tuple(max(1, round(side / scale)) for side in shape)


def write_style(path: Path, info: ModelInfo, threshold: float) -> None:
    """Write ``NAME.qml`` next to a prediction, a QGIS style with the colours of the overlay."""
    _, legend = colours_of(info.classes, bool(info.class_mph))
    line = '          <item value="{:g}" label={} color="{}" alpha="{}"/>'
    renderer, colours, steps = (
        "singlebandpseudocolor",
        _SPEEDS,
        [(0.0, "no road", BACKGROUND_COLOUR)],
    )
    if info.has_classes:
        line = '        <paletteEntry value="{}" label={} color="{}" alpha="{}"/>'
        renderer, colours = "paletted", _CLASSES
        steps = [(value, name, colour) for value, (name, colour) in enumerate(legend)]
    elif info.class_mph:
        tops = (*(10.0 * number for number in range(1, len(legend))), 254.0)
        steps += [(top, *entry) for top, entry in zip(tops, legend, strict=True)]
    else:
        least = np.ceil(threshold * 255) - 0.5  # between two values of the file
        steps = [(least / 255, "no road", BACKGROUND_COLOUR), (1.0, *legend[0])]
    items = "\n".join(
        line.format(
            value,
            quoteattr(printable(label)),
            f"#{bytes(colour).hex()}",
            255 if number or info.has_classes else 0,
        )
        for number, (value, label, colour) in enumerate(steps)
    )
    colours = colours.format(items=items, top=steps[-1][0])
    text = _QML.format(renderer=renderer, band=1 + _band(info), colours=colours)
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _brightened(
    source: ImageSource, names: tuple[str, ...], shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """Return the image in natural colours, float32 (y, x, 3), stretched to its percentiles."""
    shown = natural_bands(names)
    bands = [source.scene.bands[i] for i in shown]
    (top, left, *_), (down, right) = source.extent, source.scales
    corner = (left, top) if source.on_image else (left * right, top * down)
    part = Window(*map(round, corner), *reversed(source.part_lengths))
    part = part.intersection(Window(0, 0, *reversed(source.lengths)))
    with open_values(source.scene.address) as image:
        pixels = image.picture(shape, bands, part)
    tables = lookup_tables(percentile_limits(count_source(pixels)), source.scene.dtype)
    ys, xs = (np.arange(length + 1.0) for length in shape)
    stretched, _ = rendered(pixels, tables, ys, xs)
    return np.repeat(stretched, 3 // len(shown), axis=-1).astype(np.float32)
