"""What a run of `benchmarks.loaders` measured: the tables, and one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import Result
from benchmarks.loading.memory import MANY, MODES
from benchmarks.loading.peers import ENTRIES, Entry
from benchmarks.loading.residency import RESIDENCIES
from benchmarks.plots import COLOURS, draw_bars, draw_panels, draw_rows
from benchmarks.tables import print_figures, print_noted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, OTHERS = COLOURS[0], COLOURS[7]

THROUGHPUT = {
    "images/s": "rate",
    "of the copy": "over_copy",
    "GB/s": "gb",
    "copy GB/s": "copy.gb",
    "p50 ms": "p50",
    "p99 ms": "p99",
    "start ms": "start",
    "first ms": "first",
}
RESIDENCY = {
    "MB": "held",
    "ready s": "ready",
    "tiles/s": "whole.rate",
    "us per tile": "whole.cpu",
    "crops/s": "crops.rate",
    "us per crop": "crops.cpu",
}
LOAD = {
    "RamTiles.load, fresh memfd": "load.ours",
    "zarrs, a call per array, fresh memfd": "load.zarrs_whole",
    "zarrs, a call per shard, fresh memfd": "load.zarrs_by_shard",
    "zarrs, a call per shard, touched memfd": "load.zarrs_touched",
}
MEMORY = {
    "USS each": "uss",
    "PSS each": "pss",
    "peak USS": "peak",
    "total added": "total",
    "batches alone": "expected",
}
PEERS = {
    "images/s": "rate",
    "CPU us": "cpu",
    "p50 ms": "p50",
    "p99 ms": "p99",
    "start s": "start",
    "first s": "first",
    "MB per worker": "memory",
}
STEPS = {"loader": "BatchLoader, as training has it", "cached": "one batch, over and over"}
STEPS |= {"prepared": "one prepared batch, over and over"}
KINDS = {"threads": "BatchLoader, threads", "workers": "DataLoader, workers"}
TAX = {"ms": "step", "cpu ms": "cpu", "images/s": "rate", "share waited": "waited"}


def print_tables(result: Result) -> None:
    """Print every figure that was measured; the spread of what is judged, else medians."""
    s = result.settings
    print_figures(
        result,
        f"Throughput: {s['threads']} threads, batches of {s['batch_size']}, {s['crop']}-crops with "
        "D4; first: to the first batch",
        {f"{n} {k}": f"throughput.{n}.{k}" for n in s.get("sets", ()) for k in ("whole", "crops")},
        THROUGHPUT,
        head="tiles",
        medians=list(THROUGHPUT.values())[2:],
    )
    title = (
        f"Where tiles live, {s['crop']}-crops with D4; MB: of tiles, of a stream with its batches"
    )
    rows = {title: f"residency.{kind}" for kind, title in RESIDENCIES.items()}
    print_figures(result, title, rows, RESIDENCY, head="tiles")
    print_figures(result, "Load, warm page cache", LOAD, {"GB/s": "rate"})
    print_noted(result, "Loading", ["load.over_zarrs", "load.peak"])
    title = "Memory per worker: measured, and the arithmetic of its batches"
    print_figures(result, title, _memory_rows(result), MEMORY, head="MB")
    print_figures(
        result,
        "Peers, same tiles and batch, whole tiles unless said; first: to the first batch",
        {entry.title: f"peers.{entry.name}" for entry in _present(result)},
        PEERS,
        head="loader",
        medians=list(PEERS.values())[1:],
    )
    over = ("over_best", "over_best_ahead", "least_memory")
    names = [f"peers.{name}.{figure}" for figure in over for name in ("ours", "ours_crops")]
    print_noted(result, "Ours over other loaders", names)
    title = "Training step, ResNet34-UNet bf16, by what feeds it"
    print_figures(result, title, _steps(result), TAX)
    shares = [f"tax.{name}" for name in ("filling.cpu", "share", "over_cached", "over_prepared")]
    print_noted(result, "What loading costs it", shares)


def _memory_rows(result: Result) -> dict[str, str]:
    """Return rows for every way and number of workers, and for processes that load nothing."""
    rows = {
        f"{title}: {count}": f"memory.{mode}.{count}"
        for mode, (_, _, title) in MODES.items()
        for count in (*result.settings["memory_workers"], MANY)
    }
    for start in ("fork", "forkserver", "spawn"):
        rows[f"interpreter and libraries alone, {start}"] = f"memory.interpreter.{start}"
    return rows | {"the fork server itself, once": "memory.interpreter.server"}


def _present(result: Result) -> list[Entry]:
    """Return the loaders that ran, the fastest first."""
    ran = [entry for entry in ENTRIES if f"peers.{entry.name}.rate" in result.figures]
    return sorted(ran, key=lambda e: -result[f"peers.{e.name}.rate"].median)


def _steps(result: Result) -> dict[str, str]:
    """Return what feeds a step, to the beginning of its figures."""
    names = [name.split(".step")[0] for name in result.named("tax") if name.endswith(".step")]
    kinds = (name.split(".")[1:] for name in names)
    titles = [f"{KINDS[k[0]]}: {k[1]}" if len(k) > 1 else STEPS[k[0]] for k in kinds]
    return dict(zip(titles, names, strict=True))


def draw(result: Result, path: Path) -> None:
    """Draw peers, bytes per second, memory and the training step: those that were measured."""
    m, of = result.machine, result.settings
    title = (
        f"Loaders on {m['cores']} cores of {m['processor']}: {of['tiles']} tiles of {of['tile']} x "
        f"{of['tile']} x {len(of['bands'])} bytes and their masks, batches of {of['batch_size']}"
    )
    drawings = [
        ("peers", _draw_peers),
        ("throughput", _draw_throughput),
        ("memory", _draw_memory),
        ("tax", _draw_tax),
    ]
    draw_panels(result, path, title, drawings)


def _draw_peers(result: Result, axis: Axes) -> None:
    entries = _present(result)
    rates = {entry.title: result[f"peers.{entry.name}.rate"] for entry in entries}
    draw_rows(axis, rates, [OURS if entry.ours else OTHERS for entry in entries])
    axis.set_xscale("log")
    axis.set_xlim(right=4 * max(figure.median for figure in rates.values()))
    axis.set_title("Images per second, whole tiles unless said (log scale)")


def _draw_throughput(result: Result, axis: Axes) -> None:
    names: list[str] = result.settings["sets"]
    kinds = {"whole tiles": "whole.gb", "crops, D4": "crops.gb", "plain copy": "whole.copy.gb"}
    series = {
        label: [result[f"throughput.{name}.{figure}"] for name in names]
        for label, figure in kinds.items()
    }
    groups = [
        "\n".join(
            [name]
            + [
                f"{result[f'throughput.{name}.{kind}.rate'].median:,.0f} {what}/s"
                for kind, what in (("whole", "tiles"), ("crops", "crops"))
            ]
        )
        for name in names
    ]
    draw_bars(axis, groups, series)
    axis.set_ylabel("GB/s")
    axis.set_title("Bytes per second, beside copying them")
    axis.legend(fontsize=7, ncols=3, loc="upper center")


def _draw_memory(result: Result, axis: Axes) -> None:
    counts: Sequence[int] = result.settings["memory_workers"]
    for k, (mode, (_, _, title)) in enumerate(MODES.items()):
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
    draw_rows(axis, {text: result[f"{name}.step"] for text, name in _steps(result).items()})
    share = result["tax.share"].median
    axis.set_title(f"ms per training step ({share:.2%} loading)")
