"""What a run of `benchmarks.loaders` measured: the tables, and one picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import COLOURS, Result, console, plots, print_table
from benchmarks.loading.memory import MANY, TITLES
from benchmarks.loading.peers import ENTRIES, Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, OTHERS = COLOURS[0], COLOURS[7]


def print_tables(result: Result) -> None:
    """Print every figure."""
    parts = {
        "throughput": _print_throughput,
        "load": _print_load,
        "memory": _print_memory,
        "peers": _print_peers,
        "tax": _print_tax,
    }
    for part in result.settings["parts"]:
        parts[part](result)


def _median(result: Result, name: str) -> str:
    """Return the median of a figure without its spread; a dash for what was not measured."""
    if name not in result.figures:
        return "-"
    figure = result[name]
    return str(replace(figure, values=(figure.median,)))


def _print_throughput(result: Result) -> None:
    # The spread of what is judged; the rest in medians, so that a line fits a terminal.
    spread = {"images/s": "rate", "of the copy": "over_copy"}
    medians = {
        "GB/s": "gb",
        "copy GB/s": "copy.gb",
        "p50 ms": "p50",
        "p99 ms": "p99",
        "start ms": "start",
        "first ms": "first",
    }
    rows = [
        [
            f"{name} {kind}",
            *(result.get(f"throughput.{name}.{kind}.{c}") for c in spread.values()),
            *(_median(result, f"throughput.{name}.{kind}.{c}") for c in medians.values()),
        ]
        for name in result.settings["sets"]
        for kind in ("whole", "crops")
    ]
    s = result.settings
    title = f"Throughput: {s['threads']} threads, batches of {s['batch_size']}, {s['crop']}-crops"
    print_table(f"{title} with D4; first: to the first batch", ("tiles", *spread, *medians), rows)


def _print_load(result: Result) -> None:
    names = {
        "RamTiles.load, fresh memfd": "ours",
        "zarrs, a call an array, fresh memfd": "zarrs_whole",
        "zarrs, a call a shard, fresh memfd": "zarrs_by_shard",
        "zarrs, a call a shard, touched memfd": "zarrs_touched",
    }
    rows = [[title, result.get(f"load.{name}")] for title, name in names.items()]
    print_table("Load, warm page cache", ("", "GB/s"), rows)


def _print_memory(result: Result) -> None:
    columns = ("MB", "workers", "USS each", "PSS each", "peak USS", "total added", "batches alone")
    title = "Memory a worker: measured, and the arithmetic of its batches"
    print_table(title, columns, [*_memory_rows(result), *_interpreter_rows(result)])


def _memory_rows(result: Result) -> Iterator[list[str]]:
    """Yield a row for every number of workers; the first of a way of loading has its title."""
    for mode, title in TITLES.items():
        named = title
        for workers in result.settings["memory_workers"]:
            at = f"memory.{mode}.{workers}"
            if f"{at}.total" in result.figures:
                values = (f"{at}.{c}" for c in ("uss", "pss", "peak", "total", "expected"))
                yield [named, str(workers), *(result.get(value) for value in values)]
                named = ""
        many = f"memory.{mode}.{MANY}.expected"
        if many in result.figures:
            yield [named, str(MANY), "", "", "", "", result.get(many)]


def _interpreter_rows(result: Result) -> Iterator[list[str]]:
    """Yield what processes hold before they have loaded anything; it is part of the rows above."""
    for start in ("fork", "forkserver", "spawn"):
        idle = result.get(f"memory.interpreter.{start}")
        yield [f"interpreter and libraries alone, {start}", "1", idle, "", "", "", ""]
    server = result.get("memory.interpreter.server")
    yield ["the fork server itself, once", "", "", server, "", "", ""]


def _present(result: Result) -> list[Entry]:
    """Return the loaders that ran, the fastest first."""
    ran = [entry for entry in ENTRIES if f"peers.{entry.name}.rate" in result.figures]
    return sorted(ran, key=lambda e: -result[f"peers.{e.name}.rate"].median)


def _print_peers(result: Result) -> None:
    columns = {
        "CPU us": "cpu",
        "p50 ms": "p50",
        "p99 ms": "p99",
        "start s": "start",
        "first s": "first",
        "MB/worker": "memory",
    }
    rows = [
        [
            entry.title,
            result.get(f"peers.{entry.name}.rate"),
            *(_median(result, f"peers.{entry.name}.{c}") for c in columns.values()),
        ]
        for entry in _present(result)
    ]
    if rows:
        # Whole tiles unless said: no other loader has windows with symmetries.
        title = "Peers, same tiles and batch, whole tiles unless said; first: to the first batch"
        print_table(title, ("loader", "images/s", *columns), rows)
    for figure in ("over_best", "over_best_ahead"):
        for name, what in (("ours", "whole tiles"), ("ours_crops", "crops + D4")):
            at = f"peers.{name}.{figure}"
            if at in result.figures:
                text = f"ours, {what}: {result.get(at)} times, {result[at].note}"
                console.print(text, highlight=False)


def _print_tax(result: Result) -> None:
    names = {"with the loader": "loader", "one cached batch": "cached", "synthetic": "synthetic"}
    rows = [
        [title, result.get(f"tax.step.{name}"), result.get(f"tax.step.{name}.cpu")]
        for title, name in names.items()
    ]
    rows.append(["filling a batch alone", "", result.get("tax.loader.cpu")])
    print_table("Training step, ResNet34-UNet bf16", ("", "ms", "cpu ms"), rows)


def draw(result: Result, path: Path) -> None:
    """Draw peers, bytes a second, memory and the training step: those that were measured."""
    m = result.machine
    parts = {
        "peers": _draw_peers,
        "throughput": _draw_throughput,
        "memory": _draw_memory,
        "tax": _draw_tax,
    }
    of = result.settings
    title = (
        f"Loaders on {m['cores']} cores of {m['processor']}: {of['tiles']} tiles of {of['tile']} x "
        f"{of['tile']} x {len(of['bands'])} bytes and their masks, batches of {of['batch_size']}"
    )
    with plots(path, 2, 2, title) as axes:
        for axis, (part, draw_part) in zip(axes, parts.items(), strict=True):
            if part in result.settings["parts"]:
                draw_part(result, axis)
            else:
                axis.set_axis_off()


def _draw_peers(result: Result, axis: Axes) -> None:
    entries = _present(result)[::-1]
    rates = [result[f"peers.{entry.name}.rate"].median for entry in entries]
    colours = [OURS if entry.ours else OTHERS for entry in entries]
    bars = axis.barh([entry.title for entry in entries], rates, color=colours)
    axis.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=3, fontsize=7)
    axis.set_xscale("log")
    axis.set_xlim(right=max(rates, default=1.0) * 4)
    axis.tick_params(axis="y", labelsize=7)
    axis.grid(axis="y", visible=False)
    axis.set_title("Images a second, whole tiles unless said (log scale)")


def _draw_throughput(result: Result, axis: Axes) -> None:
    names: list[str] = result.settings["sets"]
    series = {
        "whole tiles": ("whole.gb", COLOURS[0]),
        "crops, D4": ("crops.gb", COLOURS[1]),
        "plain copy": ("whole.copy.gb", COLOURS[7]),
    }
    width = 0.8 / len(series)
    for k, (label, (figure, colour)) in enumerate(series.items()):
        at = [i - 0.4 + width * (k + 0.5) for i in range(len(names))]
        found = [result[f"throughput.{name}.{figure}"] for name in names]
        bars = axis.bar(at, [f.median for f in found], width, label=label, color=colour)
        axis.bar_label(bars, [f"{f.median:.1f}" for f in found], fontsize=7, padding=2)
    rates = [
        "\n".join(
            f"{result[f'throughput.{name}.{kind}.rate'].median:,.0f} {what}/s"
            for kind, what in (("whole", "tiles"), ("crops", "crops"))
        )
        for name in names
    ]
    labels = [f"{name}\n{rate}" for name, rate in zip(names, rates, strict=True)]
    axis.set_xticks(range(len(names)), labels, fontsize=8)
    axis.set_ylabel("GB/s")
    axis.set_title("Bytes a second, beside copying them")
    axis.grid(axis="x", visible=False)
    axis.margins(y=0.2)
    axis.legend(fontsize=7, ncols=3, loc="upper center")


def _draw_memory(result: Result, axis: Axes) -> None:
    counts: Sequence[int] = result.settings["memory_workers"]
    for k, (mode, title) in enumerate(TITLES.items()):
        shown = [n for n in counts if f"memory.{mode}.{n}.total" in result.figures]
        totals = [result[f"memory.{mode}.{n}.total"].median for n in shown]
        label = f"{title}: {totals[-1]:,.0f} MB"
        axis.plot(shown, totals, marker="osD^vX"[k], color=COLOURS[k], label=label, markersize=4)
        if mode in ("threads", "uint8", "classic"):
            expected = [result[f"memory.{mode}.{n}.expected"].median for n in shown]
            axis.plot(shown, expected, linestyle=":", color=COLOURS[k])
    axis.plot([], [], linestyle=":", color="#333333", label="dotted: batches alone, arithmetic")
    axis.set_xticks(list(counts))
    axis.set_xlabel("workers")
    axis.set_ylabel("MB added")
    axis.set_title("Memory that workers add, one batch ahead each")
    axis.set_ylim(top=axis.get_ylim()[1] * 1.6)  # room for the legend
    axis.legend(
        fontsize=6.5, title=f"with {counts[-1]} workers", title_fontsize=6.5, loc="upper left"
    )


def _draw_tax(result: Result, axis: Axes) -> None:
    names = {"with the loader": "loader", "cached batch": "cached", "synthetic": "synthetic"}
    found = [result[f"tax.step.{name}"] for name in names.values()]
    heights = [f.median for f in found]
    whiskers = [
        [f.median - f.spread[0] for f in found],
        [f.spread[1] - f.median for f in found],
    ]
    bars = axis.bar(list(names), heights, 0.6, color=[OURS, COLOURS[4], OTHERS])
    axis.errorbar(range(len(found)), heights, whiskers, fmt="none", ecolor="#333333")
    labels = [f"{height:.0f} ms" for height in heights]
    axis.bar_label(bars, labels, fontsize=8, label_type="center", color="white")
    axis.set_ylabel("ms")
    share = result["tax.share"].median
    axis.set_title(f"Training step; the loader is {share:.2%} of its CPU time")
    axis.grid(axis="x", visible=False)
    axis.margins(y=0.2)
