"""How fast a network is trained and used, what makes it fast, what it learns: one run, in turns.

    python -m benchmarks.training [STORE] [--quick] [--json FILE] [--plot FILE] [--price DOLLARS]
    python -m benchmarks.training --learning [--seeds 5] [--real DIR]
    python -m benchmarks.training --only city --seeds 5 --runs DIR --recipe NAME='--ema 0.99 ...'
    python -m benchmarks.training --only waiting

The step is that of `python -m training.fit` with its defaults: ResNet34-UNet, focal + dice, fed by
the loader from a store. It is set up better from rung to rung of a ladder, every rung in a process
of its own, beside its convolutions alone. ``--learning`` trains with the command itself, which
takes some minutes per recipe and seed; runs that are finished in ``--runs`` are not done again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import Result, announce, parser, run_parts, showing
from benchmarks.fitting.ladder import (
    chosen_rungs,
    measure_ladder,
    measure_sizes,
    measure_step,
    measure_waiting,
)
from benchmarks.fitting.learning import (
    DEMO,
    REACH,
    SCENES,
    build_city,
    demo_options,
    measure_chip,
    measure_city,
    parse_recipe,
)
from benchmarks.fitting.mapping import measure_mapping
from benchmarks.fitting.report import draw, print_tables
from benchmarks.fitting.runs import measure_ranks
from benchmarks.loading.data import Sizes, synthetic_store
from benchmarks.preprocess import REAL
from benchmarks.tables import conclude, print_machine
from geoprep.executors import usable_cores

SPEED_PARTS = ("ladder", "sizes", "step", "waiting", "predict", "ranks")
LEARNING_PARTS = ("city", "chip")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes
    ----------
    scenes, scene_side
        Of the synthetic city that steps learn from.
    batch_size, crop
        Of the step.
    seconds
        Of a rung per round; at least three steps are timed.
    sizes
        Batch sizes to try.
    image_sides
        Of the images that are mapped with one view and with eight.
    window
        Of mapping.
    epochs
        Of the runs with one and two ranks.
    chip_steps
        Of learning a chip by heart.
    """

    scenes: int = 12
    scene_side: int = 1024
    batch_size: int = 8
    crop: int = 256
    seconds: float = 3.0
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    image_sides: tuple[int, int] = (3136, 2112)
    window: int = 1024
    epochs: int = 4
    chip_steps: int = 300


QUICK = Scale(
    scenes=6,
    scene_side=256,
    batch_size=2,
    crop=64,
    seconds=0.5,
    sizes=(1, 2),
    image_sides=(448, 240),
    window=128,
    epochs=2,
    chip_steps=4,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status says only whether it ran."""
    given = _arguments(arguments)
    scale = QUICK if given.quick else Scale()
    result = Result("training", _settings(given, scale))
    print_machine(result)
    with (
        tempfile.TemporaryDirectory(dir=given.work, prefix="training-") as folder,
        showing(),
    ):
        parts = _learning_parts if given.learning else _speed_parts
        run_parts(result, parts(result, Path(folder), given, scale), given.only)
    return conclude(result, given, print_tables, draw)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0], repeats=3)
    add = options.add_argument
    add("store", type=Path, nargs="?", help="learn from this store (default: a synthetic city)")
    parts = (*SPEED_PARTS, *LEARNING_PARTS)
    add("--only", action="append", choices=parts, help="measure this part; repeatable")
    add(
        "--price", type=float, metavar="DOLLARS", help="of this machine per hour: images per dollar"
    )
    add("--learning", action="store_true", help="how well it learns, in place of how fast")
    add("--seeds", type=int, default=1, metavar="N", help="runs of --learning (default: 1)")
    text = "a name and options of training.fit to learn the city with (default: make demo's)"
    add("--recipe", action="append", type=parse_recipe, metavar="NAME=OPTIONS", help=text)
    text = "road IoU and IoU of speed bins whose minutes are told (default: %(default)s)"
    add("--reach", type=float, nargs=2, default=REACH, metavar=("ROAD", "BINS"), help=text)
    add("--runs", type=Path, help="keep the city and its runs here, and go on with them")
    add("--real", type=Path, default=REAL, help="a real chip to learn by heart, in its folders")
    add("--work", type=Path, help="folder for scratch files (default: TMPDIR)")
    given = options.parse_args(arguments)
    given.only = given.only or list(LEARNING_PARTS if given.learning else SPEED_PARTS)
    given.learning = given.learning or not set(given.only) & set(SPEED_PARTS)
    return given


def _settings(given: argparse.Namespace, scale: Scale) -> dict[str, Any]:
    return {
        "store": str(given.store) if given.store else f"synthetic, {scale.scenes} scenes",
        "parts": given.only,
        "batch_size": scale.batch_size,
        "crop": scale.crop,
        "seconds": scale.seconds,
        "repeats": given.repeats,
        "price": given.price,
        "quick": given.quick,
    }


def _speed_parts(
    result: Result, work: Path, given: argparse.Namespace, scale: Scale
) -> dict[str, Callable[[], None]]:
    announce("drawing a city")
    city = Sizes(scenes=scale.scenes, scene_side=scale.scene_side)
    store = given.store or synthetic_store(work, city, usable_cores())
    sides, window = scale.image_sides, scale.window
    return {
        "ladder": lambda: measure_ladder(result, str(store), chosen_rungs(result)),
        "sizes": partial(measure_sizes, result, str(store), scale.sizes),
        "step": partial(measure_step, result, str(store)),
        "waiting": partial(measure_waiting, result, str(store)),
        "predict": partial(measure_mapping, result, store, work, sides=sides, window=window),
        "ranks": partial(measure_ranks, result, store, work, epochs=scale.epochs),
    }


def _learning_parts(
    result: Result, work: Path, given: argparse.Namespace, scale: Scale
) -> dict[str, Callable[[], None]]:
    def city() -> None:
        scenes, side = (scale.scenes, scale.scene_side) if given.quick else (SCENES, 1300)
        folder = work if given.runs is None else given.runs.resolve()
        store = given.store or build_city(folder, scenes, side)
        recipes = dict(given.recipe or [(DEMO, demo_options())])
        reach = (given.reach[0], given.reach[1])
        measure_city(result, store, folder, recipes=recipes, seeds=given.seeds, reach=reach)

    return {
        "city": city,
        "chip": partial(measure_chip, result, given.real, work, steps=scale.chip_steps),
    }


if __name__ == "__main__":
    raise SystemExit(main())
