"""Tables of the loader benchmark, for the terminal and for a page of the documentation."""

from __future__ import annotations

from benchmarks.common import Result
from benchmarks.loading.augmentations import AUGMENTS
from benchmarks.loading.other_loaders import ENTRIES, RATIOS
from benchmarks.loading.throughput import RESIDENCIES
from benchmarks.loading.worker_memory import MODES, WORKERS
from benchmarks.tables import Table, describe


def tables(result: Result) -> list[Table]:
    """Return the tables of the report."""
    of = result.settings
    kinds = [f"{name} {kind}" for name in of.get("sets", ()) for kind in ("whole", "crops")]
    sets = {kind: f"throughput.{kind.replace(' ', '.')}" for kind in kinds}
    what = f"{of['threads']} threads, batches of {of['batch_size']}, {of['crop']}-crops with D4"
    batches = {"images/s": "rate", "over copy": "over_copy", "GB/s": "gb", "copy": "copy.gb"}
    batches |= {"p50 ms": "p50", "p99 ms": "p99", "first ms": "first"}
    storage = {"MB": "held", "tiles/s": "whole.rate", "us per tile": "whole.cpu"}
    storage |= {"crops/s": "crops.rate", "us per crop": "crops.cpu"}
    workers = {
        text: f"memory.{mode}.{figure}"
        for mode, (_, _, title) in MODES.items()
        for text, figure in ((title, "total"), (f"  {mode}, computed", "expected"))
    }
    counts = {str(count): str(count) for count in WORKERS}
    peers = {"images/s": "rate", "CPU us": "cpu", "p50 ms": "p50", "p99 ms": "p99"}
    peers |= {"start s": "start", "first s": "first", "MB per worker": "memory"}
    residencies = {title: f"residency.{kind}" for kind, title in RESIDENCIES.items()}
    loaders = {entry.title: f"peers.{entry.name}" for entry in ENTRIES}
    few = (*list(batches.values())[2:], *list(peers.values())[1:])
    augments = {text: f"augment.{name}" for name, text in AUGMENTS.items()}
    crops, cost = f"{of['crop']}-crops with D4", {"images/s": "rate", "CPU us per image": "cpu"}
    return [
        Table(
            f"Memory per number of workers, MB, batches of {of['batch_size']} whole tiles",
            workers,
            counts,
            head="workers",
            drawn="4",
            name="memory",
            reading="Read a row from left to right: MB that loading adds to the process and its "
            "workers, with one batch ready per worker. 'Computed' is the size of those batches "
            "alone. The tiles themselves are not counted.",
        ),
        Table(
            f"Images per second, {of['threads']} workers, whole tiles unless noted",
            loaders,
            peers,
            medians=few,
            drawn="images/s",
            name="peers",
            reading="Read images/s first: if it is above ten times the images per second of your "
            "training step, a faster loader changes nothing. CPU us is what one image takes from "
            "your model on the same processor; p99 is the longest wait in a hundred batches.",
        ),
        Table(f"Throughput: {what}", sets, batches, medians=few, drawn="GB/s", name="throughput"),
        Table(f"Storage of tiles, {crops}", residencies, storage, name="storage"),
        Table(f"Cost of augmentations, {crops}, 3 bands", augments, cost, name="augment"),
    ]


def blocks(result: Result) -> dict[str, str]:
    """Return the texts of a page by their names, see `benchmarks.tables.renew`."""
    grids = {table.name: table.grid(result) for table in tables(result)}
    texts = {"machine": _machine(result), "ratios": _ratios(result), "goals": _goals(result)}
    return grids | texts


def _machine(result: Result) -> str:
    """Return date, machine and versions of a run; empty for a run of few parts."""
    if not {"peers", "throughput"} <= set(result.settings.get("only", ())):
        return ""
    versions = result.settings.get("versions", {})
    peers = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    others = f" Other loaders: {peers}." if peers else ""
    return f"{result.started[:10]}: {describe(result.machine)}.{others}\n"


def _ratios(result: Result) -> str:
    """Return the ratios of our loaders over other ones, each named in words, as a list."""
    names = [f"peers.{name}" for name in RATIOS]
    figures = [result[name] for name in names if name in result.figures]
    return "".join(f"- {fig.note[0].upper()}{fig.note[1:]}: **{fig}**\n" for fig in figures)


def _goals(result: Result) -> str:
    """Return the figures that have bounds, as a table; empty if there are none."""
    rows = [
        f"| `{name}` | {fig} {fig.unit} | {fig.bounds} | {'yes' if fig.met else '**no**'} |\n"
        for name, fig in result.figures.items()
        if fig.met is not None
    ]
    head = "| figure | median | goal | met |\n| --- | --- | --- | --- |\n"
    return head + "".join(rows) if rows else ""
