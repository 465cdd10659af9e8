"""Measure predicting, vectorizing and scoring of scenes that the model was not trained on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import Result, announce
from benchmarks.loading.data import CITY, build_city_store
from benchmarks.training import fit
from geoprep.roads.centrelines.opening import open_raster
from geoprep.roads.formats.files import write_network
from geoprep.roads.options import ScoreOptions
from geoprep.roads.scoring.pairs import pair_scenes
from geoprep.roads.scoring.scenes import mean_scores, score_scenes
from geoprep.roads.tracing.vectorization import vectorize
from geoprep.sources.cities import get_city
from geoprep.store.reader import StoreReader
from geoprep.store.schema import SPLITS
from geoprep.synth import synthesise
from training.checkpoint import BEST
from training.predict import COMMAND
from training.prediction.job import open_job
from training.prediction.predict_options import PredictOptions
from training.prediction.predictor import elapsed
from training.prediction.screen import Screen

SCENES = 48
EPOCHS = 3
OPTIONS = ("--batch-size", "4")
"""Options of training; scenes and split are those of ``make demo``."""


def measure_end_to_end(result: Result, work: Path) -> None:
    """Record rates and scores of held-out scenes, for the settings of the result.

    ``level`` is the side of the tiles to train on: 650 is 0.3 m, 325 is 0.6 m. ``model`` is a
    checkpoint or run; None trains one. ``area`` is the folder of a city in SpaceNet's layout, on
    which the model was trained with the default split; None creates the city of the demo.

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
    store = build_city_store(area, work / "city.zarr")
    checkpoint = of["model"] or _train(store, work / "run", level, quick=quick)
    images = _held_out(StoreReader.open(store), area)
    prefix = f"end_to_end.{level}"
    seconds, square_km, gsd_m = _predict(checkpoint, images, work / "predictions")
    announce("vectorizing")
    predictions = sorted((work / "predictions").glob("*.tif"))
    write_network(vectorize(predictions), work / "once.gpkg")  # imports libraries, compiles
    start = time.perf_counter()
    write_network(vectorize(predictions), work / "city.gpkg")
    traced = time.perf_counter() - start
    note = f"pixels of {gsd_m[0]:.2f} x {gsd_m[1]:.2f} m"
    result.add(f"{prefix}.mapping", "km2/h", [square_km / seconds * 3600], note=note)
    result.add(f"{prefix}.vectorizing", "km2/h", [square_km / traced * 3600], note=note)
    rate = square_km / (seconds + traced) * 3600
    result.add(f"{prefix}.image_to_graph", "km2/h", [rate], note="CRESI: 160, on a GPU")
    _score(result, prefix, images, area, work)


def _train(store: Path, out: Path, level: int, *, quick: bool) -> Path:
    """Train on a level; return the best checkpoint."""
    announce(f"training at level {level}")
    few = ["--epochs", "1", "--crop", "64", "--compile", "off"]
    length = few if quick else ["--epochs", str(EPOCHS)]
    fit(store, out, [*OPTIONS, "--level", str(level), *length])
    return out / BEST


def _held_out(store: StoreReader, area: Path) -> list[Path]:
    """Return the images of the scenes outside the train split."""
    table = store.tiles
    held = np.unique(table.scene[table.split != SPLITS.index("train")])
    images = {path.stem.replace("PS-RGB_", ""): path for path in area.glob("PS-RGB/*.tif")}
    names = [str(name) for name in store.scenes.id[held]]
    return [path for stem, path in sorted(images.items()) if stem.endswith(tuple(names))]


def _predict(
    checkpoint: Path, images: Sequence[Path], out: Path
) -> tuple[float, float, tuple[float, float]]:
    """Predict images; return seconds, square kilometres, and width and height of a pixel in metres.

    They are predicted once before, to exclude compiling and loading.
    """
    announce("predicting")
    words = [str(checkpoint), *map(str, images), "--out", str(out), "--overwrite"]
    options = PredictOptions(**COMMAND.parse(words))
    job, _ = open_job(options)
    for _ in range(2):
        outcomes = job.run(Screen(quiet=True, send=lambda _: None))
    stats = [outcome.stats for outcome in outcomes if outcome.stats is not None]
    if len(stats) < len(images):
        raise RuntimeError(next(outcome.error for outcome in outcomes if outcome.error))
    square_km = 0.0
    for outcome in outcomes:
        raster = open_raster(outcome.target)
        square_km += raster.cover.area * raster.gsd_m[0] * raster.gsd_m[1] / 1e6
        gsd_m = raster.gsd_m
    return elapsed(stats), square_km, gsd_m


def _score(result: Result, prefix: str, images: Sequence[Path], area: Path, work: Path) -> None:
    """Record the mean scores of the held-out scenes."""
    announce("scoring")
    truth = work / "truth"
    truth.mkdir()
    for image in images:
        name = image.name.replace("PS-RGB", "geojson_roads_speed").replace(".tif", ".geojson")
        (truth / name).symlink_to((area / "geojson_roads_speed" / name).resolve())
    pairs = pair_scenes(truth, work / "city.gpkg", images=area / "PS-RGB")
    scores = score_scenes(pairs, ScoreOptions())
    scored = sum(score.apls is not None for score in scores)
    timed = sum(score.apls_time is not None for score in scores)
    for name, value in mean_scores(scores).items():
        if value is not None:
            count = timed if name == "apls_time" else scored
            note = f"mean of {count} held-out scenes"
            result.add(f"{prefix}.{name}", "%", [100 * value], note=note)
