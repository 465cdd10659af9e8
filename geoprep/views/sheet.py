"""Draw the preview of a store: a page of panels, with matplotlib."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
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
    from matplotlib.figure import Figure, SubFigure

# All lengths are in inches. Every page has the same width, so that text has one size.
PAGE = 12.0
DPI = 160
MARGIN = 0.4
HEADER = 0.95
FOOTER = 0.35
CAPTION = 0.54
GAP = 0.06
BEST_HEIGHT = 12.0
ASPECTS = (0.3, 2.5)

INK, FAINT, PAPER = "#14171e", "#6b7280", "#ffffff"
SPLIT_COLOURS = {"train": "#2563a8", "val": "#b4540a", "test": "#0f766e", "unused": "#6b7280"}
BAD = "#b3261e"
NEARLY_ALL = 0.995
LETTER = 0.09
"""Width of a letter of a caption."""


@dataclass(frozen=True, slots=True)
class SceneView:
    """One scene of the preview, with its pixels north up."""

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


@dataclass(frozen=True, slots=True)
class SheetLayout:
    """Sizes of panels, in inches."""

    columns: tuple[str, ...]
    across: int  # scenes side by side
    heights: tuple[float, ...]  # of each row of scenes, captions included

    @property
    def page_height(self) -> float:
        """Height of the page in inches."""
        return HEADER + sum(self.heights) + FOOTER

    @property
    def panel(self) -> float:
        """Width of a panel in inches."""
        return _panel(self.across, len(self.columns))

    @property
    def panel_pixels(self) -> int:
        """Width of a panel in pixels."""
        return math.ceil(self.panel * DPI)


def _panel(across: int, columns: int) -> float:
    return (PAGE - across * MARGIN) / (across * columns) - GAP


def lay_out(aspects: Sequence[float], columns: Sequence[str]) -> SheetLayout:
    """Return the layout whose page is closest to a square, for scenes of some height per width."""
    options = []
    for across in range(1, max(1, min(len(aspects), 6 // len(columns))) + 1):
        panel = _panel(across, len(columns))
        clipped = [min(max(aspect, ASPECTS[0]), ASPECTS[1]) for aspect in aspects]
        rows = [clipped[i : i + across] for i in range(0, len(clipped), across)]
        heights = tuple(panel * max(row) + CAPTION for row in rows)
        options.append(SheetLayout(tuple(columns), across, heights))
    return min(options, key=lambda layout: abs(math.log(layout.page_height / BEST_HEIGHT)))


def draw(
    path: Path, layout: SheetLayout, views: Sequence[SceneView], header: tuple[str, str, str]
) -> None:
    """Draw the preview; the header is a title, the line below it, and the note at the bottom."""
    from matplotlib.figure import Figure

    title, facts, note = header
    figure = Figure((PAGE, layout.page_height), dpi=DPI, facecolor=PAPER)
    rows, left = len(layout.heights), MARGIN / 2 / PAGE
    ratios = (HEADER, *layout.heights, FOOTER)
    whole = figure.subfigures(rows + 2, 1, squeeze=False, height_ratios=ratios)
    top, *middle, bottom = whole[:, 0]
    top.text(left, 0.55, title, fontsize=24, fontweight="bold", color=INK)
    top.text(left, 0.2, facts, fontsize=10.5, color=FAINT)
    bottom.text(left, 0.4, note, fontsize=8.5, color=FAINT)
    _draw_legend(top, views)
    parts = [part for row in middle for part in row.subfigures(1, layout.across, squeeze=False)[0]]
    for number, (part, view) in enumerate(zip(parts, views, strict=False)):
        _draw_scene(part, layout, view, number)
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


_WITHOUT_SPEEDS: Final = 2
"""Number of legend entries of a store without speeds: background and road."""
_MOST_CLASSES: Final = 11
"""Classes in the legend."""


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


def _draw_legend(figure: SubFigure, views: Sequence[SceneView]) -> None:
    """Draw the legend right of the title: background, speed bins from slow to fast, nodata."""
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
        loc="upper right",
        bbox_to_anchor=(1 - MARGIN / 2 / PAGE, 0.9),
        borderaxespad=0,
        ncols=min(len(handles), 6 if with_classes else 9),
        frameon=False,
        fontsize=8.5,
        columnspacing=1.2,
        handletextpad=0.5,
    )


def _css(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _draw_scene(figure: SubFigure, layout: SheetLayout, view: SceneView, number: int) -> None:
    """Draw the panels of a scene below its id, split, and road share or reason of its status."""
    height, width = layout.heights[number // layout.across], PAGE / layout.across
    side, top = MARGIN / 2 / width, 1 - CAPTION / height
    line, name = top + 0.09 / height, str(view.store.scenes.id[view.scene])
    split = SPLIT_NAMES[scene_splits(view.store)[view.scene]]
    badge = {"boxstyle": "round,pad=0.22,rounding_size=0.3", "fc": SPLIT_COLOURS[split], "lw": 0}
    figure.text(side + 0.05 / width, line, split, fontsize=8.5, color=PAPER, bbox=badge)
    facts, letters = _words(view), int((width - MARGIN) / LETTER) - len(split) - 4
    facts = textwrap.shorten(facts, letters - min(len(name), 20), placeholder="…")
    if len(name) > (room := letters - len(facts)):
        name = "…" + name[-room:]  # the end tells scenes apart
    after = side + (0.15 + LETTER * len(split)) / width
    plain: dict[str, Any] = {"parse_math": False, "fontweight": "bold"}
    figure.text(after, line, name, fontsize=10.5, color=INK, **plain)
    tone = INK if view.status == "ok" else BAD
    figure.text(1 - side, line, facts, fontsize=9.5, ha="right", color=tone)
    axes = figure.subplots(1, len(layout.columns), squeeze=False)[0]
    figure.subplots_adjust(side, 0, 1 - side, top, wspace=GAP / layout.panel)
    for panel, column in zip(axes, layout.columns, strict=True):
        panel.set_axis_off()
        labelled, scaled = number < layout.across, column == layout.columns[0]
        _draw_panel(panel, view, column, labelled=labelled, scale=scaled)


def _words(view: SceneView) -> str:
    """Return a scene's road share, or its status and reason without folder names."""
    store, scene = view.store, view.scene
    if view.status != "ok":
        reason = re.sub(r"^\S*/\S*: |\S*/", "", str(store.scenes.reason[scene]))
        return f"{view.status}: {reason}"
    valid = valid_share(store, scene)
    share = f"{scene_roads(store)[scene]:.1%} {store.meta.share_name}"
    return share if valid >= NEARLY_ALL else f"{valid:.0%} valid   {share}"


def _draw_panel(axes: Axes, view: SceneView, name: str, *, labelled: bool, scale: bool) -> None:
    """Draw one panel in metres on the ground, so that pixels have their true aspect."""
    from matplotlib.patheffects import withStroke

    picture = _picture(view, name)
    width = view.width_m or 1.0
    axes.imshow(picture, extent=(0, width, width * view.aspect, 0), aspect="equal")
    axes.set_anchor("NW")
    halo = [withStroke(linewidth=2.5, foreground=INK)]
    if name != "overlay" and (missing := _missing(view, name)):
        centre = width / 2, width * view.aspect / 2
        axes.text(*centre, missing, ha="center", va="center", fontsize=10, color=INK)
    if labelled:
        axes.text(
            0.02 * width, 0.02 * width, name,
            va="top", fontsize=9, color=PAPER, path_effects=halo,
        )  # fmt: skip
    if scale and view.width_m and not view.nodata.all():
        length = round_length(view.width_m / 3)
        x, y = 0.04 * width, width * view.aspect - 0.05 * width
        axes.plot([x, x + length], [y, y], color=INK, linewidth=4.5, solid_capstyle="butt")
        axes.plot([x, x + length], [y, y], color=PAPER, linewidth=2.5, solid_capstyle="butt")
        label = f"{length:g} m" if length < 1000 else f"{length / 1000:g} km"
        axes.text(
            x, y - 0.02 * width, label, va="bottom", fontsize=8.5, color=PAPER, path_effects=halo
        )  # fmt: skip


def _missing(view: SceneView, name: str) -> str:
    """Return the text on an empty panel."""
    if view.nodata.all():
        return "no pixels" if name == "image" else ""
    return "no label" if name != "image" and view.status == "unlabelled" else ""


def round_length(longest: float) -> float:
    """Return the largest of 1, 2, 5, 10, 20, 50, ... that is at most ``longest``."""
    power = 10.0 ** math.floor(math.log10(longest))
    return max(step * power for step in (1, 2, 5) if step * power <= longest * (1 + 1e-9))


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
