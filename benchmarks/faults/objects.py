"""Build from, build to, and download from an S3 endpoint that injects faults."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from benchmarks.faults import jobs
from benchmarks.faults.children import Ending, run
from benchmarks.faults.endpoint import BUCKET, KINDS, OWN, Endpoint, endpoint, use
from benchmarks.faults.jobs import FaultInputs, differences, finished
from benchmarks.faults.report import FaultRow
from geoprep.sources import CITIES

SHARE = 0.15
"""Share of the requests with a fault."""
MOST_SECONDS = 3.0
"""Latest moment of a kill in seconds."""
KILLS = 2
CITY = CITIES["moscow"]

Trial = Callable[[FaultInputs, Path, Endpoint, list[float]], list[str]]
"""Function that runs a command, first killed at some moments, and returns problems."""


def rows(inputs: FaultInputs, seed: int, tries: int) -> Iterator[FaultRow]:
    """Yield the results of builds and downloads while one request in seven has a fault."""
    same, fetched = (
        "the same bytes as a store of the local files",
        "all files, with the correct bytes",
    )
    trials: list[tuple[str, str, Trial, int]] = [
        ("`build-zarr --source s3://...`", same, _from_bucket, 0),
        ("`build-zarr --out s3://...`", same, _into_bucket, 0),
        ("`build-zarr --out s3://...` killed at random moments", same, _into_bucket, KILLS),
        ("`download`", fetched, _download, 0),
        ("`download` killed at random moments", fetched, _download, KILLS),
    ]
    folder, rng = inputs.folder / "objects", random.Random(f"{seed} kills")
    folder.mkdir()
    try:
        with endpoint(inputs.source, CITY.folder, SHARE, f"{seed} objects") as place:
            for what, held, trial, kills in trials:
                with FaultRow(what, held) as row:
                    for number in range(tries):
                        moments = [rng.uniform(0, MOST_SECONDS) for _ in range(kills)]
                        row.count(trial(inputs, folder / str(number), place, moments))
                        shutil.rmtree(folder / str(number), ignore_errors=True)
                row.note = _met(place)
                yield row
    except ModuleNotFoundError as error:
        yield FaultRow("an S3 endpoint that fails", same, skipped=str(error))
    shutil.rmtree(folder)


def _met(place: Endpoint) -> str:
    """Return the counts of requests and faults since the last call."""
    proxy = place.proxy
    met = ", ".join(f"{proxy.faults[kind]} {kind}" for kind in KINDS)
    text = f"{sum(proxy.requests.values()):,} requests, with {met}"
    proxy.requests.clear()
    proxy.faults.clear()
    return text


def _from_bucket(inputs: FaultInputs, out: Path, place: Endpoint, _: list[float]) -> list[str]:
    ending = run(build, place.proxy.address, f"s3://{BUCKET}/{CITY.folder}", str(out))
    return _problems(ending) or differences(jobs.digest(out), jobs.digest(inputs.store))


def _into_bucket(
    inputs: FaultInputs, out: Path, place: Endpoint, moments: list[float]
) -> list[str]:
    """Build into the bucket; compare the objects, read directly, and remove them."""
    task = build, place.proxy.address, str(inputs.source), f"s3://{OWN}/{out.name}.zarr/"
    endings = [run(*task, kill_after=moment) for moment in moments]
    wrong = [str(one) for one in endings if not one.orderly]
    wrong += _problems(run(*task))
    made = place.remove(f"{out.name}.zarr/")
    place.remove(out.name)  # files of an unfinished build
    found = {name: sha256(body).hexdigest() for name, body in made.items()}
    return wrong or differences(found, jobs.digest(inputs.store))


def build(address: str, source: str, out: str) -> int:
    """Build a store of the city with the command, from or into the bucket."""
    use(address)
    shape = ("--tile", "32", "--shard-tiles", "14", "--rescale", "city", "--workers", "2")
    given = ("--city", CITY.name, "--source", source, "--out", out)
    return jobs.command("build-zarr", *given, *shape, "--quiet")


def _download(inputs: FaultInputs, out: Path, place: Endpoint, moments: list[float]) -> list[str]:
    """Download; return differences between the served and the downloaded files, by name."""
    for moment in moments:
        run(download, place.proxy.address, out, kill_after=moment)
    ending = run(download, place.proxy.address, out)
    folders = [inputs.source / name for name in ("PS-RGB", "geojson_roads_speed")]
    wanted = {Path(k).name: v for folder in folders for k, v in jobs.digest(folder).items()}
    found = {Path(name).name: value for name, value in jobs.digest(out).items()}
    return _problems(ending) or differences(
        {name: found[name] for name in found if name in wanted}, wanted
    )


def download(address: str, out: Path) -> int:
    """Download the city's images of one product with their labels."""
    use(address)
    out.mkdir(exist_ok=True)
    place = ("--product", "PS-RGB", "--out", str(out))
    return jobs.command("download", "--city", CITY.name, *place, "--quiet")


def _problems(ending: Ending) -> list[str]:
    return [] if finished(ending) else [str(ending)]
