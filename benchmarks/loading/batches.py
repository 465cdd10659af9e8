"""Costs of a loader on its own: crops per number of bands, work per batch, and a loop with the GIL.

The loop of the last holds the interpreter's lock (GIL) for a share of every 2 ms, as one does that
launches many short operations on a device.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from statistics import median
from typing import Any, Literal

import torch

from benchmarks.common import Result, announce, ratios
from benchmarks.loading.data import random_tiles
from benchmarks.loading.throughput import LoaderRate, drain, repeated
from loaders import (
    Batch,
    BatchLoader,
    DeviceAugmentation,
    DevicePrep,
    Jitter,
    Normalize,
    SpeedTarget,
)

BANDS = (1, 2, 3, 4, 8, 13)
SIDE = 512

SMALL = tuple((side, size) for side in (64, 128) for size in (4, 32, 256))
"""Side of a tile and tiles per batch."""

SHARES = (0, 25, 50, 75, 90)
"""Per cent of the time for which the loop holds the GIL."""

Augment = Literal["d4", "flips"]
AUGMENTS = {
    "whole": "host: whole tile of 512, for comparison",
    "crop": "host: crop",
    "flips": "host: crop, flips",
    "d4": "host: crop, flips and rotations (D4)",
    "prep": "device (here the processor): normalisation and target",
    "jitter": "device: the same with Jitter",
    "warp": "device: the same with scale and rotation",
    "noise": "device: the same with blur, noise and shadow",
}
"""Case of the part augment to its title."""

_PERIOD_US = 2000
_PACED, _HUNGRY = 8, 32
"""Crops per period: 4,000 and 16,000 per second."""

_LATE = 1e-4
"""Seconds after which a loop counts as having waited for its batch."""

OVER_STACK = 0.8
BATCH_US = 80.0
PACED_RATE = 4000.0


def measure_crops(result: Result, tiles: int) -> None:
    """Record crops with D4 per second for each number of bands."""
    of = result.settings
    cases: dict[str, Callable[[], LoaderRate]] = {}
    for bands in BANDS:
        announce(f"creating random tiles of {bands} bands")
        some, crops = random_tiles(tiles, SIDE, bands), {"crop": of["crop"], "augment": "d4"}
        how = {"crops_per_tile": 8, "threads": of["threads"]} | crops
        loader = BatchLoader(some, of["batch_size"], **how)
        cases[f"crops.{bands}"] = partial(drain, loader, of["seconds"])
    for run in cases.values():
        run()  # compiles the copy
    for at, rates in result.turns(cases).items():
        result.add(f"{at}.rate", "crops/s", [rate.rate for rate in rates])
        result.add(f"{at}.gb", "GB/s", [rate.gigabytes for rate in rates])
        result.add(f"{at}.cpu", "us of one core per crop", [rate.cpu_us for rate in rates])


def measure_augment(result: Result, tiles: int) -> None:
    """Record what each augmentation costs: of the host per crop, and of the device per crop."""
    of = result.settings
    data = random_tiles(tiles, SIDE, 3)
    make = partial(BatchLoader, data, of["batch_size"], threads=of["threads"])
    loaders = {"whole": make(crops_per_tile=8)}
    augments: dict[str, Augment | None] = {"crop": None, "flips": "flips", "d4": "d4"}
    for name, augment in augments.items():
        loaders[name] = make(crop=of["crop"], augment=augment, crops_per_tile=32)
    cases: dict[str, Callable[[], LoaderRate]] = {
        name: partial(drain, loader, of["seconds"]) for name, loader in loaders.items()
    }
    batch = next(iter(loaders["crop"]))
    devices: dict[str, dict[str, Any]] = {
        "prep": {},
        "jitter": {"jitter": Jitter()},
        "warp": {"augmentation": DeviceAugmentation(scale=1.33, rotate=180)},
        "noise": {"augmentation": DeviceAugmentation(blur=1, noise=8, shadow=0.5)},
    }
    normalize, target = Normalize([1.0] * 3, [1.0] * 3), SpeedTarget("bins")
    for name, random in devices.items():
        prep = DevicePrep(normalize, target, **random)
        cases[name] = partial(repeated, partial(prepare, prep, batch), of["seconds"])
    for run in cases.values():
        run()  # compiles the copy
    for name, rates in result.turns(cases).items():
        result.add(f"augment.{name}.rate", "images/s", [rate.rate for rate in rates])
        result.add(f"augment.{name}.cpu", "us of one core per image", [r.cpu_us for r in rates])


def prepare(prep: DevicePrep, batch: Batch) -> tuple[int, int]:
    """Do the work of the device: here, this processor."""
    prep(batch)
    return len(batch), batch.image.nbytes + batch.speed.nbytes


def stack(image: torch.Tensor, label: torch.Tensor, size: int) -> tuple[int, int]:
    """Stack random tiles, an epoch of batches, with `torch.stack`."""
    order = torch.randperm(len(image)).tolist()
    samples = nbytes = 0
    for first in range(0, len(order) - size + 1, size):
        for pixels in (image, label):
            nbytes += torch.stack([pixels[tile] for tile in order[first : first + size]]).nbytes
        samples += size
    return samples, nbytes


def measure_batches(result: Result) -> None:
    """Record the processor time of a batch of next to no bytes, and rates of small tiles."""
    of = result.settings
    cases: dict[str, Callable[[], LoaderRate]] = {}
    nothing = random_tiles(512, 8, 3)
    for name, threads in (("cost", None), ("threads", of["threads"])):
        loader = BatchLoader(nothing, 4, crops_per_tile=8, threads=threads)
        cases[f"batches.{name}"] = partial(drain, loader, of["seconds"])
    for side, size in SMALL:
        tiles = random_tiles(1024, side, 3)
        image, label = (torch.from_numpy(part.copy()) for part in (tiles.image, tiles.label))
        times = max(1, size // 8)
        at = f"batches.{side}x{size}"
        loader = BatchLoader(tiles, size, crops_per_tile=times)
        cases[f"{at}.ours"] = partial(drain, loader, of["seconds"])
        cases[f"{at}.stack"] = partial(repeated, partial(stack, image, label, size), of["seconds"])
    cases["batches.cost"]()  # loads the compiled copy
    runs = result.turns(cases)
    for name, how in (("cost", "filled by the loop"), ("threads", "filled in threads")):
        cost = [4 * rate.cpu_us for rate in runs.pop(f"batches.{name}")]
        note = f"processor time of a batch of 4 tiles of 8 x 8, which is all bookkeeping, {how}"
        bound = BATCH_US if name == "cost" else None
        result.add(f"batches.{name}", "us", cost, at_most=bound, note=note)
    for at in sorted({case.rpartition(".")[0] for case in runs}):
        ours, stacked = runs[f"{at}.ours"], runs[f"{at}.stack"]
        result.add(f"{at}.rate", "tiles/s", [rate.rate for rate in ours])
        result.add(f"{at}.stack", "tiles/s", [rate.rate for rate in stacked])
        over = ratios([rate.rate for rate in ours], [rate.rate for rate in stacked])
        least = None if at.endswith("x4") else OVER_STACK
        result.add(f"{at}.over_stack", "", over, at_least=least, note="rate over torch.stack")
        result.add(f"{at}.cpu", "us of one core per tile", [rate.cpu_us for rate in ours])
        stacking = [rate.cpu_us for rate in stacked]
        result.add(f"{at}.stack_cpu", "us of one core per tile", stacking)


def _overshoot(sleep: Callable[[int], object]) -> float:
    """Return the seconds by which sleeping takes longer than asked for."""

    def took() -> float:
        start = time.perf_counter()
        sleep(500)
        return time.perf_counter() - start

    return median(took() for _ in range(20)) - 5e-4


def step(loader: BatchLoader, share: int, seconds: float) -> tuple[float, float]:
    """Take a batch per period, and hold the GIL for the first share of every period.

    The end of a hold and that of a period are points in time: a step that begins late holds the
    GIL for less, and the rest of its period is free as ever.

    Returns
    -------
    tuple of float
        Crops per second, and the share of steps that waited for their batch.
    """
    hold, free = ctypes.PyDLL(None).usleep, ctypes.CDLL(None).usleep
    early = _overshoot(free)
    period = _PERIOD_US / 1e6
    batches = chain.from_iterable(repeat(loader))
    batch = next(batches)
    crops, late, steps = 0, 0, 0
    start = begin = time.perf_counter()

    def sleep(way: Callable[[int], object], until: float) -> None:
        left = round((until - early - time.perf_counter()) * 1e6)
        if left > 0:
            way(left)

    while begin < start + seconds:
        asked = time.perf_counter()
        batch = next(batches)
        late += time.perf_counter() - asked > _LATE
        crops += batch.image.shape[0] + 0 * batch.label.shape[0]  # makes both tensors
        steps += 1
        sleep(hold, begin + period * share / 100)
        begin = max(begin + period, time.perf_counter() - period)  # no more than a period behind
        sleep(free, begin)
    return crops / (time.perf_counter() - start), late / steps


def measure_gil(result: Result, tiles: int) -> None:
    """Record crops per second beside a loop that holds the GIL."""
    of = result.settings
    data = random_tiles(tiles, SIDE, 3)
    make = partial(BatchLoader, data, crop=of["crop"], augment="d4", threads=of["threads"])
    cases = {}
    for share in SHARES:
        for name, size in (("paced", _PACED), ("hungry", _HUNGRY)):
            loader = make(batch_size=size, crops_per_tile=64, prefetch=8)
            cases[f"gil.{share}.{name}"] = partial(step, loader, share, of["seconds"])
    for at, runs in result.turns(cases).items():
        row, _, kind = at.rpartition(".")
        rates = [rate for rate, _ in runs]
        if kind == "hungry":
            result.add(f"{row}.rate", "crops/s", rates, at_least=PACED_RATE)
            continue
        result.add(f"{row}.paced", "crops/s", rates)
        waited = [100 * late for _, late in runs]
        result.add(f"{row}.waited", "% of steps", waited)
