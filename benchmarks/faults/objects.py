"""Building from, and downloading from, an S3 endpoint that does not behave."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from benchmarks.faults import jobs
from benchmarks.faults.children import Ending, run
from benchmarks.faults.endpoint import BUCKET, KINDS, OWN, Endpoint, endpoint, use
from benchmarks.faults.jobs import World, differences, finished
from benchmarks.faults.report import Row
from geoprep.sources import CITIES

SHARE = 0.15
"""Of the requests that meet a fault."""
MOST_SECONDS = 3.0
"""Of the work before a kill."""
KILLS = 2
CITY = CITIES["moscow"]

Trial = Callable[[World, Path, Endpoint, list[float]], list[str]]
"""Works into a folder of its own, killed at some moments before; returns what is wrong."""


def rows(world: World, seed: int, tries: int) -> Iterator[Row]:
    """Build and download, against an endpoint that fails one request in seven."""
    same, fetched = "the store of the local files, bit by bit", "the right bytes, all of them"
    trials: list[tuple[str, str, Trial, int]] = [
        ("`build-zarr --source s3://...`", same, _from_bucket, 0),
        ("`build-zarr --out s3://...`", same, _into_bucket, 0),
        ("`build-zarr --out s3://...` killed at random moments", same, _into_bucket, KILLS),
        ("`download`", fetched, _download, 0),
        ("`download` killed at random moments", fetched, _download, KILLS),
    ]
    folder, rng = world.folder / "objects", random.Random(f"{seed} kills")
    folder.mkdir()
    try:
        with endpoint(world.source, CITY.folder, SHARE, f"{seed} objects") as place:
            for what, held, trial, kills in trials:
                with Row(what, held) as row:
                    for number in range(tries):
                        moments = [rng.uniform(0, MOST_SECONDS) for _ in range(kills)]
                        row.count(trial(world, folder / str(number), place, moments))
                        shutil.rmtree(folder / str(number), ignore_errors=True)
                row.note = _met(place)
                yield row
    except ModuleNotFoundError as error:
        yield Row("an S3 endpoint that fails", same, skipped=str(error))
    shutil.rmtree(folder)


def _met(place: Endpoint) -> str:
    """Return what befell the requests since this was last asked."""
    proxy = place.proxy
    met = ", ".join(f"{proxy.faults[kind]} {kind}" for kind in KINDS)
    told = f"{sum(proxy.requests.values()):,} requests, of them {met}"
    proxy.requests.clear()
    proxy.faults.clear()
    return told


def _from_bucket(world: World, out: Path, place: Endpoint, _: list[float]) -> list[str]:
    ending = run(build, place.proxy.address, f"s3://{BUCKET}/{CITY.folder}", str(out))
    return _problems(ending) or differences(jobs.digest(out), jobs.digest(world.store))


def _into_bucket(world: World, out: Path, place: Endpoint, moments: list[float]) -> list[str]:
    """Build into the bucket; look past the proxy at what is there, and leave nothing."""
    task = build, place.proxy.address, str(world.source), f"s3://{OWN}/{out.name}.zarr/"
    endings = [run(*task, kill_after=moment) for moment in moments]
    wrong = [str(one) for one in endings if not one.orderly]
    wrong += _problems(run(*task))
    made = place.taken(f"{out.name}.zarr/")
    place.taken(out.name)  # what a build keeps beside it
    found = {name: sha256(body).hexdigest() for name, body in made.items()}
    return wrong or differences(found, jobs.digest(world.store))


def build(address: str, source: str, out: str) -> int:
    """Build a city's store as the command does, from or into the bucket."""
    use(address)
    shape = ("--tile", "32", "--shard-tiles", "14", "--rescale", "city", "--workers", "2")
    given = ("--city", CITY.name, "--source", source, "--out", out)
    return jobs.command("build-zarr", *given, *shape, "--quiet")


def _download(world: World, out: Path, place: Endpoint, moments: list[float]) -> list[str]:
    """Download; return what differs between the files served and those that arrived, by name."""
    for moment in moments:
        run(download, place.proxy.address, out, kill_after=moment)
    ending = run(download, place.proxy.address, out)
    folders = [world.source / name for name in ("PS-RGB", "geojson_roads_speed")]
    wanted = {Path(k).name: v for folder in folders for k, v in jobs.digest(folder).items()}
    found = {Path(name).name: value for name, value in jobs.digest(out).items()}
    return _problems(ending) or differences(
        {name: found[name] for name in found if name in wanted}, wanted
    )


def download(address: str, out: Path) -> int:
    """Download a city's images of one product with their labels."""
    use(address)
    out.mkdir(exist_ok=True)
    place = ("--product", "PS-RGB", "--out", str(out))
    return jobs.command("download", "--city", CITY.name, *place, "--quiet")


def _problems(ending: Ending) -> list[str]:
    return [] if finished(ending) else [str(ending)]
