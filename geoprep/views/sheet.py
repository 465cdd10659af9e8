"""Draw scenes of a store with matplotlib: image, label and overlay, with a legend."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from geoprep.palette import (
    BACKGROUND_COLOUR,
    NODATA_GREYS,
    SPEED_COLOURS,
    UNKNOWN_COLOUR,
    bin_label,
)
from geoprep.speed import BACKGROUND, NODATA, UNKNOWN_SPEED
from geoprep.store.classes import ClassTable
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import scene_roads, scene_splits, valid_share
from geoprep.store.schema import SPLIT_NAMES
from geoprep.views.display import CLASS_OPACITY, hatch, label_colours

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE: Final = 12.0
"""Width of every sheet in inches."""
DPI: Final = 160
_HEADER: Final = 1.3
_CAPTION: Final = 0.55
_ASPECTS: Final = (0.3, 2.5)
_LETTERS: Final = 120
"""Letters of a caption as wide as a sheet."""
_SIDE_BY_SIDE: Final = 3
"""More scenes than this stand two in a row."""
_INK, _FAINT, _BAD = "#14171e", "#6b7280", "#b3261e"
_NEARLY_ALL: Final = 0.995
_WITHOUT_SPEEDS: Final = 2
"""Number of legend entries of a store without speeds: background and road."""
_MOST_CLASSES: Final = 11
"""Classes in the legend."""


@dataclass(frozen=True, slots=True)
class SceneView:
    """One scene, with its pixels north up."""

    store: StoreReader
    scene: int
    rgb: NDArray[np.uint8]  # (y, x, 3)
    nodata: NDArray[np.bool_]  # (y, x), True without imagery
    label: NDArray[np.uint8]  # (y, x)
    aspect: float  # height divided by width on the ground
    width_m: float | None  # on the ground

    @property
    def status(self) -> str:
        """Status of the scene."""
        return str(self.store.scenes.status[self.scene])

    def caption(self, letters: int) -> str:
        """Return the end of its id, its split, width, and road share or reason of its status."""
        name, store, scene = str(self.store.scenes.id[self.scene]), self.store, self.scene
        facts = [SPLIT_NAMES[scene_splits(store)[scene]]]
        if self.width_m:
            facts.append(f"{self.width_m:,.0f} m wide")
        if self.status == "ok":
            valid = valid_share(store, scene)
            facts += [f"{valid:.0%} valid"] * (valid < _NEARLY_ALL)
            facts.append(f"{scene_roads(store)[scene]:.1%} {store.meta.share_name}")
        else:  # without folder names
            reason = re.sub(r"^\S*/\S*: |\S*/", "", str(store.scenes.reason[scene]))
            facts.append(f"{self.status}: {reason}")
        text = textwrap.shorten("  ·  ".join(facts), letters - min(len(name), 20), placeholder="…")
        if len(name) > (room := letters - len(text)):
            name = "…" + name[-room:]  # the end tells scenes apart
        return f"{name}  ·  {text}"


def scenes_across(count: int) -> int:
    """Return how many of some scenes stand side by side."""
    return 1 if count <= _SIDE_BY_SIDE else 2


def panel_pixels(count: int, columns: Sequence[str]) -> int:
    """Return the width in pixels of a panel on a sheet of some scenes."""
    return ceil(DPI * PAGE / (scenes_across(count) * len(columns)))


def draw(
    path: Path, views: Sequence[SceneView], columns: Sequence[str], header: tuple[str, str, str]
) -> None:
    """Draw scenes; the header is a title, the line below it, and the note at the bottom."""
    from matplotlib.figure import Figure

    title, facts, note = header
    across = scenes_across(len(views))
    rows = [views[i : i + across] for i in range(0, len(views), across)]
    panel = PAGE / (across * len(columns))
    tallest = (max(view.aspect for view in row) for row in rows)
    heights = [panel * min(max(aspect, _ASPECTS[0]), _ASPECTS[1]) + _CAPTION for aspect in tallest]
    figure = Figure((PAGE, _HEADER + sum(heights)), dpi=DPI, layout="constrained")
    ratios = (_HEADER, *heights)
    top, *middle = figure.subfigures(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0]
    top.text(0.01, 0.55, title, fontsize=24, fontweight="bold", color=_INK)
    top.text(0.01, 0.3, facts, fontsize=10.5, color=_FAINT)
    top.text(0.01, 0.1, note, fontsize=8.5, color=_FAINT)
    draw_colours(top, views, loc="upper right")
    for part, row in zip(middle, rows, strict=True):
        parts = part.subfigures(1, across, squeeze=False)[0]
        for own, view in zip(parts, row, strict=False):
            caption = {"fontsize": 9.5, "parse_math": False, "x": 0.01, "ha": "left"}
            colour = _INK if view.status == "ok" else _BAD
            own.suptitle(view.caption(_LETTERS // across), color=colour, **caption)
            for axes, column in zip(own.subplots(1, len(columns)), columns, strict=True):
                draw_panel(axes, view, column)
    save(figure, path, dpi=DPI)


def save(figure: Figure, path: Path, *, dpi: float) -> None:
    """Write a figure in the format of a file's suffix."""
    # In memory first: matplotlib leaves a PDF open if the disk is full.
    page = io.BytesIO()
    figure.savefig(page, format=path.suffix[1:] or None, dpi=dpi)
    path.write_bytes(page.getvalue())


def draw_legend(
    owner: Any,  # noqa: ANN401 - a figure, a part of one, or axes
    names: Sequence[str],
    handles: Sequence[Artist],
    **how: Any,  # noqa: ANN401 - as matplotlib has them
) -> None:
    """Draw a legend with its names as they are: two $ are no formula, a leading _ hides none."""
    legend = owner.legend(handles, ["name"] * len(names), **how)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def _boxes(used: set[int]) -> list[tuple[str, tuple[int, int, int]]]:
    """Return text and colour of the legend entries for the values of some labels."""
    ground, unknown = ("background", BACKGROUND_COLOUR), UNKNOWN_SPEED in used
    if unknown and not used - {BACKGROUND, UNKNOWN_SPEED, NODATA}:
        return [ground, ("road", UNKNOWN_COLOUR)]
    bins = range(1 if 1 in used else 2, len(SPEED_COLOURS) + 1)
    more = [("unknown", UNKNOWN_COLOUR)] if unknown else []
    return [ground, *((bin_label(i), SPEED_COLOURS[i - 1]) for i in bins), *more]


def _class_boxes(classes: ClassTable, used: set[int]) -> list[tuple[str, tuple[int, int, int]]]:
    """Return text and colour of the classes that occur; the first ones, if they are many."""
    rows = zip(classes.names, classes.rgb.tolist(), strict=True)
    boxes = [(name, (r, g, b)) for i, (name, (r, g, b)) in enumerate(rows) if i in used]
    return boxes[:_MOST_CLASSES]


def draw_colours(figure: Any, views: Sequence[SceneView], loc: str) -> None:  # noqa: ANN401 - a figure, or a part of one
    """Draw the legend of labels: background, speed bins from slow to fast or classes, nodata."""
    from matplotlib.patches import Patch

    used = set(np.unique(np.concatenate([view.label.ravel() for view in views])).tolist())
    store = views[0].store
    with_classes = store.meta.has_classes
    boxes = _class_boxes(store.classes, used) if with_classes else _boxes(used)
    names = [textwrap.shorten(label, 20, placeholder="…") for label, _ in boxes]
    handles = [Patch(facecolor=_css(colour)) for _, colour in boxes]
    dark, light = map(_css, NODATA_GREYS)
    handles.append(Patch(facecolor=light, edgecolor=dark, hatch="///", lw=0))
    draw_legend(
        *(figure, [*names, "nodata"], handles),
        title=None if with_classes or len(boxes) <= _WITHOUT_SPEEDS else "mph",
        loc=loc,
        ncols=min(len(handles), 6 if with_classes else 9),
        frameon=False,
        fontsize=8.5,
    )


def _css(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def draw_panel(axes: Axes, view: SceneView, name: str) -> None:
    """Draw the image, the label or the overlay of a scene, with pixels of their true aspect."""
    axes.imshow(_picture(view, name), extent=(0, 1, view.aspect, 0), aspect="equal")
    axes.set_title(name, fontsize=9, color=_FAINT)
    axes.set_axis_off()
    if name != "overlay" and (missing := _missing(view, name)):
        axes.text(0.5, view.aspect / 2, missing, ha="center", va="center", color=_INK)


def _missing(view: SceneView, name: str) -> str:
    """Return the text on an empty panel."""
    if view.nodata.all():
        return "no pixels" if name == "image" else ""
    return "no label" if name != "image" and view.status == "unlabelled" else ""


def _picture(view: SceneView, name: str) -> NDArray[np.uint8]:
    """Return uint8 (y, x, 3) of a panel."""
    from scipy.ndimage import binary_dilation

    empty = hatch(view.label.shape)
    unknown = view.label == NODATA
    meta, colours = view.store.meta, label_colours(view.store)[view.label]
    if name == "image":
        return np.where(view.nodata[..., None], empty, view.rgb)
    if name != "overlay":
        return np.where(unknown[..., None], empty, colours)
    hidden = (NODATA, BACKGROUND) if meta.has_background else (NODATA,)
    shown = ~np.isin(view.label, hidden)
    grey = view.rgb @ np.array([0.30, 0.59, 0.11])
    ground = (0.70 * grey[..., None] + 0.15 * view.rgb).astype(np.uint8)
    if meta.has_classes:
        mixed = CLASS_OPACITY * colours + (1 - CLASS_OPACITY) * view.rgb
        over = np.where(shown[..., None], mixed.astype(np.uint8), view.rgb)
        return np.where(view.nodata[..., None], empty, over)
    casing = binary_dilation(shown, iterations=max(1, round(view.label.shape[1] / 400)))
    ground = np.where(casing[..., None], ground // 3, ground)
    over = np.where(shown[..., None], colours, ground)
    return np.where(view.nodata[..., None], empty, over)
