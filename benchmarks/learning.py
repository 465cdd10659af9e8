"""Train models on real images with equal processor time, and score places that are kept back.

    python -m benchmarks.learning FOLDER [--only forest,...] [--minutes 2,8] [--seeds 2]

FOLDER has the sources, one folder per set, as their repositories unpack; a set whose folder is
missing is left out, and its source is named. Nothing is downloaded. Every model trains for the same
processor time of one core: by a number of steps, whose processor time is measured before. The
forest is that of `geoprep evaluate --baseline`, on the values of the images.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import geoprep
from benchmarks.common import Result, announce, command, rounded, some_of, status
from benchmarks.tables import print_machine, print_table
from geoprep.options import argument, option
from geoprep.store.reader import StoreReader
from loaders import select
from training import evaluate_model, train
from training.engine.distributed import set_threads

MODELS = ("unet-small", "resnet34-unet")
_TIMED = 4
"""Steps whose processor time is measured."""


@dataclass(frozen=True, kw_only=True)
class RealSet:
    """A set of real images: its source, the files of its images, and what is tested.

    ``test`` are patterns of the images that are tested; of the others every fourth one, in the
    order of names, validates. ``build`` are options of `geoprep.build_zarr`, ``train`` settings.
    """

    source: str
    images: str
    labels: str
    test: tuple[str, ...]
    build: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)


SETS = {
    "forest": RealSet(
        source="github.com/davej23/attention-mechanism-unet 7b0c7f52: Sentinel-2, Amazon",
        images="forest/dataset/*/images/*.tiff",
        labels="forest/dataset/*/masks/*.png",
        test=("forest/dataset/validation/images/*.tiff",),
        build={"classes": "forest=1,cleared=2"},
        train={"crop": 128, "loss": "ce-dice"},
    ),
    "massachusetts": RealSet(
        source="github.com/Riya-l209/road-extraction-unet 8c9ed430: aerial, 1 m (V. Mnih, 2013)",
        images="massachusetts/images/*.png",
        labels="massachusetts/masks/*.png",
        test=tuple(
            f"massachusetts/images/{name}_15.png" for name in (10378780, 10228690, 10528795)
        ),
        build={"label_values": "255", "pixel_size": 1.0, "nodata": 255.0},
        train={"crop": 160, "batch_size": 4},
    ),
    "roofs": RealSet(
        source="github.com/hotosm/fAIr-utilities 61f15156, ramp-data/TRAIN: drone, Kampala, 7 cm",
        images="roofs/*chips/*-21.tif",
        labels="roofs/*binarymasks/*-21.mask.tif",
        test=("roofs/val-chips/*-21.tif",),
        build={"classes": "background=0,building=1"},
        train={"crop": 128, "loss": "ce-dice"},
    ),
}


@dataclass(frozen=True, kw_only=True)
class LearningOptions:
    """Options: of `benchmarks.learning`."""

    folder: Path = argument("Folder of the sources.", "FOLDER")
    only: tuple[str, ...] | None = some_of(SETS, "Sets to train on")
    models: str = option(",".join(MODELS), "Models to train.", "NAME,...")
    minutes: str = option("2", "Processor time of each run, in minutes.", "N,...")
    seeds: int = option(1, "Runs with different random seeds.", "N", least=1)
    json: Path | None = option(None, "Write every score to this JSON file.", "FILE")


def build(folder: Path, name: str, one: RealSet) -> Path:
    """Build the store of a set, unless it exists, and return it."""
    out = folder / f"{name}.zarr"
    images = sorted(folder.glob(one.images))
    tested = {path for pattern in one.test for path in folder.glob(pattern)}
    rest = [path.stem for path in images if path not in tested]
    splits = {path.stem: "test" for path in tested}
    splits |= {stem: "val" if number % 4 == 3 else "train" for number, stem in enumerate(rest)}
    lines = ("scene,split", *(f"{stem},{split}" for stem, split in splits.items()))
    (file := folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options: dict[str, Any] = {"levels": 1, "split_file": file, "out": out, "progress": False}
    options |= {"images": str(folder / one.images), "labels": str(folder / one.labels)}
    geoprep.build_zarr(**options, **one.build)
    return out


def trained(store: Path, work: Path, seconds: float, settings: Mapping[str, Any]) -> Path:
    """Train for the processor time of a number of steps, and return the run."""
    size = settings.get("batch_size", 8)
    samples = 4 * len(select(StoreReader.open(store), "train").tiles)
    output: dict[str, Any] = {"out": work, "overwrite": True, "progress": False, "val_every": 4}
    taken = []
    # A step of two short runs; what is compiled, by a run before them, is not counted.
    for steps in (1, 1, 1 + _TIMED):
        begun = time.process_time()
        train(store, **settings, **output, epochs=steps * size / samples)
        taken.append(time.process_time() - begun)
    step = max(taken[2] - taken[1], 1e-3) / _TIMED
    announce(f"{work.name}: {seconds / step:.0f} steps of {step:.2g} s")
    run = train(store, **settings, **output, epochs=seconds / step * size / samples)
    return run.folder


@command(LearningOptions)
def main(given: LearningOptions) -> int:
    """Train every model on every set, print a table, and return the exit status."""
    result, rows = Result("learning", vars(given)), []
    print_machine(result)
    set_threads(1)
    models, minutes = given.models.split(","), [float(part) for part in given.minutes.split(",")]
    for name in given.only or SETS:
        one = SETS[name]
        if not [*given.folder.glob(one.images)]:
            result.notes.append(f"{name} is left out: no {one.images}. Source: {one.source}")
            continue
        with status:
            announce(name)
            store, forest = build(given.folder, name, one), math.nan
            for model, most, seed in product(models, minutes, range(given.seeds)):
                settings = {**one.train, "model": model, "seed": seed, "threads": 1, "pictures": 0}
                work = given.folder / "runs" / f"{name}-{model}-{most:g}-{seed}"
                run = trained(store, work, 60 * most, settings)
                found = evaluate_model(run, store, split="test", baseline=True, progress=False)
                score = found["metrics"].get("mean_iou", found["metrics"].get("road_iou"))
                forest = found["baseline"].get("forest", math.nan)
                figure = f"{name}.{model}.{most:g}.{seed}"
                result.add(figure, "", [score])
                rows.append(
                    [name, f"{model}, {most:g} min, seed {seed}", *map(rounded, (score, forest))]
                )
                if given.json:
                    result.write(given.json)
    titles = ("set", "run", "model", "random forest")
    print_table("IoU of roads, or mean IoU of classes; split test", titles, rows)
    for note in result.notes:
        print(note)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
