"""What a run of `benchmarks.preprocess` measured, as tables and as plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import COLOURS, Figure, Result, draw_bars, plots, print_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def print_tables(result: Result) -> None:
    """Print every figure, a table for each question."""
    kinds = list(result.settings["inputs"])
    workers = result.settings["workers"]
    for kind, origin in result.settings["inputs"].items():
        result.notes.append(f"{kind}: {origin}")
    rates = {
        "decode-only chips/s": "decode.rate",
        "build chips/s": "build.rate",
        "build MB/s": "build.mb",
        "1 worker chips/s": "build_1w.rate",
        "start-up s": "start_up",
    }
    _print_kinds(result, f"Rates, {workers} workers", kinds, rates)
    shares = {
        "share": "share",
        "of processor time": "share_cpu",
        "1 worker": "share_1w",
        f"build x{workers} over x1": "build.scaling",
        f"decode x{workers} over x1": "decode.scaling",
    }
    _print_kinds(result, "Build as a share of decode-only", kinds, shares)

    stages = list(dict.fromkeys(n.split(".")[2] for n in result.figures if ".stage." in n))
    rows = [[stage, *(result.get(f"{k}.stage.{stage}") for k in kinds)] for stage in stages]
    print_table("Stages, ms per chip with 1 worker", ("stage", *kinds), rows)

    rows = [
        [
            f"{kind} {codec}",
            result.get(f"{kind}.{name}.rate"),
            result.get(f"{kind}.{codec}.mb_per_chip"),
            result.get(f"{kind}.{codec}.compression"),
        ]
        for kind in kinds
        for codec, name in (("lz4", "build"), ("zstd", "zstd"))
    ]
    print_table("Codecs", ("chips, codec", "chips/s", "MB per chip", "compression"), rows)
    _print_reference(result, kinds)
    _print_cities(result, kinds)
    _print_mosaics(result)


def _print_reference(result: Result, kinds: list[str]) -> None:
    workers = result.settings["workers"]
    columns = {
        "usual way chips/s": "reference.rate",
        "usual way cpu ms per chip": "reference.cpu",
        "build, in cpu time x": "over_reference_cpu",
        "build with 1 worker x": "over_reference_1w",
        f"build with {workers} workers x": "over_reference",
    }
    _print_kinds(result, "Against the usual way, one chip at a time", kinds, columns)


def _print_kinds(result: Result, title: str, kinds: list[str], columns: dict[str, str]) -> None:
    rows = [[kind, *(result.get(f"{kind}.{key}") for key in columns.values())] for kind in kinds]
    print_table(title, ("chips", *columns), rows)


def _print_cities(result: Result, kinds: list[str]) -> None:
    rows = [
        [f"{kind}, {count} chips", result.get(name), result.get(f"{kind}.rss.{count}")]
        for kind in kinds
        for count, name in _memory_names(result, kind).items()
    ]
    if not rows:
        return
    print_table("Peak memory of the command, MiB", ("city", "PSS of the tree", "RSS"), rows)
    columns = {
        "ms per chip": "slope",
        "s": "seconds",
        "GB lz4, as synthetic": "lz4.gb_as_uint8",
        "GB zstd": "zstd.gb_as_uint8",
        "GB lz4, as real": "lz4.gb_as_real",
        "GB zstd, as real": "zstd.gb_as_real",
    }
    row = [result.get(f"moscow.{key}") for key in columns.values()]
    print_table("A whole city, extrapolated", ("", *columns), [["moscow", *row]])
    result.notes.append(f"moscow: {result['moscow.seconds'].note}")


def _print_mosaics(result: Result) -> None:
    names = [name.partition(".")[0] for name in result.figures if name.endswith(".labels_cost")]
    columns = ("plain.seconds", "labelled.seconds", "labels_cost", "plain.pss", "labelled.pss")
    rows = [[name, *(result.get(f"{name}.{column}") for column in columns)] for name in names]
    if rows:
        title = f"One scene of {result.settings['mosaic']} pixels a side"
        print_table(title, ("", "s", "with labels", "ratio", "PSS, MiB", "with labels"), rows)


def _memory_names(result: Result, kind: str) -> dict[int, str]:
    """Return the chips of a city to the name of its peak."""
    start = f"{kind}.pss."
    names = [name for name in result.figures if name.startswith(start)]
    return {int(n[len(start) :]): n for n in names if n[len(start) :].isdigit()}


def draw(result: Result, path: Path) -> None:
    """Draw rates, shares, stages and memory."""
    kinds = list(result.settings["inputs"])
    with plots(path, 2, 2, "Building a store") as (rates, shares, stages, memory):
        series = {"decode-only": "decode", "build, lz4": "build", "build, zstd": "zstd"}
        series["usual way"] = "reference"
        draw_bars(rates, kinds, {k: _row(result, kinds, f"{v}.rate") for k, v in series.items()})
        rates.set_title(f"chips per second, {result.settings['workers']} workers")
        rates.legend(loc="upper center", ncols=4, fontsize=8)
        _draw_shares(shares, result, kinds)
        _draw_stages(stages, result, kinds)
        _draw_memory(memory, result, kinds)


def _row(result: Result, kinds: list[str], key: str) -> list[Figure | None]:
    return [result.figures.get(f"{kind}.{key}") for kind in kinds]


def _draw_shares(axis: Axes, result: Result, kinds: list[str]) -> None:
    names = {"wall time": "share", "processor time": "share_cpu", "1 worker": "share_1w"}
    draw_bars(axis, kinds, {name: _row(result, kinds, key) for name, key in names.items()})
    for g, figure in enumerate(_row(result, kinds, "share")):
        if figure is not None and figure.at_least is not None:
            axis.hlines(figure.at_least, g - 0.45, g + 0.45, colors="#333333", linestyles="dashed")
    axis.set_title("share of the decode-only rate (dashed: promised)")
    axis.legend(loc="upper center", ncols=3)


def _draw_stages(axis: Axes, result: Result, kinds: list[str]) -> None:
    names = list(dict.fromkeys(n.split(".")[2] for n in result.figures if ".stage." in n))
    left = [0.0] * len(kinds)
    for k, name in enumerate(names):
        found = _row(result, kinds, f"stage.{name}")
        widths = [figure.median if figure else 0.0 for figure in found]
        axis.barh(kinds, widths, left=left, label=name, color=COLOURS[k % len(COLOURS)], height=0.6)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_title("ms per chip, 1 worker")
    axis.legend(ncols=3, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.1))


def _draw_memory(axis: Axes, result: Result, kinds: list[str]) -> None:
    for k, kind in enumerate(kinds):
        names = _memory_names(result, kind)
        medians = [result[name].median for name in names.values()]
        if names:
            axis.plot(list(names), medians, "o-", label=kind, color=COLOURS[k])
    axis.set_title("peak memory (PSS of the process tree), MiB")
    axis.set_xlabel("chips in the city")
    if axis.lines:
        axis.set_ylim(0, 1.15 * axis.get_ylim()[1])
        axis.legend()
