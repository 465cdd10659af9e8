"""Memory per worker: ours by every way of starting, the usual Dataset, and plain arithmetic.

Every way of loading gets a process of its own, see :mod:`benchmarks.loading.worker`, and is looked
at while its loop holds a batch and everybody else waits. Each worker is allowed one batch ahead.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.child import ask
from benchmarks.common import Result, announce
from benchmarks.loading.worker import Case
from loaders import RamTiles

MB = 1e6

MODES: dict[str, tuple[str, str, str]] = {
    "threads": ("threads", "", "ours: BatchLoader, threads"),
    "fork": ("tiles", "fork", "ours: TileDataset, fork"),
    "forkserver": ("tiles", "forkserver", "ours: TileDataset, forkserver, preloaded"),
    "spawn": ("tiles", "spawn", "ours: TileDataset, spawn"),
    "uint8": ("uint8", "fork", "(b) the same Dataset in uint8, fork"),
    "classic": ("classic", "fork", "(a) float32 + int64 Dataset, fork"),
}
"""Name to kind and start method, see `Case`, and what it is called."""

WORKERS = (0, 1, 2, 4, 8)
QUICK_WORKERS = (0, 1)
MANY = 64
"""Workers of a large machine: expected only, from the arithmetic."""


def batch_bytes(kind: str, batch_size: int, side: int, bands: int) -> int:
    """Return the bytes of a batch of whole tiles.

    Parameters
    ----------
    kind
        ``classic``: float32 images and int64 masks, four and eight bytes. Else bytes.
    batch_size, side, bands
        Tiles, their side in pixels, their bands.
    """
    pixel = 4 * bands + 8 if kind == "classic" else bands + 1
    return batch_size * side * side * pixel


def expected_bytes(kind: str, workers: int, batch_size: int, side: int, bands: int) -> int:
    """Return the bytes of all batches while a loop holds one and each worker has one ready.

    Our threads keep one more: while the loop goes from one batch to the next it has both.
    """
    spare = 1 if kind == "threads" else 0
    return (workers + 1 + spare) * batch_bytes(kind, batch_size, side, bands)


def measure_memory(result: Result, store: Path, tiles: RamTiles) -> None:
    """Record what every way of loading holds, for every number of workers.

    Parameters
    ----------
    tiles
        Of the store.
    """
    batch_size, workers = (result.settings[name] for name in ("batch_size", "memory_workers"))
    side, bands = tiles.side, len(tiles.bands)
    for mode, case in _cases(store, batch_size, workers):
        announce(f"{MODES[mode][2]}, {case.workers} workers")
        expected = expected_bytes(case.kind, case.workers, batch_size, side, bands)
        _record(result, f"memory.{mode}.{case.workers}", case, run(case), expected)
    for kind in ("classic", "uint8"):
        one = batch_bytes(kind, batch_size, side, bands)
        note = "one batch, arithmetic"
        result.add(f"memory.{kind}.batch.expected", "MB", [one / MB], note=note)
        note = f"a batch for each of {MANY} workers, arithmetic"
        result.add(f"memory.{kind}.{MANY}.expected", "MB", [MANY * one / MB], note=note)
    for start in ("fork", "forkserver", "spawn"):
        announce(f"an idle worker, {start}")
        _record_interpreter(result, start, run(Case("nothing", start, 1, 4, str(store))))


def _cases(store: Path, batch_size: int, workers: Sequence[int]) -> Iterator[tuple[str, Case]]:
    for mode, (kind, start, _) in MODES.items():
        for count in workers:
            # Without workers there is nothing to start: the same as fork.
            if count or mode not in ("forkserver", "spawn"):
                yield mode, Case(kind, start, count, batch_size, str(store))


def run(case: Case) -> dict[str, Any]:
    """Return what `benchmarks.loading.worker` finds in a fresh process."""
    return ask("benchmarks.loading.worker", asdict(case))


def _record(result: Result, name: str, case: Case, found: dict[str, Any], expected: int) -> None:
    """Record one way of loading; figures per worker only where there are workers."""
    total = found["held"]["kept"] - found["base"]["kept"]
    helpers = sum(pss for _, pss in found["others"])
    pss = found["pss"][1] - found["pss"][0] - helpers
    result.add(f"{name}.total", "MB", [total / MB], note="added by all workers and their batches")
    result.add(f"{name}.helpers", "MB", [helpers / MB], note="PSS of a fork server and the like")
    result.add(f"{name}.expected", "MB", [expected / MB], note="their batches alone, arithmetic")
    if not case.workers:
        return
    if found["workers"]:
        uss = statistics.median(u for u, _ in found["workers"])
        result.add(f"{name}.peak", "MB", [statistics.median(found["peaks"]) / MB])
    else:  # threads: all of it is in this process
        uss = (found["held"]["uss"] - found["base"]["uss"]) / case.workers
    result.add(f"{name}.uss", "MB per worker", [uss / MB])
    result.add(f"{name}.pss", "MB per worker", [pss / case.workers / MB])


def _record_interpreter(result: Result, start: str, found: dict[str, Any]) -> None:
    """Record what a worker costs before it has loaded anything."""
    at, note = f"memory.interpreter.{start}.uss", "a worker whose items are single bytes"
    result.add(at, "MB per worker", [found["workers"][0][0] / MB], note=note)
    if start == "forkserver":
        server = sum(pss for _, pss in found["others"])
        result.add("memory.interpreter.server.pss", "MB", [server / MB], note="once")
