"""What loading costs a training step: its processor time, and how long the step takes with it.

The step is that of `training.fit` with its defaults. It is fed by our loader as training has it,
and by other numbers of threads; by torch's DataLoader over the same tiles; with one batch over and
over; and with a batch that is normalised already, so that nothing is left but the network.
"""

from __future__ import annotations

from benchmarks.child import ask
from benchmarks.common import Result, announce, ratios
from benchmarks.fitting.rungs import WORKER
from benchmarks.loading.throughput import drain
from loaders import BatchLoader, RamTiles

SHARE = 0.01


def measure_tax(result: Result, store: str, tiles: RamTiles, *, batch_size: int) -> None:
    """Record the loader's share of a step, and the step with and without it.

    Parameters
    ----------
    store
        What steps learn from.
    tiles
        Of the store.
    batch_size
        Windows per step.
    """
    of = result.settings
    announce("filling batches alone")
    short = BatchLoader(tiles, batch_size, crop=of["crop"], augment="d4", crops_per_tile=16)
    alone = [drain(short, of["seconds"]) for _ in range(of["repeats"])]
    announce("training steps, fed in turns")
    task = {"store": store, "batch_size": batch_size, "crop": of["crop"]}
    task |= {"seconds": of["seconds"], "repeats": of["repeats"], "of": sorted({1, of["threads"]})}
    steps: dict[str, list[float]] = {}
    for name, paces in ask(WORKER, {**task, "do": "feeding"}).items():
        steps[name] = [p["seconds"] / p["steps"] for p in paces]
        result.add(f"tax.{name}.step", "ms", [s * 1e3 for s in steps[name]])
        result.add(f"tax.{name}.rate", "images/s", [batch_size / s for s in steps[name]])
        cpu = [p["cpu_seconds"] / p["steps"] * 1e3 for p in paces]
        result.add(f"tax.{name}.cpu", "ms of one core", cpu)
        result.add(f"tax.{name}.waited", "", [p["waited"] / p["seconds"] for p in paces])
    filling = [rate.cpu_seconds / rate.samples * batch_size * 1e3 for rate in alone]
    result.add("tax.filling.cpu", "ms of one core per batch", filling)
    share = ratios(filling, result["tax.cached.cpu"].values)
    note = "processor time of filling a batch over that of a step on a cached one"
    result.add("tax.share", "", share, at_most=SHARE, note=note)
    for name in ("cached", "prepared"):
        over = ratios(steps["loader"], steps[name])
        result.add(f"tax.over_{name}", "", over, note=f"step with the loader over step {name}")
