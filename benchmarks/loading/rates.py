"""Rates of loaders, and of the storage of tiles.

Tiles are decoded in memory, compressed in memory, or in the store with files in the page cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.common import Result
from loaders import Batch, BatchLoader, RamTiles, StreamTiles

RESIDENCIES = {"ram": "RamTiles", "compressed": 'RamTiles, keep="compressed"'}
RESIDENCIES |= {"stream": "StreamTiles"}
_LEAST = 32
"""Smallest number of tiles that fit into the memory limit of a stream."""


@dataclass(frozen=True, slots=True)
class LoaderRate:
    """Amount of data that a loader returned, and the time it took.

    Attributes
    ----------
    samples
        Number of tiles or crops.
    seconds, cpu_seconds
        Wall time, and processor time of all threads.
    """

    samples: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of one core per sample."""
        return self.cpu_seconds / self.samples * 1e6


def drain(loader: Iterable[Batch], seconds: float) -> LoaderRate:
    """Iterate complete epochs for at least ``seconds`` and return the rate."""
    return repeated(lambda: sum(len(batch) for batch in loader), seconds)


def repeated(work: Callable[[], int], seconds: float) -> LoaderRate:
    """Return the rate of a function that returns its number of samples, called again and again."""
    samples, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < start + seconds:
        samples += work()
    return LoaderRate(samples, time.perf_counter() - start, time.process_time() - cpu)


def measure_residency(result: Result, store: Path, pixels: RamTiles) -> None:
    """Record memory and rates of whole tiles and of crops for each storage of tiles.

    Parameters
    ----------
    store
        Path of the store.
    pixels
        All its tiles in memory.
    """
    of = result.settings
    batch = of["batch_size"] * pixels.tile_bytes
    limit = max(pixels.nbytes // 3, _LEAST * pixels.tile_bytes) + 9 * batch
    compressed = RamTiles.load(store, "all", keep="compressed", progress=False)
    kinds = {"ram": pixels, "compressed": compressed}
    held = {f"residency.{kind}": tiles.handle.nbytes for kind, tiles in kinds.items()}
    stream = StreamTiles.open(store, "all", ram_limit=limit)
    held["residency.stream"] = stream.ram_limit
    cases: dict[str, Callable[[], LoaderRate]] = {}
    for kind, tiles in {**kinds, "stream": stream}.items():
        make = partial(BatchLoader, tiles, of["batch_size"], threads=of["threads"])
        crops = make(crop=of["crop"], augment="d4", crops_per_tile=4)
        for name, loader in (("whole", make()), ("crops", crops)):
            cases[f"residency.{kind}.{name}"] = partial(drain, loader, of["seconds"])
    for at, nbytes in held.items():
        result.add(f"{at}.held", "MB", [nbytes / 1e6])
    for at, rates in result.turns(cases).items():
        result.add(f"{at}.rate", "images/s", [rate.rate for rate in rates])
        result.add(f"{at}.cpu", "us of one core per image", [rate.cpu_us for rate in rates])
