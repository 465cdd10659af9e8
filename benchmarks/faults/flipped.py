"""Bits of a finished store that are flipped, one at a time."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults import jobs
from benchmarks.faults.children import Ending, run
from benchmarks.faults.jobs import READERS, World
from benchmarks.faults.report import Row
from geoprep.cpus import usable_cpus

PER_CHILD = 25


def rows(world: World, seed: int, flips: int) -> Iterator[Row]:
    """Flip bits of a store of few scenes; read it in every way."""
    found = Row("one bit of a store flipped", "`verify` names the damage")
    kept = Row(
        "the same stores read by RamTiles, StreamTiles and scene by scene",
        "every pixel that is delivered is the right one, or an error tells what is damaged",
    )
    folder = world.folder / "flipped"
    folder.mkdir()
    with found, ThreadPoolExecutor(usable_cpus()) as pool:
        batches = [min(PER_CHILD, flips - first) for first in range(0, flips, PER_CHILD)]
        tasks = [(world.store, folder / str(i), f"{seed} {i}", n) for i, n in enumerate(batches)]
        told = 0
        for ending in pool.map(lambda task: run(flip_some, *task, timeout=600), tasks):
            told += _count(ending, found, kept)
    found.note = "of any file, weighed by size and by number alike"
    kept.note = f"{told:,} of {3 * kept.tried:,} readings refused, the others whole"
    shutil.rmtree(folder)
    yield found
    yield kept


def _count(ending: Ending, found: Row, kept: Row) -> int:
    if ending.how != "done":
        found.count([str(ending)])
        return 0
    for where, seen, wrong, _ in ending.answer:
        found.count([] if seen else [f"{where}: not found"])
        kept.count([f"{where}: {', '.join(wrong)} differ"] if wrong else [])
    return sum(refused for *_, refused in ending.answer)


def flip_some(
    store: Path, copy: Path, seed: str, count: int
) -> list[tuple[str, bool, list[str], int]]:
    """Flip some bits of a copy of a store, each in turn, and read it in every way.

    Returns
    -------
    list
        Per bit: where it was, whether `verify` found it, names of arrays that were delivered with
        other pixels, and how many readers refused.
    """
    rng = random.Random(seed)
    shutil.copytree(store, copy)
    right = jobs.delivered(copy, READERS)
    files = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.stat().st_size]
    sizes = [path.stat().st_size for path in files]
    result = []
    for _ in range(count):
        path = rng.choices(files, sizes if rng.random() < 0.5 else None)[0]
        bit = rng.randrange(8 * path.stat().st_size)
        data = path.read_bytes()
        path.write_bytes(_flipped(data, bit))
        where = f"{path.relative_to(copy)}, bit {bit % 8} of byte {bit // 8}"
        seen = jobs.delivered(copy, READERS)
        result.append((where, bool(jobs.store_problems(copy)), _wrong(seen, right), _refused(seen)))
        path.write_bytes(data)
    shutil.rmtree(copy)
    return result


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _wrong(seen: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Return the arrays whose pixels are not the right ones; errors are none."""
    arrays = {name: value for name, value in seen.items() if not isinstance(value, str)}
    return [name for name in arrays if not np.array_equal(arrays[name], right.get(name, ()))]


def _refused(seen: dict[str, Any]) -> int:
    return sum(isinstance(value, str) for value in seen.values())
