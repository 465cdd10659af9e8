"""Pictures of a run: what a network sees, should find, finds and gets wrong; and its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from geoprep.palette import (
    BACKGROUND_COLOUR,
    NODATA_GREYS,
    SPEED_COLOURS,
    bin_label,
    speed_bin,
    speed_colours,
)
from geoprep.speed import BACKGROUND, NODATA
from geoprep.storage import replaced
from geoprep.views import natural_bands

PANELS = (240, 320)
"""Least and largest side of a tile in a picture, in pixels."""
GAP = 6
LINE = 22
"""Height of a line of text."""
LEGEND_WIDTH = 620
"""Pixels that the longest legend needs."""
TITLES = ("image", "truth", "prediction", "errors")
ANY_ROAD_MPH = 45
"""In whose colour a road is drawn where no speed is told."""

HIT, MISSED, INVENTED = (120, 125, 135), (255, 236, 70), (224, 62, 110)
"""Colours of errors; blue and green stay out, so that they differ for every eye."""

Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Example:
    """A tile, its label and a prediction of it.

    Attributes
    ----------
    image
        uint8 (y, x, band).
    truth, prediction
        uint8 (y, x), mph; 0 no road, 255 no data.
    has_speed
        Whether the network tells speeds; where it does not, all roads have one colour.
    """

    image: NDArray[np.uint8]
    truth: NDArray[np.uint8]
    prediction: NDArray[np.uint8]
    has_speed: bool = True


def choose_tiles(road_fraction: NDArray[np.float32], count: int) -> list[int]:
    """Return tiles to look at: spread evenly over those with more road than the median."""
    order = np.argsort(-road_fraction, kind="stable")[: max(count, len(road_fraction) // 2)]
    picks = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    return [int(tile) for tile in order[picks]]


def draw_examples(
    path: Path, examples: Sequence[Example], bands: Sequence[str], title: str
) -> None:
    """Draw one row per tile: image, truth, prediction and errors, in the colours of all pictures.

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
    width = len(TITLES) * (side + GAP) - GAP
    sheet = Image.new(
        "RGB", (width, 2 * LINE + len(examples) * (side + GAP) + LINE), BACKGROUND_COLOUR
    )
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, 5), title, fill="white")
    for column, name in enumerate(TITLES):
        draw.text((column * (side + GAP) + GAP, LINE + 5), name, fill="white")
    for row, example in enumerate(examples):
        for column, pixels in enumerate(_panels(example, rgb)):
            how = Image.Resampling.BOX if column == 0 else Image.Resampling.NEAREST
            panel = Image.fromarray(np.ascontiguousarray(pixels)).resize((side, side), how)
            sheet.paste(panel, (column * (side + GAP), 2 * LINE + row * (side + GAP)))
    speeds = legend_entries(None if examples[0].has_speed else ANY_ROAD_MPH)
    errors = [("found", HIT), ("missed", MISSED), ("invented", INVENTED)]
    draw_legend(sheet, sheet.height - LINE, [*speeds, ("no data", NODATA_GREYS[1])])
    draw_legend(sheet, sheet.height - LINE, errors, left=3 * (side + GAP))
    with replaced(path) as partial:
        sheet.save(partial, "PNG")


def _panels(example: Example, rgb: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Return uint8 (y, x, 3) per title."""
    image = np.broadcast_to(example.image[..., rgb], (*example.image.shape[:2], 3))
    truth, found = example.truth, example.prediction
    colours = speed_colours()
    if not example.has_speed:
        colours[1:NODATA] = colours[ANY_ROAD_MPH]
    known = (truth != NODATA) & (found != NODATA)
    is_road, said_road = known & (truth != BACKGROUND), known & (found != BACKGROUND)
    errors = colours[np.where(known, BACKGROUND, NODATA)]
    errors[is_road & said_road] = HIT
    errors[is_road & ~said_road] = MISSED
    errors[said_road & ~is_road] = INVENTED
    return [image, colours[truth], colours[found], errors]


def legend_entries(one_speed: int | None = None) -> list[tuple[str, Colour]]:
    """Return label and colour of each speed bin in mph; of ``one_speed``, of roads without one."""
    if one_speed is not None:
        return [("road", SPEED_COLOURS[speed_bin(one_speed) - 1])]
    labels = [f"{bin_label(number)} mph" for number in range(1, len(SPEED_COLOURS) + 1)]
    return list(zip(labels, SPEED_COLOURS, strict=True))


def draw_legend(
    sheet: Image.Image, top: int, entries: Sequence[tuple[str, Colour]], left: int = 0
) -> None:
    """Draw a line of coloured boxes and what they mean.

    Parameters
    ----------
    sheet
        Drawn upon.
    top, left
        Where, in pixels; `LINE` high.
    entries
        Label and colour.
    """
    draw, at = ImageDraw.Draw(sheet), left + GAP
    for label, colour in entries:
        draw.rectangle((at, top + 6, at + 10, top + 16), fill=colour)
        # What is drawn here has no other characters than Latin 1.
        text = label.replace("–", "-").replace("≤", "<=")
        draw.text((at + 15, top + 5), text, fill="white")
        at += 15 + round(draw.textlength(text)) + 12


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

    panels = {
        "loss": {"loss": "training", "val_loss": "validation"},
        "IoU on validation tiles": {"road_iou": "road", "bin_iou": "mean of speed bins"},
        "learning rate": {"lr": "learning rate"},
    }
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True}):
        figure = Figure(figsize=(10, 3.2), dpi=120, layout="constrained")
        for axes, (title, lines) in zip(figure.subplots(1, 3), panels.items(), strict=True):
            for name, label in lines.items():
                values = [row.get(name, float("nan")) for row in history]
                axes.plot([row["epoch"] for row in history], values, marker=".", label=label)
            axes.set(title=title, xlabel="epoch")
            axes.legend()
        with replaced(path) as partial:
            figure.savefig(partial)
