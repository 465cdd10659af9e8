"""Pictures of a model: image, label, prediction and errors of tiles; curves of its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from geoprep import palette
from geoprep.speed import BACKGROUND, NODATA
from geoprep.storage.output_files import replaced
from geoprep.store.classes import ClassTable
from geoprep.views.display import MOSTLY_VALID, natural_bands

PANELS = (240, 320)
"""Minimum and maximum side of a tile in a picture, in pixels."""
OUTLYING = 5.0
"""Losses above this many times their median are not shown."""
GAP = 6
LINE = 22
"""Height of a line of text in pixels."""
LEGEND_WIDTH = 620
"""Width of the longest legend in pixels."""
TITLES = ("image", "label", "prediction", "errors")
ANY_ROAD_MPH = 45
"""Speed whose colour roads without a speed have."""

HIT, MISSED, FALSE = (64, 132, 214), (255, 236, 70), (224, 62, 110)
"""Colours of errors, without green and grey: colour-blind people can tell them apart, and from
nodata (at least 20 in CIEDE2000)."""

Colour = tuple[int, int, int]
NO_CLASSES = ClassTable((), ())


@dataclass(frozen=True, slots=True)
class Example:
    """A tile with its label and prediction.

    uint8 (y, x, band) and uint8 (y, x): classes, or mph with 0 for background; 255 is nodata.
    """

    image: NDArray[np.uint8]
    label: NDArray[np.uint8]
    prediction: NDArray[np.uint8]
    has_speed: bool = True
    classes: ClassTable = NO_CLASSES


def choose_tiles(
    road_fraction: NDArray[np.float32], valid_fraction: NDArray[np.float32], count: int
) -> list[int]:
    """Return indices of tiles for a picture, spread evenly over the half with more road.

    Tiles with more than a tenth of nodata are taken only where the others are too few.
    """
    mostly_valid = int((valid_fraction >= MOSTLY_VALID).sum())
    order = np.lexsort((-road_fraction, valid_fraction < MOSTLY_VALID))
    order = order[: max(count, (mostly_valid or len(order)) // 2)]
    picks = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    return [int(tile) for tile in order[picks]]


def draw_examples(
    path: Path, examples: Sequence[Example], bands: Sequence[str], title: str
) -> None:
    """Draw one row per tile: image, label, prediction and errors."""
    rgb = list(natural_bands(tuple(bands)))
    side = min(max(PANELS[0], *examples[0].label.shape), PANELS[1])
    width = len(TITLES) * (side + GAP) - GAP
    sheet = Image.new(
        "RGB", (width, 2 * LINE + len(examples) * (side + GAP) + LINE), palette.BACKGROUND_COLOUR
    )
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, 5), title, fill="white")
    for column, name in enumerate(TITLES):
        draw.text((column * (side + GAP) + GAP, LINE + 5), name, fill="white")
    for row, example in enumerate(examples):
        for column, pixels in enumerate(_panels(example, rgb)):
            method = Image.Resampling.BOX if column == 0 else Image.Resampling.NEAREST
            panel = Image.fromarray(np.ascontiguousarray(pixels)).resize((side, side), method)
            sheet.paste(panel, (column * (side + GAP), 2 * LINE + row * (side + GAP)))
    classes, errors = examples[0].classes, [("found", HIT), ("missed", MISSED), ("false", FALSE)]
    if classes and not classes.is_single:
        errors = [("wrong", FALSE)]
    _, entries = colours_of(classes, examples[0].has_speed)
    draw_legend(sheet, sheet.height - LINE, [*entries, ("nodata", palette.NODATA_GREYS[1])])
    draw_legend(sheet, sheet.height - LINE, errors, left=3 * (side + GAP))
    with replaced(path) as partial:
        sheet.save(partial, "PNG")


def _panels(example: Example, rgb: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Return a panel uint8 (y, x, 3) for each title."""
    image = np.broadcast_to(example.image[..., rgb], (*example.image.shape[:2], 3))
    label, predicted = example.label, example.prediction
    colours, _ = colours_of(example.classes, example.has_speed)
    known = (label != NODATA) & (predicted != NODATA)
    errors = colours[np.where(known, BACKGROUND, NODATA)]
    if example.classes and not example.classes.is_single:
        errors[known] = image[known] // 2
        errors[known & (label != predicted)] = FALSE
        return [image, colours[label], colours[predicted], errors]
    road, predicted_road = known & (label != BACKGROUND), known & (predicted != BACKGROUND)
    errors[road & predicted_road] = HIT
    errors[road & ~predicted_road] = MISSED
    errors[predicted_road & ~road] = FALSE
    return [image, colours[label], colours[predicted], errors]


def colours_of(
    classes: ClassTable, has_speed: bool
) -> tuple[NDArray[np.uint8], list[tuple[str, Colour]]]:
    """Return the colour of every label byte, uint8 (256, 3), and text and colour of a legend."""
    if classes:
        rows = classes.rgb.tolist()
        entries = [(name, (r, g, b)) for name, (r, g, b) in zip(classes.names, rows, strict=True)]
        return classes.colour_table(), entries
    colours = palette.speed_colours()
    if has_speed:
        numbers = range(1, len(palette.SPEED_COLOURS) + 1)
        labels = [f"{palette.bin_label(number)} mph" for number in numbers]
        return colours, list(zip(labels, palette.SPEED_COLOURS, strict=True))
    colours[1:NODATA] = road = palette.SPEED_COLOURS[palette.speed_bin(ANY_ROAD_MPH) - 1]
    return colours, [("road", road)]


def draw_legend(
    sheet: Image.Image, top: int, entries: Sequence[tuple[str, Colour]], left: int = 0
) -> None:
    """Draw a legend, a line of coloured boxes with text."""
    draw, x = ImageDraw.Draw(sheet), left + GAP
    for label, colour in entries:
        draw.rectangle((x, top + 6, x + 10, top + 16), fill=colour)
        # Pillow's default font has the characters of Latin 1 only.
        text = label.replace("–", "-").replace("≤", "<=")
        draw.text((x + 15, top + 5), text, fill="white")
        x += 15 + round(draw.textlength(text)) + 12


def draw_curves(path: Path, history: Sequence[Mapping[str, float]]) -> None:
    """Draw loss, IoU and learning rate over epochs."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    scores = {"road_iou": "road", "bin_iou": "mean of speed bins"}
    scores |= {"mean_iou": "mean", "worst_iou": "worst class"}
    panels = {
        "loss": {"loss": "training", "val_loss": "validation"},
        "IoU on validation tiles": scores,
        "learning rate": {"lr": "learning rate"},
    }
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True}):
        figure = Figure(figsize=(10, 3.2), dpi=120, layout="constrained")
        epochs = np.array([row["epoch"] for row in history])
        for axes, (title, lines) in zip(figure.subplots(1, 3), panels.items(), strict=True):
            axes.set(title=title, xlabel="epoch")
            curves, usual = [np.empty(0)], [0.0]
            for name, label in lines.items():
                found = np.array([row.get(name, np.nan) for row in history])
                there = np.isfinite(found)  # not of every epoch: one line joins the validated ones
                values = found[there]
                if values.size:
                    axes.plot(epochs[there], values, marker=".", label=label)
                    axes.legend()
                    curves.append(values)
                    usual.append(values[values <= OUTLYING * np.median(values)].max())
            higher = (np.concatenate(curves) > max(usual)).sum()
            if title == "loss" and higher:  # one such value would flatten the rest
                axes.set(title=f"loss ({higher} higher, not shown)")
                axes.set_ylim(0, 1.05 * max(usual))
        with replaced(path) as partial:
            figure.savefig(partial)
