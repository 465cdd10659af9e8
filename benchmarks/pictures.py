"""What a run of `benchmarks.preprocess` measured, as tables and as plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import Figure, Result
from benchmarks.plots import COLOURS, draw_bars, draw_panels
from benchmarks.tables import print_figures, print_noted, print_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


RATES = {
    "decode-only chips/s": "decode.rate",
    "build chips/s": "build.rate",
    "build MB/s": "build.mb",
    "with zstd chips/s": "zstd.rate",
    "1 worker chips/s": "build_1w.rate",
    "start-up s": "start_up",
}
CITY = {
    "ms per chip": "slope",
    "s": "seconds",
    "GB lz4, as synthetic": "lz4.gb_as_uint8",
    "GB zstd": "zstd.gb_as_uint8",
    "GB lz4, as real": "lz4.gb_as_real",
    "GB zstd, as real": "zstd.gb_as_real",
}
MOSAIC = {
    "s": "plain.seconds",
    "with labels": "labelled.seconds",
    "ratio": "labels_cost",
    "PSS, MiB": "plain.pss",
    "with labels, MiB": "labelled.pss",
}


def print_tables(result: Result) -> None:
    """Print every figure, a table for each question."""
    settings = result.settings
    kinds, workers = {kind: kind for kind in settings["inputs"]}, settings["workers"]
    result.notes += [f"{kind}: {origin}" for kind, origin in settings["inputs"].items()]
    print_figures(result, f"Rates, {workers} workers", kinds, RATES, head="chips")
    shares = {
        "share": "share",
        "of processor time": "share_cpu",
        "1 worker": "share_1w",
        f"build x{workers} over x1": "build.scaling",
        f"decode x{workers} over x1": "decode.scaling",
    }
    print_figures(result, "Build as a share of decode-only", kinds, shares, head="chips")
    stages = [[s, *(result.get(f"{kind}.stage.{s}") for kind in kinds)] for s in _stages(result)]
    print_table("Stages, ms per chip with 1 worker", ("stage", *kinds), stages)
    codecs = {f"{kind} {codec}": f"{kind}.{codec}" for kind in kinds for codec in ("lz4", "zstd")}
    columns = {"MB per chip": "mb_per_chip", "compression": "compression"}
    print_figures(result, "Codecs", codecs, columns, head="chips, codec")
    usual = {
        "usual way chips/s": "reference.rate",
        "usual way cpu ms per chip": "reference.cpu",
        "build, in cpu time x": "over_reference_cpu",
        "build with 1 worker x": "over_reference_1w",
        f"build with {workers} workers x": "over_reference",
    }
    print_figures(result, "Against the usual way, one chip at a time", kinds, usual, head="chips")
    cities = {str(n): str(n) for kind in kinds for n in _memory_names(result, kind)}
    peaks = {
        f"{kind}, {what}": f"{kind}.{what.lower()}" for kind in kinds for what in ("PSS", "RSS")
    }
    print_figures(result, "Peak memory of the command by chips, MiB", peaks, cities)
    print_figures(result, "A whole city, extrapolated", {"moscow": "moscow"}, CITY)
    print_noted(result, "How", ["moscow.seconds"])
    mosaics = {kind: kind for kind in (name.partition(".")[0] for name in result.figures)}
    title = f"One scene of {settings['mosaic']} pixels per side"
    print_figures(result, title, mosaics, MOSAIC)


def _stages(result: Result) -> list[str]:
    return list(dict.fromkeys(n.split(".")[2] for n in result.figures if ".stage." in n))


def _memory_names(result: Result, kind: str) -> dict[int, str]:
    """Return the chips of a city to the name of its peak."""
    ends = {name.rpartition(".")[2]: name for name in result.named(f"{kind}.pss")}
    return {int(end): name for end, name in ends.items() if end.isdigit()}


def draw(result: Result, path: Path) -> None:
    """Draw rates, shares, stages and memory."""
    kind = next(iter(result.settings["inputs"]))
    drawings = [(kind, d) for d in (_draw_rates, _draw_shares, _draw_stages, _draw_memory)]
    draw_panels(result, path, "Building a store", drawings)


def _row(result: Result, key: str) -> list[Figure | None]:
    return [result.figures.get(f"{kind}.{key}") for kind in result.settings["inputs"]]


def _draw_rates(result: Result, axis: Axes) -> None:
    names = {"decode-only": "decode", "build, lz4": "build", "build, zstd": "zstd"}
    names["usual way"] = "reference"
    series = {text: _row(result, f"{name}.rate") for text, name in names.items()}
    draw_bars(axis, list(result.settings["inputs"]), series)
    axis.set_title(f"chips per second, {result.settings['workers']} workers")
    axis.legend(loc="upper center", ncols=4, fontsize=8)


def _draw_shares(result: Result, axis: Axes) -> None:
    names = {"wall time": "share", "processor time": "share_cpu", "1 worker": "share_1w"}
    series = {text: _row(result, key) for text, key in names.items()}
    draw_bars(axis, list(result.settings["inputs"]), series)
    for g, figure in enumerate(_row(result, "share")):
        if figure is not None and figure.at_least is not None:
            axis.hlines(figure.at_least, g - 0.45, g + 0.45, colors="#333333", linestyles="dashed")
    axis.set_title("share of the decode-only rate (dashed: promised)")
    axis.legend(loc="upper center", ncols=3)


def _draw_stages(result: Result, axis: Axes) -> None:
    kinds = list(result.settings["inputs"])
    left = [0.0] * len(kinds)
    for k, name in enumerate(_stages(result)):
        widths = [figure.median if figure else 0.0 for figure in _row(result, f"stage.{name}")]
        axis.barh(kinds, widths, left=left, label=name, color=COLOURS[k % len(COLOURS)], height=0.6)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_title("ms per chip, 1 worker")
    axis.legend(ncols=3, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.1))


def _draw_memory(result: Result, axis: Axes) -> None:
    for k, kind in enumerate(result.settings["inputs"]):
        names = _memory_names(result, kind)
        medians = [result[name].median for name in names.values()]
        if names:
            axis.plot(list(names), medians, "o-", label=kind, color=COLOURS[k])
    axis.set_title("peak memory (PSS of the process tree), MiB")
    axis.set_xlabel("chips in the city")
    if axis.lines:
        axis.set_ylim(0, 1.15 * axis.get_ylim()[1])
        axis.legend()
