"""How fast a network is trained and used, what makes it fast, what it learns: one run, in turns.

    python -m benchmarks.training [STORE] [--quick] [--json FILE] [--plot FILE] [--price DOLLARS]
    python -m benchmarks.training --learning [--seeds 5] [--real DIR]

The step is that of `python -m training.fit` with its defaults: ResNet34-UNet, focal + dice, fed by
the loader from a store. It is set up better from rung to rung of a ladder, every rung in a process
of its own, beside its convolutions alone. ``--learning`` trains with the command itself, which
takes some minutes a seed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import ChildError
from benchmarks.common import (
    LIBRARIES,
    Result,
    console,
    machine,
    parser,
    print_machine,
    print_promises,
)
from benchmarks.fitting.climb import chosen_rungs, measure_ladder
from benchmarks.fitting.learning import (
    SCENES,
    build_city,
    demo_options,
    measure_chip,
    measure_city,
)
from benchmarks.fitting.mapping import measure_mapping
from benchmarks.fitting.ranks import measure_ranks
from benchmarks.fitting.report import draw, print_tables
from benchmarks.fitting.sweeps import measure_breakdown, measure_feeds, measure_sizes
from benchmarks.loading.data import Sizes, synthetic_store
from benchmarks.preprocess import REAL
from geoprep.executors import usable_cores

SPEED_PARTS = ("ladder", "sizes", "feeds", "step", "predict", "ranks")
LEARNING_PARTS = ("city", "chip")

Announce = Callable[[str], None]


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
        Of a rung in a round; at least three steps are timed.
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
    result = Result("training", _settings(given, scale), machine((*LIBRARIES, "torch")))
    print_machine(result)
    with (
        tempfile.TemporaryDirectory(dir=given.work, prefix="training-") as folder,
        console.status("drawing a city") as status,
    ):
        announce: Announce = lambda text: status.update(text)  # noqa: E731
        measure = _measure_learning if given.learning else _measure_speed
        measure(result, Path(folder), given, scale, announce)
    print_tables(result)
    print_promises(result)
    if given.json:
        result.write(given.json)
    if given.plot:
        draw(result, given.plot)
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0], repeats=3)
    add = options.add_argument
    add("store", type=Path, nargs="?", help="learn from this store (default: a synthetic city)")
    parts = (*SPEED_PARTS, *LEARNING_PARTS)
    add("--only", action="append", choices=parts, help="measure this part; repeatable")
    add("--price", type=float, metavar="DOLLARS", help="of this machine an hour: images a dollar")
    add("--learning", action="store_true", help="how well it learns, in place of how fast")
    add("--seeds", type=int, default=1, metavar="N", help="runs of --learning (default: 1)")
    text = "options of training.fit for --learning on the city (default: those of make demo)"
    add("--fit-options", metavar="OPTIONS", help=text)
    add("--real", type=Path, default=REAL, help="a real chip to learn by heart, in its folders")
    add("--work", type=Path, help="folder for scratch files (default: TMPDIR)")
    given = options.parse_args(arguments)
    given.only = given.only or list(LEARNING_PARTS if given.learning else SPEED_PARTS)
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


def _measure_speed(
    result: Result, work: Path, given: argparse.Namespace, scale: Scale, announce: Announce
) -> None:
    city = Sizes(scenes=scale.scenes, scene_side=scale.scene_side)
    store = given.store or synthetic_store(work, city, usable_cores())
    repeats = given.repeats
    step: dict[str, Any] = {"store": str(store), "crop": scale.crop}
    task = {**step, "batch_size": scale.batch_size, "seconds": scale.seconds}
    short = {**task, "seconds": scale.seconds / 2}
    parts: dict[str, Callable[[], None]] = {
        "ladder": lambda: measure_ladder(
            result,
            task,
            rungs=chosen_rungs(result),
            repeats=repeats,
            price=given.price,
            announce=announce,
        ),
        "sizes": lambda: measure_sizes(
            result, short, sizes=scale.sizes, repeats=repeats, announce=announce
        ),
        "feeds": lambda: measure_feeds(
            result, short, counts=_counts(), repeats=repeats, announce=announce
        ),
        "step": lambda: measure_breakdown(
            result, task, steps=2 if given.quick else 8, announce=announce
        ),
        "predict": lambda: measure_mapping(
            result,
            store,
            work,
            sides=scale.image_sides,
            window=scale.window,
            repeats=min(repeats, 2),
            announce=announce,
        ),
        "ranks": lambda: measure_ranks(
            result,
            store,
            work,
            batch_size=scale.batch_size,
            crop=scale.crop,
            epochs=scale.epochs,
            repeats=min(repeats, 2),
            announce=announce,
        ),
    }
    _run_parts(result, parts, given.only)


def _run_parts(
    result: Result, parts: Mapping[str, Callable[[], None]], only: Sequence[str]
) -> None:
    """Measure the parts asked for; one that fails leaves a note, and the others their figures."""
    for name, measure in parts.items():
        if name in only:
            try:
                measure()
            except ChildError as error:
                result.notes.append(f"{name} failed: {error}")


def _counts() -> list[int]:
    """Return numbers of threads and workers to feed with: one, and one per core."""
    return sorted({1, usable_cores()})


def _measure_learning(
    result: Result, work: Path, given: argparse.Namespace, scale: Scale, announce: Announce
) -> None:
    def city() -> None:
        scenes, side = (scale.scenes, scale.scene_side) if given.quick else (SCENES, 1300)
        store = given.store or build_city(work, scenes, side)
        chosen = given.fit_options
        options = demo_options() if chosen is None else chosen.split()
        measure_city(result, store, work, options=options, seeds=given.seeds, announce=announce)

    def chip() -> None:
        measure_chip(result, given.real, work, steps=scale.chip_steps, announce=announce)

    _run_parts(result, {"city": city, "chip": chip}, given.only)


if __name__ == "__main__":
    raise SystemExit(main())
