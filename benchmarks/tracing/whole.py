"""From images to scored road networks, on scenes that the network was not trained on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import Result, announce
from benchmarks.fitting.runs import fit
from benchmarks.loading.data import CITY, built
from benchmarks.mapping import Silent, job_of
from geoprep.roads import (
    ScoreSettings,
    mean_scores,
    open_raster,
    pair_scenes,
    score_scenes,
    vectorize,
    write_network,
)
from geoprep.sources import get_city
from geoprep.store import SPLITS, StoreReader
from geoprep.synth import synthesise
from training.checkpoint import BEST

SCENES = 48
EPOCHS = 3
OPTIONS = ("--batch-size", "4")
"""Of training; scenes and split are those of ``make demo``."""
_TIMED = 2


def measure_whole(result: Result, work: Path) -> None:
    """Map, vectorize and score held-out scenes, as the settings of the result say.

    ``level`` is the side of the tiles to train on: 650 is 0.3 m, 325 is 0.6 m. ``model`` is a
    checkpoint or run; without one it is trained here. ``area`` is the folder of a city in
    SpaceNet's layout, which the model was trained on with the default split; without one the
    demo's is drawn.

    Parameters
    ----------
    work
        Empty folder.
    """
    of = result.settings
    level, quick, area = of["level"], of["quick"], of["area"]
    if area is None:
        size = 512 if quick else 1300
        area = synthesise(work, get_city(CITY), scenes=4 if quick else SCENES, seed=0, size=size)
    announce("building the store")
    store = built(area, work / "city.zarr")
    checkpoint = of["model"] or _train(store, work / "run", level, quick=quick)
    images = _held_out(StoreReader.open(store), area)
    prefix = f"end_to_end.{level}"
    seconds, square_km, gsd_m = _map(checkpoint, images, work / "maps")
    announce("vectorizing")
    maps = sorted((work / "maps").glob("*.tif"))
    write_network(vectorize(maps[:1]), work / "one.gpkg")  # loads libraries
    start = time.perf_counter()
    write_network(vectorize(maps), work / "city.gpkg")
    traced = time.perf_counter() - start
    note = f"at {gsd_m:.2f} m"
    result.add(f"{prefix}.mapping", "km2/h", [square_km / seconds * 3600], note=note)
    result.add(f"{prefix}.vectorizing", "km2/h", [square_km / traced * 3600], note=note)
    rate = square_km / (seconds + traced) * 3600
    result.add(f"{prefix}.image_to_graph", "km2/h", [rate], note="CRESI: 160, on a GPU")
    _score(result, prefix, images, area, work)


def _train(store: Path, out: Path, level: int, *, quick: bool) -> Path:
    """Train at a level; return the best checkpoint."""
    announce(f"training at level {level}")
    few = ["--epochs", "1", "--crop", "64", "--compile", "off"]
    length = few if quick else ["--epochs", str(EPOCHS)]
    fit(store, out, [*OPTIONS, "--level", str(level), *length])
    return out / BEST


def _held_out(store: StoreReader, area: Path) -> list[Path]:
    """Return the images of the scenes that training does not see."""
    table = store.tiles
    held = np.unique(table.scene[table.split != SPLITS.index("train")])
    images = {path.stem.replace("PS-RGB_", ""): path for path in area.glob("PS-RGB/*.tif")}
    names = [str(name) for name in store.scenes.id[held]]
    return [path for stem, path in sorted(images.items()) if stem.endswith(tuple(names))]


def _map(checkpoint: Path, images: Sequence[Path], out: Path) -> tuple[float, float, float]:
    """Map images; return seconds and square kilometres of those timed in all, and metres a pixel.

    The first images are mapped once before, so that compiling and loading are not counted.
    """
    announce("mapping")
    words = [str(checkpoint), *map(str, images), "--out", str(out), "--overwrite"]
    job, _ = job_of(words)
    job.run([str(image) for image in images[:_TIMED]], Silent())
    for made in out.glob("*.tif"):
        made.unlink()
    outcomes = job.run([str(image) for image in images], Silent())
    stats = [outcome.stats for outcome in outcomes if outcome.stats is not None]
    if len(stats) < len(images):
        raise RuntimeError(next(outcome.error for outcome in outcomes if outcome.error))
    square_km = 0.0
    for outcome in outcomes:
        with open_raster(outcome.target, pixel_size_m=None) as raster:
            square_km += raster.cover.area * raster.gsd_m[0] * raster.gsd_m[1] / 1e6
            gsd_m = max(raster.gsd_m)
    return sum(one.seconds for one in stats), square_km, gsd_m


def _score(result: Result, prefix: str, images: Sequence[Path], area: Path, work: Path) -> None:
    """Score the city scene by scene, the held-out ones alone."""
    announce("scoring")
    truth = work / "truth"
    truth.mkdir()
    for image in images:
        name = image.name.replace("PS-RGB", "geojson_roads_speed").replace(".tif", ".geojson")
        (truth / name).symlink_to((area / "geojson_roads_speed" / name).resolve())
    pairs = pair_scenes(truth, work / "city.gpkg", images=area / "PS-RGB")
    scores = score_scenes(pairs, ScoreSettings())
    scored = sum(one.apls is not None for one in scores)
    timed = sum(one.apls_time is not None for one in scores)
    for name, value in mean_scores(scores).items():
        if value is not None:
            count = timed if name == "apls_time" else scored
            note = f"mean of {count} held-out scenes"
            result.add(f"{prefix}.{name}", "%", [100 * value], note=note)
