"""One measurement in a fresh process: ``python -m benchmarks.fitting.worker JSON``.

The last line of output is the answer, as JSON.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.common import interleave
from benchmarks.fitting.rungs import BF16, FIT, RUNGS
from benchmarks.fitting.stepper import Stepper, feeds
from benchmarks.loading.throughput import close
from benchmarks.machine import resident

WARM_UP = 2
"""Steps before the clock runs: the first compiles, and both fill the allocator."""

KINDS = (
    ("convolutions", r"convolution|conv2d|conv_transpose"),
    ("batch norm", r"batch_?norm"),
    ("gradient clip", r"_norm\b|foreach"),
    ("optimizer", r"adam|optimizer"),
    ("loss", r"compiled|fxgraph|torchdynamo|graph_\d"),
    ("activations", r"relu|threshold|clamp_min"),
    ("casts and copies", r"copy|aten::to\b|contiguous|cat\b|clone"),
    ("other elementwise", r"aten::(add|mul|sub|div|sum|neg|exp|log|sigmoid|abs|square|pow)"),
    ("pooling", r"pool"),
    ("rest", ""),
)
"""Kind to the names of its operators; the first that fits counts."""


def climb(rung: str, store: str, batch_size: int, crop: int, seconds: float) -> dict[str, Any]:
    """Time steps on a rung."""
    stepper = Stepper(next(r for r in RUNGS if r.name == rung), store, crop, batch_size)
    batches = iter(stepper.loader())
    stepper.pace(batches, 0, WARM_UP)
    pace = stepper.pace(batches, seconds, 3)
    close(batches)
    return {
        **asdict(pace),
        "allocator": stepper.allocator,
        "engine": stepper.run.engine.reason,
        "threads": torch.get_num_threads(),
        "peak_mib": resident() / 2**20,
    }


def ceiling(store: str, batch_size: int, crop: int, seconds: float) -> dict[str, Any]:
    """Time the convolutions of a step alone."""
    from benchmarks.fitting.convolutions import record, replay

    # Not compiled: the convolutions are the same.
    stepper = Stepper(BF16, store, crop, batch_size)
    batches = iter(stepper.loader())
    batch = next(batches)
    found = record(lambda: stepper.run.stepper([batch]))
    close(batches)
    replay(found)
    steps, start = 0, time.perf_counter()
    while steps < 3 or time.perf_counter() - start < seconds:
        replay(found)
        steps += 1
    return {"steps": steps, "seconds": time.perf_counter() - start, "convolutions": len(found)}


def sizes(store: str, crop: int, seconds: float, repeats: int, of: list[int]) -> dict[str, Any]:
    """Time steps of several batch sizes, in turns."""
    stepper = Stepper(FIT, store, crop)
    batches = {str(n): iter(stepper.loader(batch_size=n)) for n in of}
    for found in batches.values():
        stepper.pace(found, 0, WARM_UP)
    cases = {n: lambda b=b: asdict(stepper.pace(b, seconds, 2)) for n, b in batches.items()}
    paces = interleave(cases, repeats)
    for found in batches.values():
        close(found)
    return paces


def feeding(
    store: str, batch_size: int, crop: int, seconds: float, repeats: int, of: list[int]
) -> dict[str, Any]:
    """Time steps that are fed in several ways, and some that find their batch prepared."""
    stepper = Stepper(FIT, store, crop, batch_size)
    with feeds(stepper, of) as ways:
        batch = next(ways["cached"])

        def prepared() -> dict[str, Any]:
            with stepper.prepared(batch):
                return asdict(stepper.pace(ways["cached"], seconds, 2))

        for batches in ways.values():
            stepper.pace(batches, 0, WARM_UP)
        cases = {n: lambda b=b: asdict(stepper.pace(b, seconds, 2)) for n, b in ways.items()}
        return interleave({**cases, "prepared": prepared}, repeats)


def breakdown(store: str, batch_size: int, crop: int) -> dict[str, dict[str, float]]:
    """Return what ``--profile`` finds, in milliseconds: by part of a step, by kind of operator."""
    from training.monitor.profile import measure

    found = measure(Stepper(FIT, store, crop, batch_size).run)
    kinds: dict[str, float] = defaultdict(float)
    for name, (seconds, _) in found.operators.items():
        kinds[kind_of(name)] += seconds * 1e3
    return {"parts": {name: s * 1e3 for name, s in found.phases.items()}, "kinds": kinds}


def kind_of(operator: str) -> str:
    """Return the kind of an operator, by its name."""
    return next(kind for kind, pattern in KINDS if re.search(pattern, operator.lower()))


def mapping(**given: Any) -> dict[str, Any]:  # noqa: ANN401 - as JSON has them
    """Map images: see `benchmarks.fitting.mapping.map_images`."""
    from benchmarks.fitting.mapping import map_images
    from training.engine.host import keep_memory

    keep_memory()  # as the command does
    return map_images(**given)


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
