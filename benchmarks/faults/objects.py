"""Building from, and downloading from, an S3 endpoint that does not behave."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults import jobs
from benchmarks.faults.children import Ending, run
from benchmarks.faults.endpoint import BUCKET, FAULTS, Faulty, endpoint, use
from benchmarks.faults.jobs import World, differences
from benchmarks.faults.report import Row, timed
from geoprep.cli.commands import cli
from geoprep.sources import CITIES

SHARE = 0.15
"""Of the requests that meet a fault."""
CITY = CITIES["moscow"]


def rows(world: World, seed: int, tries: int) -> Iterator[Row]:
    """Build and download, against an endpoint that fails one request in seven."""
    built = Row(
        "objects", "`build-zarr --source s3://...`", "the store of the local files, bit by bit"
    )
    fetched = Row("objects", "`download`", "the right bytes; nothing half under its name")
    killed = Row("objects", "`download` killed at random moments", fetched.held)
    folder = world.folder / "objects"
    folder.mkdir()
    if "download" not in cli.commands:
        fetched.skipped = killed.skipped = "there is no such command yet"
    try:
        with endpoint(world.source, CITY.folder, SHARE, f"{seed} objects") as faulty:
            _builds(world, folder, faulty, tries, built)
            if "download" in cli.commands:
                _downloads(world, folder, faulty, tries, fetched)
                _kills(world, folder, faulty, random.Random(f"{seed} kills"), tries, killed)
    except ModuleNotFoundError as error:
        built.skipped = fetched.skipped = killed.skipped = str(error)
    shutil.rmtree(folder)
    yield from (built, fetched, killed)


def _met(faulty: Faulty) -> str:
    met = ", ".join(f"{faulty.met[fault]} {fault}" for fault in FAULTS)
    return f"{faulty.requests:,} requests so far, of them {met}"


def _builds(world: World, folder: Path, faulty: Faulty, tries: int, row: Row) -> None:
    out, expected = folder / "a.zarr", jobs.digest(world.store)
    with timed(row):
        for _ in range(tries):
            ending = run(build_remote, faulty.server_port, out)
            row.count(_finished(ending) or differences(jobs.digest(out), expected))
            shutil.rmtree(out, ignore_errors=True)
    row.note = _met(faulty)


def build_remote(port: int, out: Path) -> int:
    """Build a city's store from the bucket, as the command does."""
    use(port)
    shape = ("--tile", "32", "--shard-tiles", "14", "--rescale", "city", "--workers", "2")
    source = ("--city", CITY.name, "--source", f"s3://{BUCKET}/{CITY.folder}")
    return jobs.command("build-zarr", *source, *shape, "--out", str(out), "--quiet")


def _downloads(world: World, folder: Path, faulty: Faulty, tries: int, row: Row) -> None:
    with timed(row):
        for _ in range(tries):
            ending = run(download, faulty.server_port, folder / "data")
            row.count(_finished(ending) or _fetched(world, folder / "data"))
            shutil.rmtree(folder / "data", ignore_errors=True)
    row.note = _met(faulty)


def _kills(
    world: World, folder: Path, faulty: Faulty, rng: random.Random, tries: int, row: Row
) -> None:
    with timed(row):
        seconds = run(download, faulty.server_port, folder / "whole").seconds
        for _ in range(tries):
            out = folder / "data"
            for _ in range(2):
                run(download, faulty.server_port, out, kill_after=rng.uniform(0, seconds))
            ending = run(download, faulty.server_port, out)
            row.count(_finished(ending) or _fetched(world, out))
            shutil.rmtree(out, ignore_errors=True)


def download(port: int, out: Path) -> int:
    """Download a city's images of one product with their labels."""
    use(port)
    out.mkdir(exist_ok=True)
    return jobs.command("download", "--city", CITY.name, "--product", "PS-RGB", "--dest", str(out))


def _fetched(world: World, out: Path) -> list[str]:
    """Return what differs between the files that were served and those that arrived, by name."""
    wanted, found = (
        {Path(name).name: value for name, value in jobs.digest(place).items()}
        for place in (world.source, out)
    )
    return differences({name: found[name] for name in found if name in wanted}, wanted)


def _finished(ending: Ending) -> list[str]:
    return [] if ending.how == "done" and ending.answer == 0 else [str(ending)]
