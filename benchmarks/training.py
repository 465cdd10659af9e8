"""How fast a network is trained, what makes it fast, what it learns: one run, in turns.

    python -m benchmarks.training [STORE] [--quick] [--json FILE] [--plot FILE]
    python -m benchmarks.training --only city --seeds 5 --recipe NAME='--ema 0.99 ...'

Everything is a run of `python -m training.fit`: ResNet34-UNet, focal + dice, fed by the loader from
a store. Rates are those of its own metrics.csv, every run in a process of its own, beside its
convolutions alone. ``city`` says how well it learns, in some minutes per recipe and seed.
Where a step's time goes is told by ``training.fit --profile``, the fastest batch by ``--batch-size
auto``, how fast maps are made by `benchmarks.inference`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.common import Result, announce, parser, run_parts, status
from benchmarks.fitting import learning
from benchmarks.fitting.ladder import CEILING, RUNGS, measure_ladder, measure_ranks
from benchmarks.loading.data import Sizes, synthetic_store
from benchmarks.report import Table, conclude, print_machine
from geoprep.cpus import usable_cpus

SPEED_PARTS = ("ladder", "ranks")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes
    ----------
    scenes, scene_side
        Of the synthetic city that steps learn from.
    batch_size, crop
        Of the step.
    city
        Scenes and their side in pixels, of the city that recipes learn.
    """

    scenes: int = 12
    scene_side: int = 1024
    batch_size: int = 8
    crop: int = 256
    city: tuple[int, int] = (learning.SCENES, learning.SIZE)


QUICK = Scale(6, 256, batch_size=2, crop=64, city=(6, 652))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status says only whether it ran."""
    given = _arguments(arguments)
    scale = QUICK if given.quick else Scale()
    step = {"batch_size": scale.batch_size, "crop": scale.crop}
    result = Result("training", vars(given) | step)
    print_machine(result)
    with tempfile.TemporaryDirectory(dir=given.work, prefix="training-") as folder, status:
        run_parts(result, _parts(result, Path(folder), given, scale), given.only)
    return conclude(result, given, tables(result))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__, repeats=3)
    add = options.add_argument
    add("store", type=Path, nargs="?", help="learn from this store (default: a synthetic city)")
    text = f"measure this part; repeatable (default: {', '.join(SPEED_PARTS)})"
    add("--only", action="append", choices=(*SPEED_PARTS, "city"), help=text)
    add("--seeds", type=int, default=1, metavar="N", help="runs per recipe (default: 1)")
    text = "a name and options of training.fit to learn the city with (default: make demo's)"
    recipe = {"type": learning.parse_recipe, "metavar": "NAME=OPTIONS", "help": text}
    add("--recipe", action="append", **recipe)  # type: ignore[arg-type]  # of several kinds
    given = options.parse_args(arguments)
    given.only = given.only or list(SPEED_PARTS)
    given.recipe = dict(given.recipe or [(learning.DEMO, learning.demo_options())])
    return given


def _parts(
    result: Result, work: Path, given: argparse.Namespace, scale: Scale
) -> dict[str, Callable[[], None]]:
    store = given.store
    if store is None and set(given.only) & set(SPEED_PARTS):
        announce("drawing a city")
        sizes = Sizes(scenes=scale.scenes, scene_side=scale.scene_side)
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
    """Return the tables of what was measured."""
    of = result.settings
    step = f"ResNet34-UNet, {of['batch_size']} x {of['crop']} x {of['crop']}"
    rungs = {rung.title: f"ladder.{rung.name}" for rung in RUNGS}
    rungs["convolutions alone"] = f"ladder.{CEILING}"
    rate = {"images/s": "rate"}
    columns = rate | {"ms per step": "step", "peak MiB": "peak", "waited": "waited"}
    ranks = {"one process": "ranks.one", "two, through torchrun": "ranks.two"}
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
        Table("Ranks, the same global batch", ranks, rate),
        Table("Learning a city, on its validation scenes", recipes, more, head="recipe"),
        Table("The course of it", epochs, learnt, drawn="road IoU"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
