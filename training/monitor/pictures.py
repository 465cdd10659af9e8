"""Pictures of a run: what a network sees, should find and finds; and its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from geoprep.storage import replaced
from geoprep.views import GROUND, SPEED_COLOURS, bin_label, natural_bands, speed_colours

PANELS = (240, 320)
"""Least and largest side of a tile in a picture, in pixels."""
GAP = 6
STRIP = 22
"""Height of a line of text."""
TITLES = ("image", "truth", "prediction")


@dataclass(frozen=True, slots=True)
class Example:
    """A tile, its label and a prediction of it.

    Attributes
    ----------
    image
        uint8 (y, x, band).
    truth, prediction
        uint8 (y, x), mph; 0 no road, 255 no data.
    """

    image: NDArray[np.uint8]
    truth: NDArray[np.uint8]
    prediction: NDArray[np.uint8]


def choose_tiles(road_fraction: NDArray[np.float32], count: int) -> list[int]:
    """Return tiles to look at: spread evenly over those with more road than the median."""
    order = np.argsort(-road_fraction, kind="stable")[: max(count, len(road_fraction) // 2)]
    picks = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    return [int(tile) for tile in order[picks]]


def draw_examples(
    path: Path, examples: Sequence[Example], bands: Sequence[str], title: str
) -> None:
    """Draw one row a tile: image, truth, prediction; speeds in the colours of all our pictures.

    Parameters
    ----------
    path
        Of the PNG; it appears at once or not at all.
    examples
        At least one, of one size.
    bands
        Names of the image's bands.
    title
        A line above.
    """
    rgb = list(natural_bands(tuple(bands)))
    side = min(max(PANELS[0], *examples[0].truth.shape), PANELS[1])
    width = 3 * side + 2 * GAP
    sheet = Image.new("RGB", (width, 2 * STRIP + len(examples) * (side + GAP) + STRIP), GROUND)
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, 5), title, fill="white")
    for column, name in enumerate(TITLES):
        draw.text((column * (side + GAP) + GAP, STRIP + 5), name, fill="white")
    colours = speed_colours()
    for row, example in enumerate(examples):
        image = np.broadcast_to(example.image[..., rgb], (*example.image.shape[:2], 3))
        panels = (image, colours[example.truth], colours[example.prediction])
        for column, pixels in enumerate(panels):
            how = Image.Resampling.BOX if column == 0 else Image.Resampling.NEAREST
            panel = Image.fromarray(np.ascontiguousarray(pixels)).resize((side, side), how)
            sheet.paste(panel, (column * (side + GAP), 2 * STRIP + row * (side + GAP)))
    _legend(draw, sheet.height - STRIP, width)
    with replaced(path) as partial:
        sheet.save(partial, "PNG")


def _legend(draw: ImageDraw.ImageDraw, top: int, width: int) -> None:
    step = width // (len(SPEED_COLOURS) + 1)
    for number, colour in enumerate(SPEED_COLOURS, start=1):
        at = (number - 1) * step
        draw.rectangle((at + GAP, top + 6, at + GAP + 10, top + 16), fill=colour)
        label = bin_label(number).replace("–", "-").replace("≤", "<=")
        draw.text((at + GAP + 15, top + 5), label, fill="white")
    draw.text((len(SPEED_COLOURS) * step + GAP, top + 5), "mph", fill="white")


def draw_curves(path: Path, history: Sequence[Mapping[str, float]]) -> None:
    """Draw loss, IoU and learning rate over epochs.

    Parameters
    ----------
    path
        Of the PNG.
    history
        Rows of metrics.csv.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    epochs = [row["epoch"] for row in history]
    panels = (
        ("loss", (("loss", "training"), ("val_loss", "validation"))),
        ("IoU on validation tiles", (("road_iou", "road"), ("bin_iou", "mean of speed bins"))),
        ("learning rate", (("lr", "learning rate"),)),
    )
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 3.2), dpi=120, layout="constrained")
        for axes, (title, lines) in zip(figure.subplots(1, 3), panels, strict=True):
            for name, label in lines:
                values = [row.get(name, float("nan")) for row in history]
                axes.plot(epochs, values, marker=".", label=label)
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_xlabel("epoch")
            axes.grid(color="#DDDDDD", linewidth=0.6)
            if len(lines) > 1:
                axes.legend(frameon=False, fontsize=9)
        with replaced(path) as partial:
            figure.savefig(partial)
