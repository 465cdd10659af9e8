"""Batches per second, next to copying the same bytes between buffers with the same threads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Result, announce, interleave, ratios
from benchmarks.machine import cpu_seconds
from loaders import Batch, BatchLoader, RamTiles

WHOLE_OVER_COPY = 0.8
CROPS_PER_SECOND = {(512, 3): 9_000.0, (650, 3): 7_000.0, (512, 8): 9_000.0}
"""Side and bands of the tiles to the crops of 256 with D4 that two cores promise."""
PROMISED_CROP = 256
PROMISED_CORES = 2


@dataclass(frozen=True, slots=True)
class Rate:
    """What was handed over in a while.

    Attributes
    ----------
    samples
        Tiles or windows.
    nbytes
        Of images and masks.
    seconds, cpu_seconds
        Wall time, and processor time of all threads.
    batches
        Seconds between one batch and the next, in mid-epoch.
    """

    samples: int
    nbytes: int
    seconds: float
    cpu_seconds: float
    batches: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def gigabytes(self) -> float:
        """GB per second."""
        return self.nbytes / self.seconds / 1e9

    def quantile(self, share: float) -> float:
        """Return a quantile of the time between batches, in milliseconds."""
        return float(np.quantile(self.batches, share)) * 1e3 if self.batches else float("nan")


def drain(loader: Iterable[Batch], seconds: float) -> Rate:
    """Take batches and drop them, whole epochs, for at least so many seconds."""
    samples, nbytes = 0, 0
    times: list[float] = []
    cpu = cpu_seconds()
    start = now = time.perf_counter()
    while now - start < seconds:
        first = len(times)
        for batch in loader:
            before, now = now, time.perf_counter()
            times.append(now - before)
            samples += len(batch)
            nbytes += batch.image.nbytes + batch.speed.nbytes
        del times[first]  # an epoch's first batch waits for its threads: that is its start
        del batch
    return Rate(samples, nbytes, now - start, cpu_seconds() - cpu, tuple(times))


def start(loader: Callable[[], BatchLoader]) -> tuple[float, float]:
    """Return the seconds that making a loader takes, and then its first batch."""
    begin = time.perf_counter()
    batches = iter(loader())
    made = time.perf_counter()
    batch = next(batches)
    first = time.perf_counter()
    del batch
    close(batches)
    return made - begin, first - made


def close(batches: Iterator[Any]) -> None:
    """End the threads of an epoch that is left in the middle."""
    end = getattr(batches, "close", None)
    if end is not None:
        end()


class Copy:
    """Copies as many bytes as a batch has, from the tiles, with threads, into buffers used in turn.

    Parameters
    ----------
    tiles
        Where the bytes come from: image and mask, one stretch after another.
    samples, side
        Of a batch: windows, and the side of each in pixels.
    threads
        That copy, each a stretch of its own.
    """

    def __init__(self, tiles: RamTiles, samples: int, side: int, threads: int) -> None:
        bands = len(tiles.bands)
        self.samples = samples
        self.threads = threads
        self.sources = [tiles.image.reshape(-1), tiles.speed.reshape(-1)]
        sizes = [samples * side * side * bands, samples * side * side]
        # As many buffers as the loader has: those in work, and two with the loop.
        self.slots = [[np.zeros(n, np.uint8) for n in sizes] for _ in range(threads + 2)]

    def __call__(self, seconds: float) -> Rate:
        """Copy for so many seconds, at least once in each thread."""
        turns = itertools.count()
        cpu, start = cpu_seconds(), time.perf_counter()
        end = start + seconds

        def work(_: int) -> int:
            done = 0
            while True:  # once at least: on a crowded machine a thread may begin after the end
                self._one(next(turns))
                done += 1
                if time.perf_counter() >= end:
                    return done

        with ThreadPoolExecutor(self.threads) as pool:
            batches = sum(pool.map(work, range(self.threads)))
        nbytes = batches * sum(target.nbytes for target in self.slots[0])
        took = time.perf_counter() - start
        return Rate(batches * self.samples, nbytes, took, cpu_seconds() - cpu)

    def _one(self, turn: int) -> None:
        for source, target in zip(self.sources, self.slots[turn % len(self.slots)], strict=True):
            np.copyto(target, _stretch(source, turn, len(target)))


def _stretch(source: NDArray[np.uint8], turn: int, length: int) -> NDArray[np.uint8]:
    """Return the stretch of a source that is due."""
    at = (turn % max(1, len(source) // length)) * length
    return source[at : at + length]


def measure_throughput(result: Result, sets: dict[str, RamTiles], *, epoch: int) -> None:
    """Record whole tiles and windows of every set of tiles, and the copies beside them.

    Parameters
    ----------
    sets
        Tiles by name.
    epoch
        Samples that an epoch has at least.
    """
    of = result.settings
    batch_size, crop, threads, seconds = (
        of[name] for name in ("batch_size", "crop", "threads", "seconds")
    )
    cases: dict[str, Callable[[], Rate]] = {}
    loaders: dict[str, Callable[[], BatchLoader]] = {}
    for name, tiles in sets.items():
        times = -(-epoch // len(tiles))
        make = partial(BatchLoader, tiles, batch_size, threads=threads)
        loaders[f"{name}.whole"] = partial(make, crops_per_tile=times)
        loaders[f"{name}.crops"] = partial(make, crop=crop, augment="d4", crops_per_tile=4 * times)
        for kind, side in (("whole", tiles.side), ("crops", crop)):
            cases[f"{name}.{kind}"] = partial(drain, loaders[f"{name}.{kind}"](), seconds)
            copy = Copy(tiles, batch_size, side, threads)
            cases[f"{name}.{kind}.copy"] = partial(copy, seconds)
    for case, run in cases.items():
        announce(f"first run: {case}")
        run()
    runs = interleave(cases, of["repeats"])
    for name, loader in loaders.items():
        made, first = zip(*(start(loader) for _ in range(of["repeats"])), strict=True)
        result.add(f"throughput.{name}.start", "ms", [s * 1e3 for s in made])
        result.add(f"throughput.{name}.first", "ms", [s * 1e3 for s in first])
    for name, tiles in sets.items():
        shape = (tiles.side, len(tiles.bands))
        rate = CROPS_PER_SECOND.get(shape) if crop == PROMISED_CROP else None
        _record(result, f"{name}.whole", runs, over_copy=WHOLE_OVER_COPY)
        _record(result, f"{name}.crops", runs, rate=rate)


def _record(
    result: Result,
    name: str,
    runs: dict[str, list[Rate]],
    *,
    rate: float | None = None,
    over_copy: float | None = None,
) -> None:
    """Record one way of loading; `rate` and `over_copy` are promised, of two cores."""
    found, copies = runs[name], runs[f"{name}.copy"]
    if result.machine["cores"] != PROMISED_CORES:
        rate = over_copy = None
    at = f"throughput.{name}"
    result.add(f"{at}.rate", "images/s", [r.rate for r in found], at_least=rate)
    result.add(f"{at}.gb", "GB/s", [r.gigabytes for r in found])
    result.add(f"{at}.copy.gb", "GB/s", [r.gigabytes for r in copies])
    over = ratios([r.gigabytes for r in found], [r.gigabytes for r in copies])
    result.add(f"{at}.over_copy", "", over, at_least=over_copy)
    # The same in processor time: what other users of the machine distort least.
    cpu = [r.cpu_seconds / r.samples * 1e6 for r in found]
    result.add(f"{at}.cpu", "us of one core per image", cpu)
    per_byte = [[r.cpu_seconds / r.nbytes for r in each] for each in (copies, found)]
    result.add(f"{at}.over_copy_cpu", "", ratios(*per_byte))
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        result.add(f"{at}.{label}", "ms", [r.quantile(share) for r in found])
