"""Batches per second, compared with copying the same bytes with the same threads.

Also measured: the storage of tiles: decoded in memory, compressed in memory, in the store, with
files in the page cache.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common import Result, announce, ratios
from loaders import Batch, BatchLoader, RamTiles, StreamTiles

WHOLE_OVER_COPY = 0.8
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
    nbytes
        Bytes of images and masks.
    seconds, cpu_seconds
        Wall time, and processor time of all threads.
    batches
        Seconds between consecutive batches of an epoch.
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

    @property
    def cpu_us(self) -> float:
        """Microseconds of one core per sample."""
        return self.cpu_seconds / self.samples * 1e6

    def quantile(self, share: float) -> float:
        """Return a quantile of the time between batches, in milliseconds."""
        return float(np.quantile(self.batches, share)) * 1e3 if self.batches else float("nan")


def drain(loader: Iterable[Batch], seconds: float) -> LoaderRate:
    """Iterate complete epochs for at least ``seconds`` and return the rate."""
    samples, nbytes = 0, 0
    times: list[float] = []
    cpu = time.process_time()
    start = now = time.perf_counter()
    while now - start < seconds:
        first = len(times)
        for batch in loader:
            before, now = now, time.perf_counter()
            times.append(now - before)
            samples += len(batch)
            nbytes += batch.image.nbytes + batch.speed.nbytes
        del times[first]  # the first batch of an epoch includes starting the threads
        del batch
    return LoaderRate(samples, nbytes, now - start, time.process_time() - cpu, tuple(times))


def repeated(work: Callable[[], tuple[int, int]], seconds: float) -> LoaderRate:
    """Return the rate of a function that returns numbers of samples and bytes, called again."""
    samples, nbytes, start, cpu = 0, 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < start + seconds:
        counts = work()
        samples, nbytes = samples + counts[0], nbytes + counts[1]
    return LoaderRate(samples, nbytes, time.perf_counter() - start, time.process_time() - cpu)


def first_batch(loader: BatchLoader) -> float:
    """Return the milliseconds to the first batch of an epoch; the epoch is then abandoned."""
    start = time.perf_counter()
    batches = iter(loader)
    batch = next(batches)
    seconds = time.perf_counter() - start
    del batch
    batches.close()  # type: ignore[attr-defined]  # ends its threads
    return seconds * 1e3


def copy(tiles: RamTiles, samples: int, side: int, threads: int, seconds: float) -> LoaderRate:
    """Return the rate of copying batches of bytes from tiles into alternating buffers.

    Parameters
    ----------
    tiles
        Source of the bytes: consecutive ranges of images and masks.
    samples, side
        Crops per batch, and their side in pixels.
    threads
        Number of threads, each of which copies for ``seconds`` and at least once.
    """
    samples = min(samples, tiles.speed.size // side**2)  # a store may have less than a batch
    sources = [tiles.image.reshape(-1), tiles.speed.reshape(-1)]
    sizes = [samples * side * side * len(tiles.bands), samples * side * side]
    # As many buffers as the loader has: one per thread, and two in the loop.
    slots = [[np.zeros(size, np.uint8) for size in sizes] for _ in range(threads + 2)]
    turns = itertools.count()

    def work(_: int) -> int:
        done = 0
        while done == 0 or time.perf_counter() < start + seconds:
            turn = next(turns)
            for source, target in zip(sources, slots[turn % len(slots)], strict=True):
                at = (turn % max(1, len(source) // len(target))) * len(target)
                np.copyto(target, source[at : at + len(target)])
            done += 1
        return done

    cpu, start = time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        batches = sum(pool.map(work, range(threads)))
    took = time.perf_counter() - start
    return LoaderRate(batches * samples, batches * sum(sizes), took, time.process_time() - cpu)


def measure_throughput(result: Result, sets: dict[str, RamTiles], *, epoch: int) -> None:
    """Record the rates of whole tiles and of crops of every set of tiles, and of copying.

    Parameters
    ----------
    sets
        Tiles by name, ``512x3``.
    epoch
        Smallest number of samples per epoch.
    """
    of = result.settings
    batch_size, crop, threads, seconds = (
        of[name] for name in ("batch_size", "crop", "threads", "seconds")
    )
    cases: dict[str, Callable[[], LoaderRate]] = {}
    for name, tiles in sets.items():
        times = -(-epoch // len(tiles))
        make = partial(BatchLoader, tiles, batch_size, threads=threads)
        whole = make(crops_per_tile=times)
        crops = make(crop=crop, augment="d4", crops_per_tile=4 * times)
        for kind, loader, side in (("whole", whole, tiles.side), ("crops", crops, crop)):
            at = f"throughput.{name}.{kind}"
            result.add(f"{at}.first", "ms", [first_batch(loader) for _ in range(of["repeats"])])
            cases[at] = partial(drain, loader, seconds)
            cases[f"{at}.copy"] = partial(copy, tiles, batch_size, side, threads, seconds)
    for case, run in cases.items():
        announce(f"first run: {case}")
        run()
    runs = result.turns(cases)
    for at, rates in runs.items():
        if at.endswith(".copy"):
            continue
        gigabytes, copied = ([r.gigabytes for r in each] for each in (rates, runs[f"{at}.copy"]))
        least = WHOLE_OVER_COPY if at.endswith(".whole") else None
        result.add(f"{at}.rate", "images/s", [r.rate for r in rates])
        result.add(f"{at}.gb", "GB/s", gigabytes)
        result.add(f"{at}.copy.gb", "GB/s", copied)
        result.add(f"{at}.over_copy", "", ratios(gigabytes, copied), at_least=least)
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            result.add(f"{at}.{label}", "ms", [r.quantile(share) for r in rates])


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
