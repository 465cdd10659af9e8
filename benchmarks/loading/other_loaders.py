"""Measure other loaders on the same tiles, and compare them with ours.

Each runs in a separate process, see `benchmarks.loading.peer_server`. All stay alive, so that rates
can be measured alternately; memory is measured while the other processes are idle.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.child import ROOT, ChildError, ChildProcess
from benchmarks.common import Result, announce, ratios
from benchmarks.loading.peer_task import Task
from benchmarks.loading.peers import PEERS
from benchmarks.memory import settled_memory

PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
"""Interpreter installed by `make bench-peers`; if missing, this interpreter is used."""

WHOLE_OVER_BEST = 8.0
CROPS_OVER_BEST = 3.0

RATIOS = (
    "ours.over_best_ahead",
    "ours.over_best",
    "ours_crops.over_best",
    "ours_crops.over_best_crops",
    "ours.least_memory",
)
"""Figures that compare ours with other loaders; their notes say what with."""


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """A loader to measure.

    Attributes
    ----------
    peer
        Name in `benchmarks.loading.peers`.
    title
        Title in tables and plots.
    workers
        Number of workers; 0 to load in the loop, None for one per core.
    crops
        True to load crops with random symmetries.
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
        """True for a loader of this project, which runs with this interpreter."""
        return self.peer.startswith("ours")


ENTRIES = (
    PeerEntry("ours", "ours: BatchLoader"),
    PeerEntry("ours", "ours: BatchLoader, crops + D4", crops=True),
    PeerEntry("ours_dataset", "ours: TileDataset in DataLoader"),
    PeerEntry("ffcv", "FFCV"),
    PeerEntry("uint8", "DataLoader, uint8 in memory"),
    PeerEntry("uint8", "DataLoader, uint8, no workers", workers=0),
    PeerEntry("spdl", "SPDL"),
    PeerEntry("litdata", "LitData"),
    PeerEntry("streaming", "MosaicML Streaming"),
    PeerEntry("webdataset", "WebDataset"),
    PeerEntry("classic", "DataLoader, float32 + int64"),
    PeerEntry("files", "TIFFs in __getitem__"),
    PeerEntry("torchgeo", "TorchGeo"),
    PeerEntry("uint8", "DataLoader, uint8, crops + D4", crops=True),
)


GEOSPATIAL = ("torchgeo", "rslearn", "rastervision")
SLOW = ("ours_dataset", "files", *GEOSPATIAL)
QUICK_ENTRIES = tuple(entry for entry in ENTRIES if entry.peer not in SLOW)
"""Loaders of the quick run: one of each kind, and other packages that start within seconds."""


def start(entry: PeerEntry, task: Task) -> ChildProcess:
    """Return a process that runs a loader on a task."""
    theirs = PEERS_PYTHON.exists() and not entry.ours
    python = PEERS_PYTHON if theirs else Path(sys.executable)
    given = {"peer": entry.peer, "task": asdict(task)}
    return ChildProcess("benchmarks.loading.peer_server:PeerServer", given, python)


def sums(task: Task) -> dict[str, float]:
    """Return number of tiles and sums of pixels of an epoch of whole tiles."""
    image, speed = task.image, task.speed
    return {
        "tiles": len(image),
        "image_sum": float(sum(int(tile.sum()) for tile in image)),
        "speed_sum": int(sum(int(tile.sum()) for tile in speed)),
    }


def measure_peers(result: Result, task: Task, entries: Sequence[PeerEntry] = ENTRIES) -> None:
    """Record start-up time, rate, latency and memory of every installed loader."""
    missing: list[str] = []
    truth = sums(task)
    # rslearn holds its tiles in every worker: beside it others would lose their files' page cache.
    geo = [entry for entry in entries if entry.peer in GEOSPATIAL]
    for group in ([entry for entry in entries if entry not in geo], geo):
        if group:
            _measure_group(result, task, group, truth, missing)
    if missing:
        result.notes.append(
            f"Not installed and left out: {', '.join(missing)}. `make bench-peers` installs them."
        )
    if not result.settings.get("quick"):
        measured = [entry for entry in entries if f"peers.{entry.name}.rate" in result.figures]
        _record_goals(result, measured)


def _measure_group(
    result: Result,
    task: Task,
    entries: Sequence[PeerEntry],
    truth: dict[str, float],
    missing: list[str],
) -> None:
    """Measure loaders in turns, all open at the same time; add titles to the missing ones."""
    of = result.settings
    children: dict[str, ChildProcess] = {}
    tasks: dict[PeerEntry, Task] = {}
    for entry in entries:
        if not entry.ours and not PEERS_PYTHON.exists() and not _installed(entry):
            missing.append(entry.title)
            continue
        workers = task.workers if entry.workers is None else entry.workers
        tasks[entry] = replace(task, workers=workers, crop=of["crop"] if entry.crops else None)
    with ExitStack() as stack, ThreadPoolExecutor(of["threads"] if of.get("quick") else 1) as pool:

        def open_all(peer: str) -> list[tuple[PeerEntry, ChildProcess | ChildError]]:
            """Open the loaders of a kind, which share their files, one after the other."""
            some = {entry: its for entry, its in tasks.items() if entry.peer == peer}
            return [(entry, _opened(result, stack, entry, some[entry], truth)) for entry in some]

        for part in pool.map(open_all, dict.fromkeys(entry.peer for entry in tasks)):
            for entry, child in part:
                if isinstance(child, ChildProcess):
                    children[entry.name] = child
                elif "NotFound" in str(child):
                    missing.append(entry.title)
                else:
                    result.notes.append(f"{entry.title}: left out, {child}")
        cases = {name: partial(_rate, child, of["seconds"]) for name, child in children.items()}
        runs = result.turns(cases)
    for name, found in runs.items():
        _record(result, f"peers.{name}", found)


def _opened(
    result: Result, stack: ExitStack, entry: PeerEntry, task: Task, truth: dict[str, float]
) -> ChildProcess | ChildError:
    """Return the process of a loader, after recording its start-up, or why it failed."""
    announce(entry.title)
    try:
        with ExitStack() as first:
            child = first.enter_context(start(entry, task))
            result.settings.setdefault("versions", {}).update(child.answer())
            child.ask("prepare")
            if result.settings.get("quick"):
                child.ask("open")
                _first(child, task, truth)
                stack.push(first.pop_all())
                return child
        child = stack.enter_context(start(entry, task))  # another process times its import
        _start_up(result, entry, child, task, truth)
    except ChildError as error:
        return error
    return child


def _first(child: ChildProcess, task: Task, truth: dict[str, float]) -> float:
    """Check the pixels of an epoch of whole tiles; return the seconds to its first batch."""
    first = child.ask("first")
    if task.crop is None:
        compare(first, truth)
    return float(first["seconds"])


def _installed(entry: PeerEntry) -> bool:
    """Return whether this interpreter has the packages of a loader."""
    packages = PEERS[entry.peer].packages
    try:
        return all(version(name) for name in packages)
    except PackageNotFoundError:
        return False


def _start_up(
    result: Result, entry: PeerEntry, child: ChildProcess, task: Task, truth: dict[str, float]
) -> None:
    """Open a loader, check its pixels, and record its start-up time and memory."""
    child.answer()
    opened = child.ask("open")["seconds"]
    before = settled_memory(child.process.pid)
    first = _first(child, task, truth)
    child.ask("hold")
    added = settled_memory(child.process.pid) - before
    child.ask("release")
    at = f"peers.{entry.name}"
    result.add(f"{at}.start", "s", [opened], note="importing and opening the loader")
    result.add(f"{at}.first", "s", [first])
    result.add(f"{at}.memory", "MB per worker", [added / max(1, task.workers) / 1e6])


def compare(found: dict[str, float], truth: dict[str, float]) -> None:
    """Raise an error unless a loader returned every pixel of every tile once."""
    for name, value in truth.items():
        if abs(found[name] - value) > 1e-6 * value:  # float32 pixels do not add up exactly
            raise ChildError(f"an epoch has {name} {found[name]}, not {value}")


def _rate(child: ChildProcess, seconds: float) -> dict[str, Any]:
    """Run complete epochs of a loader for some seconds; return its answer and processor seconds."""
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


def _record_goals(result: Result, entries: Sequence[PeerEntry]) -> None:
    """Record the rates of our loaders over the best other loader, per round."""
    others = [entry for entry in entries if not entry.ours]
    whole = [entry for entry in others if not entry.crops]
    prefetching = [entry for entry in whole if entry.workers != 0]
    if not others:
        result.notes.append("no other loader is installed: run `make bench-peers`")
    _record_over(result, "ours.over_best", whole, WHOLE_OVER_BEST)
    _record_over(result, "ours_crops.over_best", whole, CROPS_OVER_BEST)
    _record_over(result, "ours.over_best_ahead", prefetching)
    _record_over(result, "ours_crops.over_best_crops", [e for e in others if e.crops])
    memory = {entry.title: result[f"peers.{entry.name}.memory"].median for entry in prefetching}
    if memory and "peers.ours.rate" in result.figures:
        least = min(memory, key=lambda title: memory[title])
        over = memory[least] / result["peers.ours.memory"].median
        note = f"memory per worker of {least}, the least of other loaders with workers, over that "
        note += "of BatchLoader"
        result.add("peers.ours.least_memory", "", [over], at_least=1.0, note=note)


def _record_over(
    result: Result, figure: str, others: Sequence[PeerEntry], goal: float | None = None
) -> None:
    """Record the rate of one of our loaders over the fastest of some others, per round."""
    ours = result.figures.get(f"peers.{figure.partition('.')[0]}.rate")
    if not others or ours is None:
        return
    rates = {entry.title: result[f"peers.{entry.name}.rate"] for entry in others}
    best = [max(values) for values in zip(*(rate.values for rate in rates.values()), strict=True)]
    fastest = max(rates, key=lambda title: rates[title].median)
    among = " with workers" if all(entry.workers != 0 for entry in others) else ""
    what = "crops" if figure.startswith("ours_crops") else "whole tiles"
    theirs = "crops" if others[0].crops else "whole tiles"
    note = f"rate of BatchLoader's {what} over that of {theirs} of the fastest other loader"
    over = ratios(ours.values, best)
    result.add(f"peers.{figure}", "", over, at_least=goal, note=f"{note}{among}: {fastest}")
