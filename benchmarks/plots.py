"""What a run measured, as one picture of several panels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import Figure, Result, rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"),
    *("#999999", "#333333"),
)
"""Okabe and Ito's palette, told apart by people with any kind of colour blindness."""

STYLE: dict[str, Any] = {
    "figure.dpi": 120,
    "figure.facecolor": "white",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}

WHISKERS: dict[str, Any] = {"fmt": "none", "ecolor": "#333333", "elinewidth": 0.8}

Drawing = Callable[[Result, "Axes"], None]


def draw_panels(
    result: Result, path: Path, title: str, drawings: Sequence[tuple[str, Drawing]]
) -> None:
    """Draw a panel for every part, row by row, those without figures left out.

    Parameters
    ----------
    path
        Written in the format that its suffix names.
    drawings
        What the names of the figures of a part begin with, and what draws it.
    """
    from matplotlib import style
    from matplotlib.figure import Figure as Canvas

    shown = [drawing for part, drawing in drawings if result.named(part)]
    rows, columns = max(1, -(-len(shown) // 2)), 2
    with style.context(STYLE):
        canvas = Canvas(figsize=(5.2 * columns, 3.4 * rows), layout="constrained")
        canvas.suptitle(title, x=0.01, ha="left", fontsize=11)
        axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for axis, drawing in zip(axes, shown, strict=False):
            drawing(result, axis)
        for axis in axes[len(shown) :]:
            axis.set_axis_off()
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path)


def draw_bars(
    axis: Axes, groups: Sequence[str], series: Mapping[str, Sequence[Figure | None]]
) -> None:
    """Draw medians as grouped bars, the spread as whiskers, the number on top.

    Parameters
    ----------
    groups
        Names under the groups.
    series
        Name in the legend to one figure per group; None leaves a gap.
    """
    width = 0.8 / len(series)
    for k, (name, figures) in enumerate(series.items()):
        at = [g - 0.4 + width * (k + 0.5) for g, f in enumerate(figures) if f is not None]
        shown = [f for f in figures if f is not None]
        heights = [f.median for f in shown]
        bars = axis.bar(at, heights, width, label=name, color=COLOURS[k % len(COLOURS)])
        axis.errorbar(at, heights, _whiskers(shown), **WHISKERS)
        axis.bar_label(bars, [rounded(h) for h in heights], fontsize=7, padding=2)
    axis.set_xticks(range(len(groups)), groups)
    axis.grid(axis="x", visible=False)
    axis.margins(y=0.25)  # room for the legend


def draw_rows(
    axis: Axes, figures: Mapping[str, Figure], colours: Sequence[str] = COLOURS[:1]
) -> None:
    """Draw medians as bars from left to right, the first on top, spread and number beside them.

    Parameters
    ----------
    figures
        By what stands left of them.
    colours
        One for all, or one each.
    """
    labels, found = list(figures)[::-1], list(figures.values())[::-1]
    medians = [f.median for f in found]
    colours = colours if len(colours) == 1 else colours[::-1]
    axis.barh(labels, medians, color=colours, height=0.7)
    axis.errorbar(medians, range(len(found)), xerr=_whiskers(found), **WHISKERS)
    for at, figure in enumerate(found):
        end = (max(figure.spread), at)
        offset: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 7}
        axis.annotate(rounded(figure.median), end, (4, 0), **offset)
    axis.tick_params(axis="y", labelsize=7)
    axis.set_xlim(right=1.15 * max(max(f.spread) for f in found))
    axis.grid(axis="y", visible=False)


def _whiskers(figures: Sequence[Figure]) -> list[list[float]]:
    return [
        [f.median - f.spread[0] for f in figures],
        [f.spread[1] - f.median for f in figures],
    ]
