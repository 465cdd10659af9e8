"""Draw the preview of a store: a page of panels, with matplotlib."""

from __future__ import annotations

import io
import math
import re
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
from geoprep.store import (
    SPLIT_NAMES,
    ClassTable,
    StoreReader,
    scene_roads,
    scene_splits,
    valid_share,
)
from geoprep.views.display import CLASS_OPACITY, label_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

# All lengths are in inches. Every page has the same width, so that text has one size.
PAGE = 12.0
DPI = 160
MARGIN = 0.4
HEADER = 0.95
FOOTER = 0.35
CAPTION = 0.34
ROW_GAP = 0.2
PANEL_GAP = 0.06
SCENE_GAP = 0.3
BEST_HEIGHT = 12.0
ASPECTS = (0.3, 2.5)

INK, FAINT, PAPER = "#14171e", "#6b7280", "#ffffff"
SPLIT_COLOURS = {"train": "#2563a8", "val": "#b4540a", "test": "#0f766e", "unused": "#6b7280"}
BAD = "#b3261e"
NEARLY_ALL = 0.995
STRIPE = 0.07
"""Width of a stripe of the nodata hatch."""


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
    """Positions of panels, in inches."""

    columns: tuple[str, ...]
    across: int  # scenes side by side
    panel: float  # width of a panel
    heights: tuple[float, ...]  # of the panels of each row of scenes

    @property
    def page_height(self) -> float:
        """Height of the page in inches."""
        rows = sum(self.heights) + len(self.heights) * (CAPTION + ROW_GAP)
        return MARGIN + HEADER + rows + FOOTER

    @property
    def panel_pixels(self) -> int:
        """Width of a panel in pixels."""
        return math.ceil(self.panel * DPI)


def lay_out(aspects: Sequence[float], columns: Sequence[str]) -> SheetLayout:
    """Return the layout whose page is closest to a square, for scenes of some height per width."""
    options = []
    for across in range(1, max(1, min(len(aspects), 6 // len(columns))) + 1):
        gaps = (across - 1) * SCENE_GAP + across * (len(columns) - 1) * PANEL_GAP
        panel = (PAGE - 2 * MARGIN - gaps) / (across * len(columns))
        clipped = [min(max(aspect, ASPECTS[0]), ASPECTS[1]) for aspect in aspects]
        rows = [clipped[i : i + across] for i in range(0, len(clipped), across)]
        heights = tuple(panel * max(row) for row in rows)
        options.append(SheetLayout(tuple(columns), across, panel, heights))
    return min(options, key=lambda layout: abs(math.log(layout.page_height / BEST_HEIGHT)))


def draw(
    path: Path, layout: SheetLayout, views: Sequence[SceneView], header: tuple[str, str, str]
) -> None:
    """Draw the preview; the header is a title, the line below it, and the note at the bottom."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((PAGE, layout.page_height), dpi=DPI, facecolor=PAPER)
    FigureCanvasAgg(figure)
    _draw_header(figure, layout, header)
    _draw_legend(figure, layout, views)
    top = MARGIN + HEADER
    scene_width = len(layout.columns) * (layout.panel + PANEL_GAP) - PANEL_GAP
    for row, height in enumerate(layout.heights):
        for col, view in enumerate(views[row * layout.across : (row + 1) * layout.across]):
            left = MARGIN + col * (scene_width + SCENE_GAP)
            _draw_caption(figure, layout, view, left, top, scene_width)
            for i, name in enumerate(layout.columns):
                at = left + i * (layout.panel + PANEL_GAP)
                axes = _axes(figure, layout, at, top + CAPTION, layout.panel, height)
                _draw_panel(axes, layout, view, name, labelled=row == 0, scale=i == 0)
        top += CAPTION + height + ROW_GAP
    save(figure, path, dpi=DPI)


def save(figure: Figure, path: Path, *, dpi: float) -> None:
    """Write a figure in the format of a file's suffix."""
    # In memory first: matplotlib leaves a PDF open if the disk is full.
    page = io.BytesIO()
    figure.savefig(page, format=path.suffix[1:] or None, dpi=dpi)
    path.write_bytes(page.getvalue())


def _axes(
    figure: Figure, layout: SheetLayout, left: float, top: float, width: float, height: float
) -> Axes:
    """Return axes at a position in inches from the upper left corner of the page."""
    page = layout.page_height
    axes = figure.add_axes((left / PAGE, 1 - (top + height) / page, width / PAGE, height / page))
    axes.set_axis_off()
    return axes


def _text(
    figure: Figure,
    layout: SheetLayout,
    left: float,
    top: float,
    text: str,
    **style: Any,  # noqa: ANN401 - text properties of matplotlib
) -> Text:
    at = left / PAGE, 1 - top / layout.page_height
    return figure.text(*at, text, **{"va": "baseline", "color": INK, **style})


def _draw_header(figure: Figure, layout: SheetLayout, header: tuple[str, str, str]) -> None:
    title, facts, note = header
    _text(figure, layout, MARGIN, MARGIN + 0.28, title, fontsize=24, fontweight="bold")
    _text(figure, layout, MARGIN, MARGIN + 0.62, facts, fontsize=10.5, color=FAINT)
    _text(figure, layout, MARGIN, layout.page_height - 0.22, note, fontsize=8.5, color=FAINT)


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
    found = [(name, (r, g, b)) for i, (name, (r, g, b)) in enumerate(rows) if i in used]
    return found[:_MOST_CLASSES]


def _draw_legend(figure: Figure, layout: SheetLayout, views: Sequence[SceneView]) -> None:
    """Draw the legend right of the title: background, speed bins from slow to fast, nodata."""
    from matplotlib.patches import Rectangle

    used = set(np.unique(np.concatenate([v.label.ravel() for v in views])).tolist())
    store = views[0].store
    classes = store.classes if store.meta.has_classes else None
    boxes = _boxes(used) if classes is None else _class_boxes(classes, used)
    width, height = 0.56, 0.2
    if classes is not None:  # names are longer than speeds
        width = min(1.1, 0.55 * PAGE / (len(boxes) + 1))
    total = (len(boxes) + 1) * width + 0.15
    axes = _axes(figure, layout, PAGE - MARGIN - total, MARGIN - 0.02, total, 0.5)
    for i, (label, colour) in enumerate(boxes):
        rgb = tuple(value / 255 for value in colour)
        axes.add_patch(Rectangle((i * width, 0.06), width, height, facecolor=rgb, linewidth=0))
        most = 10 if classes is None else max(3, int(width / 0.075))  # "background"
        text = label if len(label) <= most else label[: most - 1] + "…"
        axes.text((i + 0.5) * width, 0.4, text, ha="center", fontsize=8.5, color=INK)
    at = len(boxes) * width + 0.15
    hatch = _hatch((40, 112), width, width * 40 / 112)
    axes.imshow(hatch, extent=(at, at + width, 0.06 + height, 0.06), aspect="auto")
    axes.text(at + width / 2, 0.4, "nodata", ha="center", fontsize=8.5, color=INK)
    unit = "mph" if classes is None and len(boxes) > _WITHOUT_SPEEDS else ""
    axes.text(-0.1, 0.06 + height / 2, unit, ha="right", va="center", fontsize=9, color=FAINT)
    axes.set_xlim(0, total)
    axes.set_ylim(0.5, 0)


def _draw_caption(
    figure: Figure, layout: SheetLayout, view: SceneView, left: float, top: float, width: float
) -> None:
    """Write a scene's id, split, and its road share or the reason of its status."""
    line = top + CAPTION - 0.09
    scene = str(view.store.scenes.id[view.scene])
    split = SPLIT_NAMES[scene_splits(view.store)[view.scene]]
    name = _text(figure, layout, left, line, scene, fontsize=10.5, fontweight="bold")
    box = {
        "boxstyle": "round,pad=0.22,rounding_size=0.3",
        "facecolor": SPLIT_COLOURS[split],
        "linewidth": 0,
    }
    at = left + _width(name) + 0.12
    badge = _text(figure, layout, at, line, split, fontsize=8.5, color=PAPER, bbox=box)
    tone = INK if view.status == "ok" else BAD
    facts = _text(figure, layout, left + width, line, "", fontsize=9.5, ha="right", color=tone)
    words = _words(view)
    facts.set_text(words)
    while len(words) > 1 and _width(facts) > left + width - at - _width(badge) - 0.2:
        words = words[:-1]
        facts.set_text(words.rstrip() + "…")


def _width(text: Text) -> float:
    """Return the width of a text in inches."""
    return float(text.get_window_extent().width) / DPI


def _words(view: SceneView) -> str:
    """Return a scene's road share, or its status and reason without folder names."""
    store, scene = view.store, view.scene
    if view.status != "ok":
        reason = re.sub(r"^\S*/\S*: |\S*/", "", str(store.scenes.reason[scene]))
        return f"{view.status}: {reason}"
    valid = valid_share(store, scene)
    share = f"{scene_roads(store)[scene]:.1%} {store.meta.share_name}"
    return share if valid >= NEARLY_ALL else f"{valid:.0%} valid   {share}"


def _draw_panel(
    axes: Axes, layout: SheetLayout, view: SceneView, name: str, *, labelled: bool, scale: bool
) -> None:
    """Draw one panel in metres on the ground, so that pixels have their true aspect."""
    from matplotlib.patheffects import withStroke

    picture = _picture(view, name, layout.panel)
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


def _picture(view: SceneView, name: str, panel: float) -> NDArray[np.uint8]:
    """Return uint8 (y, x, 3) of a panel."""
    from scipy.ndimage import binary_dilation

    hatch = _hatch(view.label.shape, panel, panel * view.aspect)
    unknown = view.label == NODATA
    meta, colours = view.store.meta, label_colours(view.store)[view.label]
    if name == "image":
        return np.where(view.nodata[..., None], hatch, view.rgb)
    if name != "overlay":
        return np.where(unknown[..., None], hatch, colours)
    hidden = (NODATA,) if meta.share_name == "labelled" else (NODATA, BACKGROUND)
    shown = ~np.isin(view.label, hidden)
    grey = view.rgb @ np.array([0.30, 0.59, 0.11])
    ground = (0.70 * grey[..., None] + 0.15 * view.rgb).astype(np.uint8)
    if meta.has_classes:
        mixed = CLASS_OPACITY * colours + (1 - CLASS_OPACITY) * view.rgb
        over = np.where(shown[..., None], mixed.astype(np.uint8), view.rgb)
        return np.where(view.nodata[..., None], hatch, over)
    casing = binary_dilation(shown, iterations=max(1, round(view.label.shape[1] / 400)))
    ground = np.where(casing[..., None], ground // 3, ground)
    over = np.where(shown[..., None], colours, ground)
    return np.where(view.nodata[..., None], hatch, over)


def _hatch(shape: tuple[int, ...], width: float, height: float) -> NDArray[np.uint8]:
    """Return uint8 (y, x, 3), stripes at 45 degrees; width and height are in inches."""
    y = (np.arange(shape[0]) + 0.5)[:, None] * (height / shape[0])
    x = (np.arange(shape[1]) + 0.5)[None] * (width / shape[1])
    stripes = ((x + y) / STRIPE).astype(np.int64) % 2
    return np.array(NODATA_GREYS, np.uint8)[stripes]
