"""``python -m training.evaluate``: how good a checkpoint is on the tiles of a store."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from geoprep.errors import UsageError
from training.cli import Command, Status, argument, option, run_command
from training.predict import Network

if TYPE_CHECKING:
    from training.checkpoint import Facts
    from training.evaluation import Evaluation
    from training.prediction.runner import Runner

INTRODUCTION = """\
Judge a checkpoint on whole tiles, as a map would be: road IoU and F1, IoU per speed bin, and the
mean error of speed on road pixels.

  python -m training.evaluate runs/moscow moscow.zarr                 the run's best.pt, on val
  python -m training.evaluate runs/moscow/last.pt moscow.zarr --split test --json figures.json
  python -m training.evaluate runs/moscow moscow.zarr --scenes --sweep --tta d4
  python -m training.evaluate --compare runs/moscow moscow-int8.pt2 moscow.onnx --on moscow.zarr

Files of training.export are judged like checkpoints. A run that was trained on one fold of several
is judged on the scenes that it has not learned from.
"""
TITLES = {
    "road_iou": "road IoU",
    "road_f1": "road F1",
    "bin_iou": "mean IoU of speed bins",
    "speed_mae_mph": "mean speed error on roads, mph",
}
SWEPT = tuple(k / 16 for k in range(1, 16))
"""Thresholds of the table; the file of ``--json`` has all."""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Tiles: what it is judged on."""

    stores: tuple[str, ...] = argument(
        "One or more stores; with --compare the networks to compare with the first.",
        "STORE",
        default=(),
    )
    compare: bool = option(
        False,
        "Compare networks: checkpoints and files of training.export, on the store of --on. Drops "
        "are against the first.",
    )
    on: str | None = option(None, "The store, with --compare.", "STORE")
    split: Literal["val", "train", "test", "all"] = option("val", "Which tiles.")
    level: int | None = option(
        None, "Tile side in pixels; by default as trained on last.", "PIXELS", least=1
    )
    batch_size: int = option(4, "Tiles per batch.", "N", least=1)
    threads: int | None = option(None, "Threads that compute.", "N", least=1)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Shown: what is printed and written."""

    scenes: bool = option(False, "Also the figures of each scene.")
    sweep: bool = option(False, "Also precision, recall and IoU of roads over the threshold.")
    csv: Path | None = option(None, "Write the figures per scene here.", "FILE")
    json: Path | None = option(None, "Write every figure here.", "FILE")
    quiet: bool = option(False, "No progress bar.")


@dataclass(frozen=True, kw_only=True)
class Request(Network, Tiles, Shown):
    """All of it."""


COMMAND = Command("python -m training.evaluate", (Network, Tiles, Shown), INTRODUCTION)


def evaluate(request: Request) -> int:
    """Evaluate a checkpoint, print and write the figures, and return the exit status."""
    from training.distributed import is_first, joined, set_threads
    from training.evaluation import evaluate_runner

    for file in (request.csv, request.json):
        if file is not None and not file.parent.is_dir():
            raise UsageError(f"{file}: the folder {file.parent} does not exist: create it first")
    if request.compare or request.on:
        set_threads(request.threads)
        return _compare(request)
    if not request.stores:
        raise UsageError("name a store as well: training.evaluate NETWORK STORE")
    with joined(request.device):
        set_threads(request.threads)
        runner, facts = request.open("auto")
        runner, _ = runner.for_pixels(0)  # few pixels pay for compiling only where it is needed
        found = evaluate_runner(
            runner,
            facts,
            request.stores,
            request.split,
            level=request.level,
            threshold=request.threshold,
            tta=request.tta,
            batch_size=request.batch_size,
            quiet=request.quiet,
        )
        if is_first():
            _print(found, request)
            _write(found, request)
    return Status.DONE


def _compare(request: Request) -> int:
    """Print and write the figures of several networks side by side."""
    from rich.console import Console
    from rich.table import Table

    from geoprep.storage import replaced
    from training.deploy.comparison import compare
    from training.deploy.opening import network_file

    if not (request.compare and request.on and request.stores):
        raise UsageError("--compare NETWORK NETWORK ... --on STORE: give two networks and a store")
    for flag, given in (("--csv", request.csv), ("--scenes", request.scenes)):
        if given:
            raise UsageError(f"{flag} is for one network: leave out --compare")
    files = [network_file(file) for file in (request.checkpoint, *map(Path, request.stores))]
    networks = [(file, *_opened(request, file)) for file in files]
    table = Table("network", "runs as", "road IoU", "drop", "bin IoU", "drop", "Mpx/s", "MB")
    rows = []
    for one in compare(
        networks,
        [request.on],
        request.split,
        level=request.level,
        threshold=request.threshold,
        tta=request.tta,
        batch_size=request.batch_size,
    ):
        rate = "" if one.mpx_per_second is None else f"{one.mpx_per_second:.2f}"
        figures = []
        for name in ("road_iou", "bin_iou"):
            figures += [_figure(one.metrics[name]) if name in one.metrics else ""]
            figures += [f"{one.drop[name]:+.4f}" if name in one.drop else ""]
        table.add_row(one.name, one.how, *figures, rate, f"{one.nbytes / 1e6:.1f}")
        plain = asdict(one)
        rows.append(plain | {name: _all_plain(plain[name]) for name in ("metrics", "drop")})
    console = Console(highlight=False)
    Console(highlight=False, width=max(console.width, 160)).print(table)
    if request.json is not None:
        with replaced(request.json) as partial:
            partial.write_text(json.dumps(rows, indent=2) + "\n")
    return Status.DONE


def _opened(request: Request, file: Path) -> tuple[Runner, Facts]:
    """Open one network of several; what is said of checkpoints is not said of exported ones."""
    from training.deploy.opening import SUFFIXES

    if file.suffix in SUFFIXES:
        return Network(checkpoint=file, device="cpu").open("auto")
    return replace(request, checkpoint=file).open("auto")


def _print(found: Evaluation, request: Request) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(f"{found.title}, roads from {found.threshold:.3g}", "")
    for name, title in TITLES.items():
        if name in found.metrics:
            table.add_row(title, _figure(found.metrics[name]))
        if name == "road_iou":
            best = f"  at the best threshold, {_figure(found.metrics['threshold'])}"
            table.add_row(best, _figure(found.metrics["best_road_iou"]))
    for name, value in found.metrics.items():
        if name.startswith("iou_"):
            table.add_row(f"  IoU {name.removeprefix('iou_')} mph", _figure(value))
    console.print(table)
    if request.scenes:
        shown = [name for name in TITLES if name in found.metrics]
        table = Table("scene", "tiles", *(TITLES[name] for name in shown))
        for scene in found.scenes:
            figures = (_figure(scene.metrics[name]) for name in shown)
            table.add_row(scene.name, str(scene.tiles), *figures)
        # Names are whole, however narrow the terminal.
        Console(highlight=False, width=max(console.width, 1000)).print(table)
    if request.sweep:
        table = Table("threshold", "precision", "recall", "road IoU")
        for threshold in SWEPT:
            step = int(threshold * len(found.sweep.iou))
            figures = (_figure(float(values[step])) for values in found.sweep)
            table.add_row(f"{threshold:.3f}", *figures)
        console.print(table)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False)


def _figure(value: float) -> str:
    return "none there" if math.isnan(value) else f"{value:.3f}"


def _write(found: Evaluation, request: Request) -> None:
    from geoprep.storage import replaced

    if request.csv is not None:
        names = list(found.scenes[0].metrics)
        with replaced(request.csv) as partial, partial.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["scene", "tiles", *names])
            for scene in found.scenes:
                figures = (_plain(scene.metrics[name]) for name in names)
                rows.writerow([scene.name, scene.tiles, *figures])
    if request.json is not None:
        with replaced(request.json) as partial:
            partial.write_text(json.dumps(_figures(found, request), indent=2) + "\n")


def _figures(found: Evaluation, request: Request) -> dict[str, Any]:
    steps = zip(*(values.tolist() for values in found.sweep), strict=True)
    count = len(found.sweep.iou)
    return {
        "checkpoint": str(request.checkpoint),
        "stores": list(request.stores),
        "split": request.split,
        "level": found.level,
        "tiles": found.tiles,
        "tta": request.tta,
        "threshold": found.threshold,
        "metrics": _all_plain(found.metrics),
        "scenes": [
            {"scene": scene.name, "tiles": scene.tiles} | _all_plain(scene.metrics)
            for scene in found.scenes
        ],
        "sweep": [
            {"threshold": k / count}
            | _all_plain(dict(zip(("precision", "recall", "road_iou"), values, strict=True)))
            for k, values in enumerate(steps)
        ],
    }


def _all_plain(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: float) -> float | None:
    """Return a figure for a file: JSON knows no "not a number"."""
    return None if math.isnan(value) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate as the command line says; return the exit status."""
    return run_command(lambda: evaluate(Request(**COMMAND.parse(arguments))))


if __name__ == "__main__":
    sys.exit(main())
