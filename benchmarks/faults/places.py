"""Disks that fill up or may not be written to, sources that may not be read, or that change."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.faults import jobs
from benchmarks.faults.children import Child, Ending, run
from benchmarks.faults.disks import NoDisk, enlarge, small_disk
from benchmarks.faults.jobs import Work, World, differences, finished, sound
from benchmarks.faults.report import Row
from geoprep.store import StoreReader

ROOMY_KIB = 64 << 10


def rows(world: World, seed: int, tries: int) -> Iterator[Row]:
    """Try every command at every kind of place."""
    rng = random.Random(f"{seed} places")
    folder = world.folder / "places"
    folder.mkdir()
    works = jobs.works(world).values()
    held = "an error that says so; nothing half under its name; with more room it finishes"
    with Row("disk full, at a random size, for each command that writes", held) as row:
        for work in works:
            _fill_up(work, folder, rng, max(1, tries // 5), row)
    yield row
    with Row("a read-only disk as target of each command", "an error that names it") as row:
        for work in works:
            _on_disk(row, work, folder, 1024, partial(_refused, work), read_only=True)
    yield row
    yield _forbidden(works, folder)
    yield _unreadable(world, folder)
    yield _changing(world, folder, rng, max(1, tries // 5))
    shutil.rmtree(folder)


def _refused(work: Work, place: Path, **how: bool) -> list[str]:
    """Return a problem unless a command refuses to write to a place."""
    return _not_told(work.start(place, **how))


def _not_told(ending: Ending) -> list[str]:
    """Return a problem unless a command ended with one line, or a status that says it failed."""
    if ending.how == "told" and "\n" not in ending.answer.strip():
        return []
    return [] if ending.how == "done" and ending.answer in (1, 2) else [f"not told: {ending}"]


def _on_disk(
    row: Row,
    work: Work,
    folder: Path,
    kib: int,
    check: Callable[[Path], list[str]],
    *,
    read_only: bool = False,
) -> None:
    """Count what a check says of a small disk; where none can be mounted the row says so."""
    try:
        with small_disk(folder / "disk", kib, read_only=read_only) as disk:
            row.count([f"{work.name} on {kib} KiB: {one}" for one in check(disk)])
    except NoDisk as error:
        row.skipped = str(error)
    shutil.rmtree(folder / "disk", ignore_errors=True)


def _fill_up(work: Work, folder: Path, rng: random.Random, tries: int, row: Row) -> None:
    whole = folder / "room"
    whole.mkdir()
    sound(work.start(whole))
    taken = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file()) // 1024
    for _ in range(tries):
        kib = rng.randrange(8, max(16, taken))
        _on_disk(row, work, folder, kib, partial(_after_full, work, work.result(whole)))
    shutil.rmtree(whole)


def _after_full(work: Work, expected: dict[str, str], disk: Path) -> list[str]:
    ending = work.start(disk)
    problems = []
    if not finished(ending):
        problems += _not_told(ending)
        if work.never_half and (disk / work.never_half).exists():
            problems.append(f"{work.never_half} is there all the same")
    enlarge(disk, ROOMY_KIB)
    again = work.start(disk)
    if not finished(again):
        return [*problems, f"with more room: {again}"]
    return problems + differences(work.result(disk), expected)


def _forbidden(works: Iterable[Work], folder: Path) -> Row:
    place = folder / "forbidden"
    place.mkdir(mode=0o555)
    with Row("a folder that may not be written to", "an error that names it") as row:
        for work in works:
            problems = _refused(work, place, powerless=True)
            problems += [str(path) for path in place.iterdir()]
            row.count([f"{work.name}: {one}" for one in problems])
    row.note = "without root's privileges, which no mode would stop"
    return row


def _broken_sources(image: Path) -> dict[str, Callable[[], object]]:
    """Return ways in which an image cannot be read, by name; each puts itself in its place."""
    return {
        "a folder": image.mkdir,
        "a link to nowhere": lambda: image.symlink_to(image.with_name("nowhere")),
        "a link to itself": lambda: image.symlink_to(image),
        "a pipe nobody writes to": lambda: os.mkfifo(image),
        "a device without an end": lambda: image.symlink_to("/dev/zero"),
        "an empty file": image.touch,
        "forbidden to read": lambda: image.touch(mode=0),
    }


def _unreadable(world: World, folder: Path) -> Row:
    """Put what cannot be read in the place of an image, then of a label."""
    held = "the scene is named with a reason, in bounded time; the others are built"
    with Row("an image or label that cannot be read", held) as row:
        for pattern in ("PS-RGB/*.tif", "geojson_roads_speed/*.geojson"):
            for name in _broken_sources(Path()):
                case = folder / "unreadable"
                shutil.copytree(world.source, case / "AOI_7_Moscow")
                broken = sorted((case / "AOI_7_Moscow").glob(pattern))[1]
                broken.unlink()
                _broken_sources(broken)[name]()
                out, how = case / "a.zarr", {"timeout": 60, "memory": 2 << 30}
                ending = run(jobs.build_store, case, out, powerless=True, **how)
                problems = _named(ending, out, broken)
                row.count([f"{broken.suffix} is {name}: {one}" for one in problems])
                shutil.rmtree(case)
    return row


def _named(ending: Ending, out: Path, broken: Path) -> list[str]:
    if ending.how == "told" and broken.name in ending.answer:
        return []
    if ending.how != "done":
        return [str(ending)]
    store = StoreReader.open(out)
    odd = [i for i, status in enumerate(store.scenes.status) if status != "ok"]
    told = [str(store.scenes.reason[i]) for i in odd]
    number = broken.stem.rpartition("chip")[2]
    gone = not any(str(one).endswith(f"chip{number}") for one in store.scenes.id)
    named = len(odd) == 1 and bool(told[0])
    return jobs.store_problems(out) + ([] if named or gone else [f"scenes not ok: {told}"])


def _changing(world: World, folder: Path, rng: random.Random, tries: int) -> Row:
    """Change, cut or remove a file of the source while a build runs."""
    held = "a store that verifies, or an error and no store; the next run is as from the new files"
    with Row("a source that changes while it is built", held) as row:
        took = sound(run(jobs.build_store, world.source, folder / "timed.zarr")).seconds
        for _ in range(tries):
            case = folder / "changing"
            shutil.copytree(world.source, case / "AOI_7_Moscow")
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
    with Child(jobs.build_store, case, out) as child:
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
