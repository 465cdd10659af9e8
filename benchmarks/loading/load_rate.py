"""Rate of loading a store into memory, compared with zarrs alone.

Files are in the page cache. The target is a new memfd, whose pages are allocated at the first
write, as in `RamTiles.load`; the rate of zarrs into allocated pages is measured too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import zarr
from zarr.buffer.cpu import NDBuffer

from benchmarks.child import ask
from benchmarks.common import Result, announce, ratios
from benchmarks.loading.data import LoadingSizes, synthetic_store
from benchmarks.machine import resident
from geoprep.store import StoreReader
from loaders import RamTiles, SharedArrays

LOAD_OVER_ZARRS = 0.9
PEAK_MB = 150.0
SMALL_MB = (20, 50, 100)
"""Sizes of small stores, whose fixed costs count."""
_SMALL_TIMES = 5
_THREADS = 4
"""Concurrent calls to zarrs with one call per shard: the same number as the loader."""

ZARRS = {
    "zarrs_whole": (False, False),
    "zarrs_by_shard": (True, False),
    "zarrs_touched": (True, True),
}
"""Cases of zarrs: (one call per shard, else per array; into allocated, else new memory)."""


def load_ours(store: StoreReader) -> float:
    """Return GB/s of `RamTiles.load` of every tile of an open store."""
    start = time.perf_counter()
    tiles = RamTiles.load(store, split="all", progress=False)
    seconds = time.perf_counter() - start
    return (tiles.image.nbytes + tiles.speed.nbytes) / seconds / 1e9


def load_zarrs(store: StoreReader, *, by_shard: bool, touched: bool) -> float:
    """Return GB/s of zarrs alone.

    Parameters
    ----------
    store
        Open store.
    by_shard
        True for one call per shard from several threads, False for one call per array.
    touched
        True to read into allocated pages, False into new memory.
    """
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        # Opened again: zarrs supports only Zarr's own store classes.
        finest = f"{store.location}/{store.meta.levels[0]}"
        names = store.meta.array_names
        arrays = [zarr.open_array(f"{finest}/{name}", mode="r") for name in names]
    named = zip(names, arrays, strict=True)
    shared = SharedArrays.create({name: (np.uint8, array.shape) for name, array in named})
    targets = list(shared.values())
    if touched:
        for target in targets:
            target.fill(1)
    step = store.meta.shard_tiles if by_shard else len(targets[0])

    def read(array: zarr.Array[Any], target: np.ndarray[Any, Any], first: int) -> None:
        part = slice(first, min(first + step, len(target)))
        array.get_basic_selection(part, out=NDBuffer.from_numpy_array(target[part]))

    start = time.perf_counter()
    with ThreadPoolExecutor(_THREADS if by_shard else 1) as pool:
        calls = [
            pool.submit(read, array, target, first)
            for array, target in zip(arrays, targets, strict=True)
            for first in range(0, len(target), step)
        ]
        for call in calls:
            call.result()
    return sum(target.nbytes for target in targets) / (time.perf_counter() - start) / 1e9


def measure_load(result: Result, path: Path, work: Path, sizes: LoadingSizes) -> None:
    """Record rates and peak memory; with a whole run also rates of small synthetic stores.

    Parameters
    ----------
    result
        Results; written.
    path
        The store.
    work
        Folder for small stores.
    sizes
        Side of their scenes.
    """
    _measure_rates(result, StoreReader.open(path), "load")
    for megabytes in () if result.settings["quick"] else SMALL_MB:
        announce(f"creating a store of {megabytes} MB")
        scenes = max(1, round(megabytes * 1e6 / (4 * sizes.scene_side**2)))
        small = replace(sizes, scenes=scenes)
        store = synthetic_store(work / f"load-{megabytes}", small, result.settings["threads"])
        _measure_rates(result, StoreReader.open(store), f"load.{megabytes}", times=_SMALL_TIMES)
    announce("peak memory")
    target = "benchmarks.loading.load_rate:peak_over_split"
    peaks = [ask(target, {"path": str(path)})["peak"] / 1e6 for _ in range(3)]
    result.add("load.peak", "MB", peaks, at_most=PEAK_MB, note="beyond the size of the split")


def _measure_rates(result: Result, store: StoreReader, at: str, times: int = 1) -> None:
    """Record rates of loading a store; each the median of some loads."""

    def typical(load: Callable[[], float]) -> float:
        return median(load() for _ in range(times))

    cases: dict[str, Callable[[], float]] = {"ours": partial(typical, partial(load_ours, store))}
    if find_spec("zarrs") is None:
        note = "load: zarrs is not installed and left out: pip install zarrs"
        result.notes += [note] * (note not in result.notes)
    else:
        for name, (by_shard, touched) in ZARRS.items():
            load = partial(load_zarrs, store, by_shard=by_shard, touched=touched)
            cases[name] = partial(typical, load)
    cases["ours"]()  # warms the page cache and reads the tables
    runs = result.turns(cases)
    for name, rates in runs.items():
        result.add(f"{at}.{name}.rate", "GB/s", rates)
    if "zarrs_whole" in runs:
        best = [max(pair) for pair in zip(runs["zarrs_whole"], runs["zarrs_by_shard"], strict=True)]
        over = ratios(runs["ours"], best)
        note = "over the faster case of zarrs in each round, into a new memfd"
        result.add(f"{at}.over_zarrs", "", over, at_least=LOAD_OVER_ZARRS, note=note)


def peak_over_split(path: str) -> dict[str, int]:
    """Load in this process; return the peak increase in bytes beyond the size of the split."""
    store = StoreReader.open(path)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    tiles = RamTiles.load(store, split="all", progress=False)
    return {"peak": resident() - before - tiles.nbytes}
