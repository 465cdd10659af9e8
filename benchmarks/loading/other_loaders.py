"""Measure other loaders on the same tiles, and compare them with ours.

Each runs in a separate process, see `benchmarks.loading.peer_server`. All stay alive, so that rates
can be measured alternately; memory is measured while the other processes are idle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """A loader to measure.

    Attributes
    ----------
    peer
        Name in `benchmarks.loading.peers`.
    title
        Title in tables.
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
    PeerEntry("litdata", "LitData"),
    PeerEntry("streaming", "MosaicML Streaming"),
    PeerEntry("webdataset", "WebDataset"),
    PeerEntry("classic", "DataLoader, float32 + int64"),
    PeerEntry("files", "TIFFs in __getitem__"),
    PeerEntry("torchgeo", "TorchGeo"),
    PeerEntry("uint8", "DataLoader, uint8, crops + D4", crops=True),
)


SLOW = ("ours_dataset", "files", "torchgeo")
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
    """Record start-up time, rate, latency and memory of every installed loader.

    All are open at the same time, and run in turns.
    """
    of, truth, missing = result.settings, sums(task), []
    cases: dict[str, Callable[[], dict[str, Any]]] = {}
    with ExitStack() as stack:
        for entry in entries:
            announce(entry.title)
            workers = task.workers if entry.workers is None else entry.workers
            its = replace(task, workers=workers, crop=of["crop"] if entry.crops else None)
            try:
                if not (entry.ours or PEERS_PYTHON.exists() or _installed(entry)):
                    raise ChildError("PackageNotFoundError")
                child = _opened(result, stack, entry, its, truth)
            except ChildError as error:
                if "NotFound" in str(error):
                    missing.append(entry.title)
                else:
                    result.notes.append(f"{entry.title}: left out, {error}")
            else:
                cases[entry.name] = partial(timed_rate, child, of["seconds"])
        for name, runs in result.turns(cases).items():
            _record(result, f"peers.{name}", runs)
    if missing:
        result.notes.append(
            f"Not installed and left out: {', '.join(missing)}. `make bench-peers` installs them."
        )
    _record_ratios(result, [entry for entry in entries if entry.name in cases])


def _opened(
    result: Result, stack: ExitStack, entry: PeerEntry, task: Task, truth: dict[str, float]
) -> ChildProcess:
    """Open a loader in a process, check its pixels, record its start-up time and memory.

    A quick run records neither: memory takes seconds to settle.
    """
    quick = result.settings["quick"]
    if not quick:
        with start(entry, task) as child:  # another process times its import
            child.answer()
            child.ask("prepare")
    child = stack.enter_context(start(entry, task))
    result.settings.setdefault("versions", {}).update(child.answer())
    child.ask("prepare")
    opened = child.ask("open")["seconds"]
    before = 0 if quick else settled_memory(child.process.pid)
    first = child.ask("first")
    if task.crop is None:
        compare(first, truth)
    if not quick:
        child.ask("hold")
        added = settled_memory(child.process.pid) - before
        child.ask("release")
        at = f"peers.{entry.name}"
        result.add(f"{at}.start", "s", [opened], note="importing and opening the loader")
        result.add(f"{at}.first", "s", [first["seconds"]])
        result.add(f"{at}.memory", "MB per worker", [added / max(1, task.workers) / 1e6])
    return child


def _installed(entry: PeerEntry) -> bool:
    """Return whether this interpreter has the packages of a loader."""
    packages = PEERS[entry.peer].packages
    try:
        return all(version(name) for name in packages)
    except PackageNotFoundError:
        return False


def compare(epoch: dict[str, float], truth: dict[str, float]) -> None:
    """Raise an error unless a loader returned every pixel of every tile once."""
    for name, value in truth.items():
        if abs(epoch[name] - value) > 1e-6 * value:  # float32 pixels do not add up exactly
            raise ChildError(f"an epoch has {name} {epoch[name]}, not {value}")


def timed_rate(child: ChildProcess, seconds: float) -> dict[str, Any]:
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


def _record_ratios(result: Result, entries: Sequence[PeerEntry]) -> None:
    """Record the rates of our loader over the fastest other one of whole tiles, and memory."""
    others = [entry for entry in entries if not (entry.ours or entry.crops)]
    if not others:
        return
    rates = {entry.title: result[f"peers.{entry.name}.rate"] for entry in others}
    fastest = max(rates, key=lambda title: rates[title].median)
    for name, what in (("ours", "whole tiles"), ("ours_crops", "crops")):
        if (ours := result.figures.get(f"peers.{name}.rate")) is not None:
            over = ratios(ours.values, rates[fastest].values)
            note = f"rate of BatchLoader's {what} over that of whole tiles of {fastest}"
            result.add(
                f"peers.{name}.over_best", "", over, note=f"{note}, the fastest other loader"
            )
    if result.settings["quick"]:
        return
    memory = {e.title: result[f"peers.{e.name}.memory"].median for e in others if e.workers != 0}
    if memory and "peers.ours.memory" in result.figures:
        least = min(memory, key=lambda title: memory[title])
        over = [memory[least] / result["peers.ours.memory"].median]
        note = f"memory per worker of {least}, the least of other loaders with workers, over that "
        note += "of BatchLoader"
        result.add("peers.ours.least_memory", "", over, at_least=1.0, note=note)
