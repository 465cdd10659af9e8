"""Flip single bits of a finished store and read it with every reader."""

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
from benchmarks.faults.jobs import READERS, FaultInputs
from benchmarks.faults.report import FaultRow
from geoprep.cpus import usable_cpus

BITS_PER_PROCESS = 25


def rows(inputs: FaultInputs, seed: int, flips: int) -> Iterator[FaultRow]:
    """Yield the results of flipping bits: `verify`, and all readers."""
    found = FaultRow("one bit of a store flipped", "`verify` names the damage")
    kept = FaultRow(
        "the same stores read by RamTiles, by StreamTiles and per scene",
        "every pixel returned is correct, or an error names the damage",
    )
    folder = inputs.folder / "flipped"
    folder.mkdir()
    with found, ThreadPoolExecutor(usable_cpus()) as pool:
        batches = [
            min(BITS_PER_PROCESS, flips - first) for first in range(0, flips, BITS_PER_PROCESS)
        ]
        tasks = [(inputs.store, folder / str(i), f"{seed} {i}", n) for i, n in enumerate(batches)]
        refused_total = 0
        for ending in pool.map(lambda task: run(flip_some, *task, timeout=600), tasks):
            refused_total += _count(ending, found, kept)
    found.note = "half of the files chosen by size, half with equal probability"
    kept.note = f"{refused_total:,} of {3 * kept.tried:,} reads refused, the others correct"
    shutil.rmtree(folder)
    yield found
    yield kept


def _count(ending: Ending, found: FaultRow, kept: FaultRow) -> int:
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
    """Flip bits of a copy of a store, one at a time, and read it with every reader.

    Returns
    -------
    list
        Per bit: its position, whether `verify` found it, names of arrays with wrong pixels, number
        of readers that refused.
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
    """Return the names of arrays with wrong pixels; errors do not count."""
    arrays = {name: value for name, value in seen.items() if not isinstance(value, str)}
    return [name for name in arrays if not np.array_equal(arrays[name], right.get(name, ()))]


def _refused(seen: dict[str, Any]) -> int:
    return sum(isinstance(value, str) for value in seen.values())
