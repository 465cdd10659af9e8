"""Measure training speed by settings and by number of processes, and accuracy.

    python -m benchmarks.training [STORE] [--quick] [--json FILE] [--plot FILE]
    python -m benchmarks.training --only city --seeds 5 --recipe NAME='--ema 0.99 ...'

Every case runs `python -m training.fit` in a separate process: ResNet34-UNet, focal + dice loss,
tiles from a store. Rates are those of its metrics.csv, compared with the convolutions alone. The
part ``city`` measures accuracy, in some minutes per recipe and seed. See also ``training.fit
--profile`` (time breakdown per step), ``--batch-size auto``, and `benchmarks.inference`
(prediction).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.common import (
    Result,
    announce,
    local_path,
    parser,
    reports_errors,
    run_parts,
)
from benchmarks.fitting import learning
from benchmarks.fitting.ladder import CEILING, RUNGS, measure_ladder, measure_ranks
from benchmarks.loading.data import LoadingSizes, synthetic_store
from benchmarks.tables import Table, conclude, measured
from geoprep.cpus import usable_cpus

SPEED_PARTS = ("ladder", "ranks")


@dataclass(frozen=True, slots=True)
class TrainingScale:
    """Sizes of the benchmark.

    Attributes
    ----------
    scenes, scene_side
        Number of scenes and their side in pixels, for the speed parts.
    batch_size, crop
        Batch size and crop side of a training step.
    city
        Number of scenes and their side in pixels, for the part ``city``.
    """

    scenes: int = 12
    scene_side: int = 1024
    batch_size: int = 8
    crop: int = 256
    city: tuple[int, int] = (learning.SCENES, learning.SIZE)


QUICK = TrainingScale(6, 256, batch_size=2, crop=64, city=(6, 652))


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 if it ran, even if bounds were missed."""
    given = _arguments(arguments)
    scale = QUICK if given.quick else TrainingScale()
    step = {"batch_size": scale.batch_size, "crop": scale.crop}
    with measured("training", given, **step) as (result, work):
        run_parts(result, _parts(result, work, given, scale), given.only)
    return conclude(result, given, tables(result))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__, repeats=3)
    add = options.add_argument
    text = "store to train on (default: that of a synthetic city)"
    add("store", type=local_path, nargs="?", help=text)
    text = f"measure this part; repeatable (default: {', '.join(SPEED_PARTS)})"
    add("--only", action="append", choices=(*SPEED_PARTS, "city"), help=text)
    text = "number of runs per recipe, one per seed (default: 1)"
    add("--seeds", type=int, default=1, metavar="N", help=text)
    text = "name and options of training.fit for part city (default: of make demo); repeatable"
    recipe = {"type": learning.parse_recipe, "metavar": "NAME=OPTIONS", "help": text}
    add("--recipe", action="append", **recipe)  # type: ignore[arg-type]  # values of several types
    given = options.parse_args(arguments)
    given.only = given.only or list(SPEED_PARTS)
    given.recipe = dict(given.recipe or [(learning.DEMO, learning.demo_options())])
    return given


def _parts(
    result: Result, work: Path, given: argparse.Namespace, scale: TrainingScale
) -> dict[str, Callable[[], None]]:
    store = given.store
    if store is None and set(given.only) & set(SPEED_PARTS):
        announce("creating a city")
        sizes = LoadingSizes(scenes=scale.scenes, scene_side=scale.scene_side)
        store = synthetic_store(work, sizes, usable_cpus())

    def city() -> None:
        learnt = given.store or learning.build_city(work / "demo", *scale.city)
        learning.measure_city(result, learnt, work, given.recipe)

    return {
        "ladder": partial(measure_ladder, result, store, work),
        "ranks": partial(measure_ranks, result, store, work),
        "city": city,
    }


def tables(result: Result) -> list[Table]:
    """Return the tables of the report."""
    of = result.settings
    step = f"ResNet34-UNet, {of['batch_size']} x {of['crop']} x {of['crop']}"
    rungs = {rung.title: f"ladder.{rung.name}" for rung in RUNGS}
    rungs["convolutions alone"] = f"ladder.{CEILING}"
    rate = {"images/s": "rate"}
    columns = rate | {"ms per step": "step", "peak MiB": "peak", "waited": "waited"}
    ranks = {"one process": "ranks.one", "two processes, torchrun": "ranks.two"}
    learnt = {"road IoU": "road_iou", "bin IoU": "bin_iou", "minutes": "minutes"}
    more = learnt | {"over prior": "over_prior", "mph off": "speed_error"}
    recipes = {name: f"city.{name}" for name in of["recipe"]}
    epochs = {
        name.removeprefix("city.").rpartition(".")[0].replace(".", ", "): name.rpartition(".")[0]
        for name in result.figures
        if ".epoch " in name
    }
    return [
        Table(f"Training, {step}", rungs, columns, drawn="images/s"),
        Table("Ranks (processes), same global batch", ranks, rate),
        Table("Accuracy on the validation scenes of a city", recipes, more, head="recipe"),
        Table("Accuracy by epoch", epochs, learnt, drawn="road IoU"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
