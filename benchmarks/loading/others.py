"""Other loaders on the same tiles: started, asked in turns, and put next to ours.

Each runs in a process of its own, see :mod:`benchmarks.peers.session`. All are kept alive, idle, so
that rates can be taken in turns; what a loader holds is looked at while the others rest.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.child import ROOT, Child, ChildError
from benchmarks.common import Result, announce, ratios
from benchmarks.loading.held import settled
from benchmarks.peers.task import Task

PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
"""Made by `make bench-peers`; this interpreter runs the peers it can where that is not there."""

WHOLE_OVER_BEST = 8.0
CROPS_OVER_BEST = 3.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A loader to run.

    Attributes
    ----------
    peer
        Its name in `benchmarks.peers`.
    title
        In tables and pictures.
    workers
        0 for the loop itself; None for as many as there are cores.
    crops
        Whether it hands out windows with random symmetries.
    """

    peer: str
    title: str
    workers: int | None = None
    crops: bool = False

    @property
    def name(self) -> str:
        """Name of its figures."""
        suffix = "_crops" if self.crops else "_inline" if self.workers == 0 else ""
        return self.peer + suffix

    @property
    def ours(self) -> bool:
        """Whether it is this project's, and runs with this interpreter."""
        return self.peer.startswith("ours")


ENTRIES = (
    Entry("ours", "ours: BatchLoader"),
    Entry("ours", "ours: BatchLoader, crops + D4", crops=True),
    Entry("ours_dataset", "ours: TileDataset in DataLoader"),
    Entry("ffcv", "FFCV"),
    Entry("uint8", "DataLoader, uint8 in memory"),
    Entry("uint8", "DataLoader, uint8, no workers", workers=0),
    Entry("spdl", "SPDL"),
    Entry("litdata", "LitData"),
    Entry("streaming", "MosaicML Streaming"),
    Entry("webdataset", "WebDataset"),
    Entry("classic", "DataLoader, float32 + int64"),
    Entry("files", "TIFFs in __getitem__"),
    Entry("torchgeo", "TorchGeo"),
)


def start(entry: Entry, task: Task) -> Child:
    """Return the child that runs a peer on a task."""
    theirs = PEERS_PYTHON.exists() and not entry.ours
    python = PEERS_PYTHON if theirs else Path(sys.executable)
    given = {"peer": entry.peer, "task": asdict(task)}
    return Child("benchmarks.peers.session:Session", given, python)


def sums(task: Task) -> dict[str, float]:
    """Return what an epoch of whole tiles must add up to."""
    image, speed = task.image, task.speed
    return {
        "tiles": len(image),
        "image_sum": float(sum(int(tile.sum()) for tile in image)),
        "speed_sum": int(sum(int(tile.sum()) for tile in speed)),
    }


def measure_peers(result: Result, task: Task, entries: Sequence[Entry] = ENTRIES) -> None:
    """Record start, rate, latency and memory of every loader that is installed."""
    of, truth = result.settings, sums(task)
    children: dict[str, Child] = {}
    with ExitStack() as stack:
        for entry in entries:
            announce(entry.title)
            workers = task.workers if entry.workers is None else entry.workers
            its = replace(task, workers=workers, crop=of["crop"] if entry.crops else None)
            try:
                with start(entry, its) as writer:  # the import of what it needs is timed later
                    result.settings.setdefault("versions", {}).update(writer.answer())
                    writer.ask("prepare")
                child = stack.enter_context(start(entry, its))
                _meet(result, entry, child, its, truth)
            except ChildError as error:
                hint = " (`make bench-peers` installs it)" if "NotFound" in str(error) else ""
                result.notes.append(f"{entry.title}: left out, {error}{hint}")
            else:
                children[entry.name] = child
        cases = {name: partial(_rate, child, of["seconds"]) for name, child in children.items()}
        runs = result.turns(cases)
    for name, found in runs.items():
        _record(result, f"peers.{name}", found)
    _record_goals(result, [entry for entry in entries if entry.name in runs])


def _meet(result: Result, entry: Entry, child: Child, task: Task, truth: dict[str, float]) -> None:
    """Start a loader, check that it delivers the pixels, and look at its memory."""
    child.answer()
    opened = child.ask("open")["seconds"]
    before = settled(child.process.pid)
    first = child.ask("first")
    if task.crop is None:
        compare(first, truth)
    child.ask("hold")
    added = settled(child.process.pid) - before
    child.ask("release")
    at = f"peers.{entry.name}"
    result.add(f"{at}.start", "s", [opened], note="its import and its making")
    result.add(f"{at}.first", "s", [first["seconds"]])
    result.add(f"{at}.memory", "MB per worker", [added / max(1, task.workers) / 1e6])


def compare(found: dict[str, float], truth: dict[str, float]) -> None:
    """Refuse a loader that does not deliver every pixel of every tile once."""
    for name, value in truth.items():
        if abs(found[name] - value) > 1e-6 * value:  # float32 pixels do not add up exactly
            raise ChildError(f"an epoch has {name} {found[name]}, not {value}")


def _rate(child: Child, seconds: float) -> dict[str, Any]:
    """Let a loader run whole epochs for a while; return its answer, and its processor seconds."""
    before = _tree_cpu(child.process.pid)
    answer = child.ask("rate", seconds=seconds)
    return {**answer, "cpu": _tree_cpu(child.process.pid) - before}


def _tree_cpu(pid: int) -> float:
    """Return the processor seconds of a process and its living descendants."""
    root = psutil.Process(pid)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _record(result: Result, at: str, runs: Sequence[dict[str, Any]]) -> None:
    result.add(f"{at}.rate", "images/s", [run["tiles"] / run["seconds"] for run in runs])
    cpu = [run["cpu"] / run["tiles"] * 1e6 for run in runs]
    result.add(f"{at}.cpu", "us of one core per image", cpu)
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        values = [float(np.quantile(run["batches"], share)) for run in runs if run["batches"]]
        if values:
            result.add(f"{at}.{label}", "ms", [seconds * 1e3 for seconds in values])


def _record_goals(result: Result, entries: Sequence[Entry]) -> None:
    """Record how far ours are ahead of the best of the others, round by round."""
    others = [entry for entry in entries if not entry.ours]
    ahead = [entry for entry in others if entry.workers != 0]
    if not others:
        result.notes.append("no other loader could be run: `make bench-peers` installs them")
    _record_over(result, "over_best", others, (WHOLE_OVER_BEST, CROPS_OVER_BEST))
    _record_over(result, "over_best_ahead", ahead, (None, None))
    memory = {entry.title: result[f"peers.{entry.name}.memory"].median for entry in ahead}
    if memory and "peers.ours.rate" in result.figures:
        least = min(memory, key=lambda title: memory[title])
        over = memory[least] / result["peers.ours.memory"].median
        note = f"the leanest other loader with workers, {least}, over ours"
        result.add("peers.ours.least_memory", "", [over], at_least=1.0, note=note)


def _record_over(
    result: Result, figure: str, others: Sequence[Entry], goals: tuple[float | None, float | None]
) -> None:
    """Record ours over the fastest of some others in each round."""
    if not others:
        return
    rates = {entry.title: result[f"peers.{entry.name}.rate"] for entry in others}
    best = [max(values) for values in zip(*(rate.values for rate in rates.values()), strict=True)]
    fastest = max(rates, key=lambda title: rates[title].median)
    beside = "" if any(entry.workers == 0 for entry in others) else " that works beside the loop"
    note = f"over the fastest other loader{beside}, whole tiles: {fastest}"
    for name, goal in zip(("ours", "ours_crops"), goals, strict=True):
        if (ours := result.figures.get(f"peers.{name}.rate")) is not None:
            over = ratios(ours.values, best)
            result.add(f"peers.{name}.{figure}", "", over, at_least=goal, note=note)
