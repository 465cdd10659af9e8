"""One measurement in a fresh process: ``python -m benchmarks.fitting.worker JSON``.

The last line of output is the answer, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.fitting.rungs import FIT, FUSED, RUNGS, Rung
from benchmarks.fitting.stepper import Stepper, close, loader_of, open_tiles
from geoprep.store import Store

WARM_UP = 2
"""Steps before the clock runs: the first compiles, and both fill the allocator."""


def climb(rung: str, store: str, batch_size: int, crop: int, seconds: float) -> dict[str, Any]:
    """Time steps on a rung."""
    chosen = next(r for r in RUNGS if r.name == rung)
    stepper, tiles = Stepper(chosen, Store.open(store)), open_tiles(Path(store))
    batches = iter(loader_of(tiles, batch_size, crop))
    stepper.run(batches, 0, WARM_UP)
    pace = stepper.run(batches, seconds, 3)
    close(batches)
    return {
        **asdict(pace),
        "allocator": stepper.allocator,
        "engine": stepper.engine.reason,
        "threads": torch.get_num_threads(),
        "peak_mib": high_water() / 2**20,
    }


def ceiling(store: str, batch_size: int, crop: int, seconds: float) -> dict[str, Any]:
    """Time the convolutions of a step alone."""
    from benchmarks.fitting.convolutions import record, replay

    # Not compiled: the convolutions are the same.
    stepper, tiles = _stepper(FUSED, store)
    batches = iter(loader_of(tiles, batch_size, crop))
    batch = next(batches)
    found = record(lambda: stepper.step(batch))
    close(batches)
    replay(found)
    steps, start = 0, time.perf_counter()
    while steps < 3 or time.perf_counter() - start < seconds:
        replay(found)
        steps += 1
    return {"steps": steps, "seconds": time.perf_counter() - start, "convolutions": len(found)}


def sizes(store: str, crop: int, seconds: float, repeats: int, of: list[int]) -> dict[str, Any]:
    """Time steps of several batch sizes, in turns."""
    from benchmarks.common import interleave

    stepper, tiles = _stepper(FIT, store)
    batches = {n: iter(loader_of(tiles, n, crop)) for n in of}
    for found in batches.values():
        stepper.run(found, 0, WARM_UP)
    cases = {str(n): lambda b=b: stepper.run(b, seconds, 2) for n, b in batches.items()}
    paces = interleave(cases, repeats)
    for found in batches.values():
        close(found)
    return {name: [asdict(pace) for pace in found] for name, found in paces.items()}


def feeding(
    store: str, batch_size: int, crop: int, seconds: float, repeats: int, of: list[int]
) -> dict[str, Any]:
    """Time steps that are fed in several ways, in turns."""
    from benchmarks.common import interleave
    from benchmarks.fitting.feeds import feed_ways

    stepper, tiles = _stepper(FIT, store)
    with feed_ways(tiles, batch_size, crop, of) as ways:
        for batches in ways.values():
            stepper.run(batches, 0, WARM_UP)
        cases = {name: lambda b=b: stepper.run(b, seconds, 2) for name, b in ways.items()}
        paces = interleave(cases, repeats)
    return {name: [asdict(pace) for pace in found] for name, found in paces.items()}


def breakdown(store: str, batch_size: int, crop: int, steps: int) -> dict[str, Any]:
    """Return where the time of a step goes, in milliseconds by kind of operation."""
    from benchmarks.fitting.breakdown import profile_steps

    stepper, tiles = _stepper(FIT, store)
    batches = iter(loader_of(tiles, batch_size, crop))
    stepper.run(batches, 0, WARM_UP)
    found = profile_steps(stepper, batches, steps)
    close(batches)
    return found


def mapping(**given: Any) -> dict[str, Any]:  # noqa: ANN401 - as JSON has them
    """Map images: see `benchmarks.fitting.mapping.map_images`."""
    from benchmarks.fitting.mapping import map_images
    from training.engine.host import keep_memory

    keep_memory()  # as the command does
    return map_images(**given)


def _stepper(rung: Rung, store: str) -> tuple[Stepper, Any]:
    return Stepper(rung, Store.open(store)), open_tiles(Path(store))


def high_water() -> int:
    """Return this process's largest resident size so far, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "climb": climb,
    "ceiling": ceiling,
    "sizes": sizes,
    "feeding": feeding,
    "breakdown": breakdown,
    "map": mapping,
}


def main() -> None:
    """Carry out the task of the command line."""
    task = json.loads(sys.argv[1])
    print(json.dumps(TASKS[task.pop("do")](**task)), flush=True)


if __name__ == "__main__":
    main()
