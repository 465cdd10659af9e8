"""Several commands at the same time on one store, prediction or page."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults import jobs
from benchmarks.faults.children import ForkedProcess
from benchmarks.faults.jobs import (
    READERS,
    FaultInputs,
    WritingCommand,
    differences,
    finished,
    require_finished,
)
from benchmarks.faults.report import FaultRow
from geoprep.errors import StoreError
from geoprep.store import StoreReader

HELD = "each succeeds or reports that another process is writing; the result is complete"
PAIRS = {"build-zarr": "builds", "predict": "predictions", "page": "pages"}


def rows(inputs: FaultInputs, seed: int, tries: int) -> Iterator[FaultRow]:
    """Yield the results of pairs of commands, started a random moment apart."""
    rng, folder = random.Random(f"{seed} together"), inputs.folder / "together"
    writing_commands = jobs.writing_commands(inputs)
    for name, what in PAIRS.items():
        with FaultRow(f"two {what} with the same output at once", HELD) as row:
            expected = alone(writing_commands[name], folder)
            for _ in range(tries):
                row.count(race(writing_commands[name], folder, expected, rng))
        yield row
    held = "every read returns the pixels of one store, or an error; never a mixture"
    with FaultRow("reading while the store is rebuilt", held) as row:
        for _ in range(tries):
            row.count(_read_while_built(inputs, folder, row))
    yield row


def alone(writer: WritingCommand, folder: Path) -> dict[str, str]:
    """Return the hashes of a command's output without faults."""
    folder.mkdir()
    require_finished(writer.start(folder))
    expected = writer.result(folder)
    shutil.rmtree(folder)
    return expected


def race(
    writer: WritingCommand, folder: Path, expected: dict[str, str], rng: random.Random
) -> list[str]:
    """Start a command twice; return problems of the two ends and of the output."""
    folder.mkdir()
    with ForkedProcess(*writer.call(folder)) as first:
        time.sleep(rng.uniform(0, 0.4))
        with ForkedProcess(*writer.call(folder)) as second:
            endings = [first.end(), second.end()]
    wrong = [str(ending) for ending in endings if ending.how not in ("done", "reported")]
    if not any(finished(ending) for ending in endings):
        wrong.append(f"neither finished: {endings[0]}; {endings[1]}")
    found = writer.result(folder)
    shutil.rmtree(folder)
    return wrong + differences(found, expected)


def _read_while_built(inputs: FaultInputs, out: Path, row: FaultRow) -> list[str]:
    """Read repeatedly while the store is rebuilt with another codec and shard size."""
    shutil.copytree(inputs.store, out)
    right = jobs.delivered(out, READERS)
    with (
        ForkedProcess(_rebuild, inputs.source, out) as builder,
        ForkedProcess(_reading, out, right) as reader,
    ):
        built, read = builder.end(), reader.end()
    shutil.rmtree(out)
    if built.how != "done" or read.how != "done":
        return [f"{built}; {read}"]
    wrong, whole, refused = read.answer
    row.note = f"last: {whole} reads correct, {refused} refused"
    return [f"{', '.join(wrong)} differ"] if wrong else []


def _rebuild(source: Path, out: Path) -> str:
    return jobs.build_store(source, out, overwrite=True, codec="zstd", shard_tiles=8)


def _reading(out: Path, right: dict[str, Any]) -> tuple[list[str], int, int]:
    """Return the names of wrong arrays, and the numbers of correct and refused reads."""
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
