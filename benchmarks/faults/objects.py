"""Building from, and downloading from, an S3 endpoint that does not behave."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from benchmarks.faults import jobs
from benchmarks.faults.children import Ending, run
from benchmarks.faults.endpoint import BUCKET, KINDS, OWN, Endpoint, endpoint, use
from benchmarks.faults.jobs import World, differences
from benchmarks.faults.report import Row, timed
from geoprep.sources import CITIES

SHARE = 0.15
"""Of the requests that meet a fault."""
MOST_SECONDS = 3.0
"""Of the work before a kill."""
CITY = CITIES["moscow"]


def rows(world: World, seed: int, tries: int) -> Iterator[Row]:
    """Build and download, against an endpoint that fails one request in seven."""
    same, fetched = "the store of the local files, bit by bit", "the right bytes, all of them"
    trials = {
        Row("objects", "`build-zarr --source s3://...`", same): _from_bucket,
        Row("objects", "`build-zarr --out s3://...`", same): _into_bucket,
        Row("objects", "`build-zarr --out s3://...` killed at random moments", same): _into_killed,
        Row("objects", "`download`", fetched): _download,
        Row("objects", "`download` killed at random moments", fetched): _download_killed,
    }
    folder, rng = world.folder / "objects", random.Random(f"{seed} kills")
    folder.mkdir()
    try:
        with endpoint(world.source, CITY.folder, SHARE, f"{seed} objects") as place:
            for row, trial in trials.items():
                with timed(row):
                    for number in range(tries):
                        row.count(trial(world, folder / str(number), place, rng))
                        shutil.rmtree(folder / str(number), ignore_errors=True)
                row.note = _met(place)
                yield row
    except ModuleNotFoundError as error:
        yield Row("objects", "an S3 endpoint that fails", same, skipped=str(error))
    shutil.rmtree(folder)


def _met(place: Endpoint) -> str:
    """Return what befell the requests since this was last asked."""
    proxy = place.proxy
    met = ", ".join(f"{proxy.faults[kind]} {kind}" for kind in KINDS)
    told = f"{sum(proxy.requests.values()):,} requests, of them {met}"
    proxy.requests.clear()
    proxy.faults.clear()
    return told


def _from_bucket(world: World, out: Path, place: Endpoint, _: random.Random) -> list[str]:
    source = f"s3://{BUCKET}/{CITY.folder}"
    ending = run(build, place.proxy.address, source, str(out))
    return _finished(ending) or differences(jobs.digest(out), jobs.digest(world.store))


def _into_bucket(
    world: World, out: Path, place: Endpoint, _: random.Random, kills: tuple[float, ...] = ()
) -> list[str]:
    """Build into the bucket; look past the proxy at what is there, and leave nothing."""
    prefix = f"{out.name}.zarr/"
    task = build, place.proxy.address, str(world.source), f"s3://{OWN}/{prefix}"
    endings = [run(*task, kill_after=moment) for moment in kills]
    wrong = [str(one) for one in endings if not one.orderly]
    wrong += _finished(run(*task))
    found = {name: sha256(body).hexdigest() for name, body in place.objects(prefix).items()}
    place.remove(out.name)
    return wrong or differences(found, jobs.digest(world.store))


def _into_killed(world: World, out: Path, place: Endpoint, rng: random.Random) -> list[str]:
    moments = rng.uniform(0, MOST_SECONDS), rng.uniform(0, MOST_SECONDS)
    return _into_bucket(world, out, place, rng, moments)


def build(address: str, source: str, out: str) -> int:
    """Build a city's store as the command does, from or into the bucket."""
    use(address)
    shape = ("--tile", "32", "--shard-tiles", "14", "--rescale", "city", "--workers", "2")
    given = ("--city", CITY.name, "--source", source, "--out", out)
    return jobs.command("build-zarr", *given, *shape, "--quiet")


def _download(
    world: World, out: Path, place: Endpoint, _: random.Random, kills: tuple[float, ...] = ()
) -> list[str]:
    for moment in kills:
        run(download, place.proxy.address, out, kill_after=moment)
    return _finished(run(download, place.proxy.address, out)) or _fetched(world, out)


def _download_killed(world: World, out: Path, place: Endpoint, rng: random.Random) -> list[str]:
    moments = rng.uniform(0, MOST_SECONDS), rng.uniform(0, MOST_SECONDS)
    return _download(world, out, place, rng, moments)


def download(address: str, out: Path) -> int:
    """Download a city's images of one product with their labels."""
    use(address)
    out.mkdir(exist_ok=True)
    place = ("--product", "PS-RGB", "--dest", str(out))
    return jobs.command("download", "--city", CITY.name, *place, "--quiet")


def _fetched(world: World, out: Path) -> list[str]:
    """Return what differs between the files that were served and those that arrived, by name."""
    wanted = {
        path.name: value
        for folder in ("PS-RGB", "geojson_roads_speed")
        for path, value in ((Path(k), v) for k, v in jobs.digest(world.source / folder).items())
    }
    found = {Path(name).name: value for name, value in jobs.digest(out).items()}
    return differences({name: found[name] for name in found if name in wanted}, wanted)


def _finished(ending: Ending) -> list[str]:
    return [] if ending.how == "done" and ending.answer == 0 else [str(ending)]
