"""Full and read-only disks, forbidden folders, and unreadable or changing sources."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.faults import jobs
from benchmarks.faults.children import Ending, ForkedProcess, run
from benchmarks.faults.disks import NoDisk, enlarge, small_disk
from benchmarks.faults.jobs import (
    FaultInputs,
    WritingCommand,
    differences,
    finished,
    require_finished,
)
from benchmarks.faults.report import FaultRow
from geoprep.store import StoreReader

ENOUGH_KIB = 64 << 10


def rows(inputs: FaultInputs, seed: int, tries: int) -> Iterator[FaultRow]:
    """Yield the results of every command with every kind of output folder and source."""
    rng = random.Random(f"{seed} places")
    folder = inputs.folder / "places"
    folder.mkdir()
    writing_commands = jobs.writing_commands(inputs).values()
    held = (
        "an error that says so; no partial output under its final name; with more space it finishes"
    )
    with FaultRow("disk full, at a random size, for each command that writes", held) as row:
        for writer in writing_commands:
            _fill_up(writer, folder, rng, max(1, tries // 5), row)
    yield row
    with FaultRow("a read-only disk as target of each command", "an error that names it") as row:
        for writer in writing_commands:
            _on_disk(row, writer, folder, 1024, partial(_refused, writer), read_only=True)
    yield row
    yield _forbidden(writing_commands, folder)
    yield _unreadable(inputs, folder)
    yield _changing(inputs, folder, rng, max(1, tries // 5))
    shutil.rmtree(folder)


def _refused(writer: WritingCommand, place: Path, **how: bool) -> list[str]:
    """Return a problem unless a command refuses to write to a folder."""
    return _not_reported(writer.start(place, **how))


def _not_reported(ending: Ending) -> list[str]:
    """Return a problem unless a command ended with a one-line error or exit status 1 or 2."""
    if ending.how == "reported" and "\n" not in ending.answer.strip():
        return []
    return (
        [] if ending.how == "done" and ending.answer in (1, 2) else [f"no error reported: {ending}"]
    )


def _on_disk(
    row: FaultRow,
    writer: WritingCommand,
    folder: Path,
    kib: int,
    check: Callable[[Path], list[str]],
    *,
    read_only: bool = False,
) -> None:
    """Count the result of a check on a small disk; if none can be mounted, mark the row skipped."""
    try:
        with small_disk(folder / "disk", kib, read_only=read_only) as disk:
            row.count([f"{writer.name} on {kib} KiB: {one}" for one in check(disk)])
    except NoDisk as error:
        row.skipped = str(error)
    shutil.rmtree(folder / "disk", ignore_errors=True)


def _fill_up(
    writer: WritingCommand, folder: Path, rng: random.Random, tries: int, row: FaultRow
) -> None:
    whole = folder / "complete"
    whole.mkdir()
    require_finished(writer.start(whole))
    taken = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file()) // 1024
    for _ in range(tries):
        kib = rng.randrange(8, max(16, taken))
        _on_disk(row, writer, folder, kib, partial(_after_full, writer, writer.result(whole)))
    shutil.rmtree(whole)


def _after_full(writer: WritingCommand, expected: dict[str, str], disk: Path) -> list[str]:
    ending = writer.start(disk)
    problems = []
    if not finished(ending):
        problems += _not_reported(ending)
        if writer.atomic_output and (disk / writer.atomic_output).exists():
            problems.append(f"{writer.atomic_output} exists after the error")
    enlarge(disk, ENOUGH_KIB)
    again = writer.start(disk)
    if not finished(again):
        return [*problems, f"with more space: {again}"]
    return problems + differences(writer.result(disk), expected)


def _forbidden(writing_commands: Iterable[WritingCommand], folder: Path) -> FaultRow:
    place = folder / "forbidden"
    place.mkdir(mode=0o555)
    with FaultRow("a folder that may not be written to", "an error that names it") as row:
        for writer in writing_commands:
            problems = _refused(writer, place, unprivileged=True)
            problems += [str(path) for path in place.iterdir()]
            row.count([f"{writer.name}: {one}" for one in problems])
    row.note = "without root's privileges, which bypass file modes"
    return row


def _broken_sources(image: Path) -> dict[str, Callable[[], object]]:
    """Return functions that replace an image by something unreadable, by description."""
    return {
        "a folder": image.mkdir,
        "a broken link": lambda: image.symlink_to(image.with_name("absent")),
        "a link to itself": lambda: image.symlink_to(image),
        "a pipe without a writer": lambda: os.mkfifo(image),
        "an endless device": lambda: image.symlink_to("/dev/zero"),
        "an empty file": image.touch,
        "forbidden to read": lambda: image.touch(mode=0),
    }


def _unreadable(inputs: FaultInputs, folder: Path) -> FaultRow:
    """Replace an image, then a label, by something unreadable."""
    held = "the scene is reported with a reason, in bounded time; the others are built"
    with FaultRow("an image or label that cannot be read", held) as row:
        for pattern in ("PS-RGB/*.tif", "geojson_roads_speed/*.geojson"):
            for name in _broken_sources(Path()):
                case = folder / "unreadable"
                shutil.copytree(inputs.source, case / "AOI_7_Moscow")
                broken = sorted((case / "AOI_7_Moscow").glob(pattern))[1]
                broken.unlink()
                _broken_sources(broken)[name]()
                out, how = case / "a.zarr", {"timeout": 60, "memory": 2 << 30}
                ending = run(jobs.build_store, case, out, unprivileged=True, **how)
                problems = _named(ending, out, broken)
                row.count([f"{broken.suffix} is {name}: {one}" for one in problems])
                shutil.rmtree(case)
    return row


def _named(ending: Ending, out: Path, broken: Path) -> list[str]:
    if ending.how == "reported" and broken.name in ending.answer:
        return []
    if ending.how != "done":
        return [str(ending)]
    store = StoreReader.open(out)
    odd = [i for i, status in enumerate(store.scenes.status) if status != "ok"]
    reasons = [str(store.scenes.reason[i]) for i in odd]
    number = broken.stem.rpartition("chip")[2]
    gone = not any(str(one).endswith(f"chip{number}") for one in store.scenes.id)
    named = len(odd) == 1 and bool(reasons[0])
    return jobs.store_problems(out) + ([] if named or gone else [f"scenes not ok: {reasons}"])


def _changing(inputs: FaultInputs, folder: Path, rng: random.Random, tries: int) -> FaultRow:
    """Change, truncate or remove a file of the source while a build runs."""
    held = "a valid store, or an error and no store; the next run equals a build from the new files"
    with FaultRow("a source that changes while it is built", held) as row:
        took = require_finished(run(jobs.build_store, inputs.source, folder / "timed.zarr")).seconds
        for _ in range(tries):
            case = folder / "changing"
            shutil.copytree(inputs.source, case / "AOI_7_Moscow")
            row.count(_changed(case, rng, took))
            shutil.rmtree(case)
    return row


def _changed(case: Path, rng: random.Random, took: float) -> list[str]:
    pattern = rng.choice(["PS-RGB/*.tif", "geojson_roads_speed/*.geojson"])
    file = rng.choice(sorted((case / "AOI_7_Moscow").glob(pattern)))
    other = rng.choice(sorted((case / "AOI_7_Moscow").glob(pattern)))
    out, fresh, data = case / "a.zarr", case / "fresh.zarr", other.read_bytes()
    changes: list[Callable[[], object]] = [
        file.unlink,
        lambda: file.write_bytes(data),
        lambda: file.write_bytes(file.read_bytes()[: rng.randrange(2000)]),
    ]
    change = rng.choice(changes)
    with ForkedProcess(jobs.build_store, case, out) as child:
        time.sleep(rng.uniform(0, took))
        change()
        ending = child.end()
    if not ending.orderly:
        return [str(ending)]
    problems = jobs.store_problems(out) if ending.how == "done" else []
    again, new = run(_build_over, case, out), run(jobs.build_store, case, fresh)
    if not again.orderly or again.how != new.how:
        return [*problems, f"again: {again}; from the new files: {new}"]
    if new.how != "done":
        return problems
    return problems + differences(jobs.digest(out), jobs.digest(fresh))


def _build_over(source: Path, out: Path) -> str:
    return jobs.build_store(source, out, overwrite=True)
