"""What each augmentation costs: of the host per crop, and of the device per image."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from benchmarks.common import Result
from benchmarks.loading.data import random_tiles
from benchmarks.loading.rates import LoaderRate, drain, repeated
from loaders import (
    Batch,
    BatchLoader,
    DeviceAugmentation,
    DevicePrep,
    Jitter,
    Normalize,
    SpeedTarget,
)

SIDE = 512

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
"""Case to its title."""


def measure_augment(result: Result, tiles: int) -> None:
    """Record rate and processor time of every case, on random tiles."""
    of = result.settings
    data = random_tiles(tiles, SIDE, 3)
    make = partial(BatchLoader, data, of["batch_size"], threads=of["threads"])
    loaders = {"whole": make(crops_per_tile=8)}
    augments: dict[str, Literal["d4", "flips"] | None] = {
        "crop": None,
        "flips": "flips",
        "d4": "d4",
    }
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


def prepare(prep: DevicePrep, batch: Batch) -> int:
    """Do the work of the device (here, this processor); return the number of samples."""
    prep(batch)
    return len(batch)
