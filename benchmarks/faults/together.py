"""Several commands at once on one store, map or page."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults import jobs
from benchmarks.faults.children import Child
from benchmarks.faults.jobs import READERS, Work, World, differences, finished, sound
from benchmarks.faults.report import Row
from geoprep.errors import StoreError
from geoprep.store import StoreReader

HELD = "each ends well or says that another is at work; the result is whole"
PAIRS = {"build-zarr": "builds", "predict": "predictions", "page": "pages"}


def rows(world: World, seed: int, tries: int) -> Iterator[Row]:
    """Start pairs a random moment apart."""
    rng, folder = random.Random(f"{seed} together"), world.folder / "together"
    works = jobs.works(world)
    for name, what in PAIRS.items():
        with Row(f"two {what} of one name at once", HELD) as row:
            expected = alone(works[name], folder)
            for _ in range(tries):
                row.count(race(works[name], folder, expected, rng))
        yield row
    held = "every reading gives the pixels of one whole store, or an error; never a mixture"
    with Row("a reader while the store is built anew", held) as row:
        for _ in range(tries):
            row.count(_read_while_built(world, folder, row))
    yield row


def alone(work: Work, folder: Path) -> dict[str, str]:
    """Return what a command makes where nobody disturbs it."""
    folder.mkdir()
    sound(work.start(folder))
    expected = work.result(folder)
    shutil.rmtree(folder)
    return expected


def race(work: Work, folder: Path, expected: dict[str, str], rng: random.Random) -> list[str]:
    """Start a command twice, and return what is wrong with how they ended or what they made."""
    folder.mkdir()
    with Child(*work.call(folder)) as first:
        time.sleep(rng.uniform(0, 0.4))
        with Child(*work.call(folder)) as second:
            endings = [first.end(), second.end()]
    wrong = [str(ending) for ending in endings if ending.how not in ("done", "told")]
    if not any(finished(ending) for ending in endings):
        wrong.append(f"neither finished: {endings[0]}; {endings[1]}")
    found = work.result(folder)
    shutil.rmtree(folder)
    return wrong + differences(found, expected)


def _read_while_built(world: World, out: Path, row: Row) -> list[str]:
    """Read over and over while the same pixels are built anew with another codec and shards."""
    shutil.copytree(world.store, out)
    right = jobs.delivered(out, READERS)
    with Child(_build_anew, world.source, out) as builder, Child(_reading, out, right) as reader:
        built, read = builder.end(), reader.end()
    shutil.rmtree(out)
    if built.how != "done" or read.how != "done":
        return [f"{built}; {read}"]
    wrong, whole, refused = read.answer
    row.note = f"last: {whole} readings whole, {refused} refused"
    return [f"{', '.join(wrong)} differ"] if wrong else []


def _build_anew(source: Path, out: Path) -> str:
    return jobs.build_store(source, out, overwrite=True, codec="zstd", shard_tiles=8)


def _reading(out: Path, right: dict[str, Any]) -> tuple[list[str], int, int]:
    """Return what was read wrong, how many readings were whole, and how many refused."""
    wrong: set[str] = set()
    whole = refused = 0
    until = time.monotonic() + 60
    codec = ""
    while codec != "zstd" and time.monotonic() < until:
        codec = _codec(out)
        for name, value in jobs.delivered(out, READERS).items():
            if isinstance(value, str):
                refused += 1
            elif np.array_equal(value, right[name]):
                whole += 1
            else:
                wrong.add(name)
    return sorted(wrong), whole, refused


def _codec(out: Path) -> str:
    try:
        return StoreReader.open(out).meta.codec
    except StoreError:
        return ""
