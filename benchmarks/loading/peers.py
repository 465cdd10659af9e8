"""Other loaders on the same tiles: started, asked in turns, and put next to ours.

Each runs in a process of its own, see :mod:`benchmarks.peers.run`. All are kept alive, idle, so
that rates can be taken in turns; what a loader holds is looked at while the others rest.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from benchmarks.child import ROOT, ChildError, Conversation
from benchmarks.common import Result, announce, interleave, ratios
from benchmarks.loading.held import Held, settled
from benchmarks.peers.base import Task

PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
"""Made by `make bench-peers`; this interpreter runs the peers it can where that is not there."""

WHOLE_OVER_BEST = 8.0
CROPS_OVER_BEST = 3.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A loader to run.

    Attributes
    ----------
    module
        Of `benchmarks.peers`.
    title
        In tables and pictures.
    workers
        0 for the loop itself; None for as many as there are cores.
    crops
        Whether it hands out windows with random symmetries.
    ours
        Whether it is this project's, and runs with this interpreter.
    """

    module: str
    title: str
    workers: int | None = None
    crops: bool = False
    ours: bool = False

    @property
    def name(self) -> str:
        """Name of its figures."""
        suffix = "_crops" if self.crops else "_inline" if self.workers == 0 else ""
        return self.module + suffix


ENTRIES = (
    Entry("ours", "ours: BatchLoader", ours=True),
    Entry("ours", "ours: BatchLoader, crops + D4", crops=True, ours=True),
    Entry("ours_dataset", "ours: TileDataset in DataLoader", ours=True),
    Entry("ffcv_loader", "FFCV"),
    Entry("uint8_dataloader", "DataLoader, uint8 in memory"),
    Entry("uint8_dataloader", "DataLoader, uint8, no workers", workers=0),
    Entry("spdl_pipeline", "SPDL"),
    Entry("litdata_loader", "LitData"),
    Entry("mosaic_streaming", "MosaicML Streaming"),
    Entry("webdataset_loader", "WebDataset"),
    Entry("classic_dataloader", "DataLoader, float32 + int64"),
    Entry("rasterio_getitem", "TIFFs in __getitem__"),
    Entry("torchgeo_prechipped", "TorchGeo"),
)


@dataclass(frozen=True, slots=True)
class Epochs:
    """Whole epochs of one loader: samples, seconds, processor seconds, seconds between batches."""

    samples: int
    seconds: float
    cpu_seconds: float
    batches: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What was learnt of one loader before the rates.

    Attributes
    ----------
    conversation
        Open.
    imported, opened, first
        Seconds to import, to make the loader, to the first batch.
    memory
        MB that each worker adds, with its batches.
    versions
        Package to version.
    """

    conversation: Conversation
    imported: float
    opened: float
    first: float
    memory: float
    versions: dict[str, str] = field(default_factory=dict)


def start(module: str, task: Task, python: Path = Path(sys.executable)) -> Conversation:
    """Return a conversation with a peer, a module of `benchmarks.peers`, on a task."""
    return Conversation([str(python), "-m", "benchmarks.peers.run", module, task.dump()])


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
    python = PEERS_PYTHON if PEERS_PYTHON.exists() else Path(sys.executable)
    found: dict[str, Found] = {}
    with ExitStack() as stack:
        for entry in entries:
            announce(entry.title)
            its = replace(
                task,
                workers=task.workers if entry.workers is None else entry.workers,
                crop=of["crop"] if entry.crops else None,
            )
            interpreter = Path(sys.executable) if entry.ours else python
            conversation = stack.enter_context(start(entry.module, its, interpreter))
            try:
                found[entry.name] = _meet(conversation, its, truth)
            except ChildError as error:
                result.notes.append(f"{entry.title}: left out, {error}")
        cases = {n: partial(_rate, one.conversation, of["seconds"]) for n, one in found.items()}
        runs = interleave(cases, of["repeats"])
    for name, one in found.items():
        _record(result, f"peers.{name}", one, runs[name])
    _record_goals(result, entries, found)


def _meet(conversation: Conversation, task: Task, truth: dict[str, float]) -> Found:
    """Start a loader, check that it delivers the pixels, and look at its memory."""
    hello = conversation.answer()
    if "skipped" in hello:
        raise ChildError(f"{hello['skipped']} (`make bench-peers` installs it)")
    conversation.ask("prepare")
    opened = conversation.ask("open")["seconds"]
    before = settled(conversation.process.pid)
    first = conversation.ask("first")
    if task.crop is None:
        _compare(first, truth)
    conversation.ask("hold")
    memory = _added(before, settled(conversation.process.pid), task.workers)
    conversation.ask("release")
    return Found(
        conversation, hello["seconds"], opened, first["seconds"], memory, hello["versions"]
    )


def _compare(found: dict[str, float], truth: dict[str, float]) -> None:
    """Refuse a loader that does not deliver every pixel of every tile once."""
    for name, value in truth.items():
        if abs(found[name] - value) > 1e-6 * value:  # float32 pixels do not add up exactly
            raise ChildError(f"an epoch has {name} {found[name]}, not {value}")


def _added(before: Held, after: Held, workers: int) -> float:
    return (after.kept - before.kept) / max(1, workers) / 1e6


def _rate(conversation: Conversation, seconds: float) -> Epochs:
    """Let a loader run whole epochs for a while."""
    before = _tree_cpu(conversation.process.pid)
    answer = conversation.ask("rate", seconds=seconds)
    cpu = _tree_cpu(conversation.process.pid) - before
    return Epochs(answer["tiles"], answer["seconds"], cpu, tuple(answer["batches"]))


def _tree_cpu(pid: int) -> float:
    """Return the processor seconds of a process and its living descendants."""
    root = psutil.Process(pid)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _record(result: Result, at: str, one: Found, runs: Sequence[Epochs]) -> None:
    result.add(f"{at}.rate", "images/s", [run.samples / run.seconds for run in runs])
    cpu = [run.cpu_seconds / run.samples * 1e6 for run in runs]
    result.add(f"{at}.cpu", "us of one core per image", cpu)
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        values = [float(np.quantile(run.batches, share)) * 1e3 for run in runs if run.batches]
        if values:
            result.add(f"{at}.{label}", "ms", values)
    result.add(f"{at}.import", "s", [one.imported])
    result.add(f"{at}.open", "s", [one.opened])
    result.add(f"{at}.start", "s", [one.imported + one.opened], note="its import and its making")
    result.add(f"{at}.first", "s", [one.first])
    result.add(f"{at}.memory", "MB per worker", [one.memory])
    result.settings.setdefault("versions", {}).update(one.versions)


def _record_goals(result: Result, entries: Sequence[Entry], found: dict[str, Found]) -> None:
    """Record how far ours are ahead of the best of the others, round by round."""
    others = [entry for entry in entries if not entry.ours and entry.name in found]
    if not others:
        result.notes.append("no other loader could be run: `make bench-peers` installs them")
        return
    _record_over(result, "over_best", others, found, (WHOLE_OVER_BEST, CROPS_OVER_BEST))
    ahead = [entry for entry in others if entry.workers != 0]
    if not ahead:
        return
    _record_over(result, "over_best_ahead", ahead, found, (None, None))
    least = min(ahead, key=lambda e: found[e.name].memory)
    if "ours" in found:
        over = found[least.name].memory / found["ours"].memory
        note = f"the leanest other loader with workers, {least.title}, over ours"
        result.add("peers.ours.least_memory", "", [over], at_least=1.0, note=note)


def _record_over(
    result: Result,
    figure: str,
    others: Sequence[Entry],
    found: dict[str, Found],
    goals: tuple[float | None, float | None],
) -> None:
    """Record ours over the fastest of some others in each round."""
    rates = [result[f"peers.{entry.name}.rate"].values for entry in others]
    best = [max(values) for values in zip(*rates, strict=True)]
    fastest = max(others, key=lambda entry: result[f"peers.{entry.name}.rate"].median)
    beside = "" if any(entry.workers == 0 for entry in others) else " that works beside the loop"
    note = f"over the fastest other loader{beside}, whole tiles: {fastest.title}"
    for name, goal in zip(("ours", "ours_crops"), goals, strict=True):
        if name in found:
            over = ratios(result[f"peers.{name}.rate"].values, best)
            result.add(f"peers.{name}.{figure}", "", over, at_least=goal, note=note)
