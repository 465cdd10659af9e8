"""Disks that fill up or may not be written to, sources that may not be read, or that change."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults import jobs
from benchmarks.faults.children import Child, Ending, run
from benchmarks.faults.disks import NoDisk, enlarge, small_disk
from benchmarks.faults.jobs import World, differences
from benchmarks.faults.report import Row, timed
from geoprep.store import Store

ROOMY_KIB = 64 << 10


@dataclass(frozen=True)
class Output:
    """A command that writes into a folder.

    Attributes
    ----------
    name
        As a reader knows it.
    start
        Runs it in a child; takes the folder and how the child is run.
    made
        What it makes there, relative to the folder.
    """

    name: str
    start: Callable[..., Ending]
    made: str


def outputs(world: World) -> list[Output]:
    """Return every command that writes."""

    def command(name: str, made: str, *arguments: str) -> Output:
        def start(folder: Path, **how: Any) -> Ending:  # noqa: ANN401 - as of `run`
            return run(jobs.command, *arguments, "--out", str(folder / made), **how)

        return Output(name, start, made)

    store, scene = str(world.store), str(Store.open(world.store).scenes.id[0])
    return [
        Output(
            "build-zarr",
            lambda folder, **how: run(jobs.build_store, world.source, folder / "a.zarr", **how),
            "a.zarr",
        ),
        Output(
            "predict",
            lambda folder, **how: run(
                jobs.predict_map, world.checkpoint, world.image, folder / "maps", **how
            ),
            "maps/x.tif",
        ),
        Output(
            "fit",
            lambda folder, **how: run(jobs.fit_network, world.store, folder / "run", **how),
            "run/last.pt",
        ),
        command("preview (page)", "a.html", "preview", store, "--quiet"),
        command("preview (picture)", "a.png", "preview", store, "--count", "2"),
        command("export", "a.tif", "export", store, "--scene", scene, "--what", "image"),
        command("export --footprints", "a.gpkg", "export", store, "--footprints", "tile"),
    ]


def rows(world: World, seed: int, tries: int) -> Iterator[Row]:
    """Try every command at every kind of place."""
    rng = random.Random(f"{seed} places")
    folder = world.folder / "places"
    folder.mkdir()
    for kind in (_full, _read_only, _forbidden):
        row = kind(world, folder, rng, max(1, tries // 5))
        yield row
    yield _unreadable(world, folder)
    yield _changing(world, folder, rng, max(1, tries // 5))
    shutil.rmtree(folder)


def _told(ending: Ending) -> list[str]:
    """Return a problem unless a command ended with one line, or a status that says it failed."""
    if ending.how == "told" and "\n" not in ending.answer.strip():
        return []
    return [] if ending.how == "done" and ending.answer in (1, 2) else [f"not told: {ending}"]


def _full(world: World, folder: Path, rng: random.Random, tries: int) -> Row:
    held = "an error that says so; nothing half under its name; with more room it finishes"
    row = Row("places", "disk full, at a random size, for each command that writes", held)
    with timed(row):
        for output in outputs(world):
            _fill_up(output, folder, rng, tries, row)
    return row


def _fill_up(output: Output, folder: Path, rng: random.Random, tries: int, row: Row) -> None:
    whole = folder / "room"
    whole.mkdir()
    ending = output.start(whole)
    if not (whole / output.made).exists():
        row.count([f"{output.name} with room: {ending}"])
        return
    taken = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file()) // 1024
    for _ in range(tries):
        kib = rng.randrange(8, max(16, taken))
        try:
            with small_disk(folder / "disk", kib) as disk:
                problems = _after_full(output, disk, whole)
        except NoDisk as error:
            row.skipped = str(error)
            break
        finally:
            shutil.rmtree(folder / "disk", ignore_errors=True)
        row.count([f"{output.name} on {kib} KiB: {one}" for one in problems])
    shutil.rmtree(whole)


def _after_full(output: Output, disk: Path, whole: Path) -> list[str]:
    ending = output.start(disk)
    problems = []
    if ending.how != "done" or ending.answer in (1, 2):
        problems += _told(ending)
        if output.made not in ("a.zarr", "run/last.pt") and (disk / output.made).exists():
            problems.append(f"{output.made} is there all the same")
    enlarge(disk, ROOMY_KIB)
    again = output.start(disk)
    if again.how != "done" or again.answer in (1, 2):
        return [*problems, f"with more room: {again}"]
    if output.name == "fit":
        return problems + differences(jobs.weights(disk / "run"), jobs.weights(whole / "run"))
    same = output.made.endswith((".zarr", ".tif", ".html"))
    found, wanted = (jobs.digest(place / output.made) for place in (disk, whole))
    return problems + (differences(found, wanted) if same else [])


def _read_only(world: World, folder: Path, _rng: random.Random, _tries: int) -> Row:
    row = Row("places", "a read-only disk as target of each command", "an error that names it")
    with timed(row):
        for output in outputs(world):
            try:
                with small_disk(folder / "disk", 1024, read_only=True) as disk:
                    row.count([f"{output.name}: {one}" for one in _told(output.start(disk))])
            except NoDisk as error:
                row.skipped = str(error)
            shutil.rmtree(folder / "disk", ignore_errors=True)
    return row


def _forbidden(world: World, folder: Path, _rng: random.Random, _tries: int) -> Row:
    row = Row("places", "a folder that may not be written to", "an error that names it")
    row.note = "without root's privileges, which no mode would stop"
    place = folder / "forbidden"
    place.mkdir(mode=0o555)
    with timed(row):
        for output in outputs(world):
            ending = output.start(place, powerless=True)
            left = [str(path) for path in place.iterdir()]
            row.count([f"{output.name}: {one}" for one in _told(ending) + left])
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
    row = Row("places", "an image or label that cannot be read", held)
    with timed(row):
        for pattern in ("PS-RGB/*.tif", "geojson_roads_speed/*.geojson"):
            for name in _broken_sources(Path()):
                case = folder / "unreadable"
                shutil.copytree(world.source, case / "AOI_7_Moscow")
                broken = sorted((case / "AOI_7_Moscow").glob(pattern))[1]
                broken.unlink()
                _broken_sources(broken)[name]()
                ending = run(
                    jobs.build_store,
                    case,
                    case / "a.zarr",
                    timeout=60,
                    memory=2 << 30,
                    powerless=True,
                )
                problems = _named(ending, case / "a.zarr", broken)
                row.count([f"{broken.suffix} is {name}: {one}" for one in problems])
                shutil.rmtree(case)
    return row


def _named(ending: Ending, out: Path, broken: Path) -> list[str]:
    if ending.how == "told" and broken.name in ending.answer:
        return []
    if ending.how != "done":
        return [str(ending)]
    store = Store.open(out)
    odd = [i for i, status in enumerate(store.scenes.status) if status != "ok"]
    told = [str(store.scenes.reason[i]) for i in odd]
    number = broken.stem.rpartition("chip")[2]
    gone = not any(str(one).endswith(f"chip{number}") for one in store.scenes.id)
    named = len(odd) == 1 and bool(told[0])
    return jobs.store_problems(out) + ([] if named or gone else [f"scenes not ok: {told}"])


def _changing(world: World, folder: Path, rng: random.Random, tries: int) -> Row:
    """Change, cut or remove a file of the source while a build runs."""
    held = "a store that verifies, or an error and no store; the next run is as from the new files"
    row = Row("places", "a source that changes while it is built", held)
    with timed(row):
        took = run(jobs.build_store, world.source, folder / "timed.zarr").seconds
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
