"""``python -m training.evaluate``: how good a checkpoint is on the tiles of a store."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from geoprep.errors import UsageError
from training.cli import Command, Status, argument, option, run_command
from training.inference import ModelOptions

if TYPE_CHECKING:
    from training.checkpoint import Facts
    from training.evaluation import Evaluation
    from training.inference import Runner

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
SWEPT = 16
"""Every so many of the 256 thresholds there is one in the table; the file of ``--json`` has all."""


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
class Request(ModelOptions, Tiles, Shown):
    """All of it."""

    def how(self) -> dict[str, Any]:
        """Return what `evaluate_runner` and `compare` are told alike."""
        names = ("split", "level", "threshold", "tta", "batch_size")
        return {name: getattr(self, name) for name in names}


COMMAND = Command("python -m training.evaluate", (ModelOptions, Tiles, Shown), INTRODUCTION)


def evaluate(request: Request) -> int:
    """Evaluate a checkpoint, print and write the figures, and return the exit status."""
    from training.engine import is_first, joined, set_threads
    from training.evaluation import evaluate_runner
    from training.inference import open_model

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
        runner, facts = open_model(request, "auto")
        runner, _ = runner.for_pixels(0)  # few pixels pay for compiling only where it is needed
        found = evaluate_runner(runner, facts, request.stores, quiet=request.quiet, **request.how())
        if is_first():
            _print(found, request)
            _write(found, request)
    return Status.DONE


def _compare(request: Request) -> int:
    """Print and write the figures of several networks side by side."""
    from training.comparison import compare
    from training.inference import model_file

    if not (request.compare and request.on and request.stores):
        raise UsageError("--compare NETWORK NETWORK ... --on STORE: give two networks and a store")
    for flag, given in (("--csv", request.csv), ("--scenes", request.scenes)):
        if given:
            raise UsageError(f"{flag} is for one network: leave out --compare")
    files = [model_file(file) for file in (request.checkpoint, *map(Path, request.stores))]
    networks = [(file, *_opened(request, file)) for file in files]
    found = list(compare(networks, [request.on], **request.how()))
    rows = []
    for one in found:
        figures = []
        for name in ("road_iou", "bin_iou"):
            figures += [_figure(one.metrics[name]) if name in one.metrics else ""]
            figures += [f"{one.drop[name]:+.4f}" if name in one.drop else ""]
        rate = "" if one.mpx_per_second is None else f"{one.mpx_per_second:.2f}"
        rows.append([one.name, one.how, *figures, rate, f"{one.nbytes / 1e6:.1f}"])
    titles = ("network", "runs as", "road IoU", "drop", "bin IoU", "drop", "Mpx/s", "MB")
    _table(titles, rows, width=160)
    _write_json(request.json, [asdict(one) for one in found])
    return Status.DONE


def _opened(request: Request, file: Path) -> tuple[Runner, Facts]:
    """Open one network of several; what is said of checkpoints is not said of exported ones."""
    from training.inference import SUFFIXES, open_model

    if file.suffix in SUFFIXES:
        return open_model(ModelOptions(checkpoint=file, device="cpu"), "auto")
    return open_model(replace(request, checkpoint=file), "auto")


def _print(found: Evaluation, request: Request) -> None:
    rows = []
    for name, title in TITLES.items():
        if name in found.metrics:
            rows.append([title, _figure(found.metrics[name])])
        if name == "road_iou":
            best = f"  at the best threshold, {_figure(found.metrics['threshold'])}"
            rows.append([best, _figure(found.metrics["best_road_iou"])])
    bins = {name: value for name, value in found.metrics.items() if name.startswith("iou_")}
    rows += [[f"  IoU {name[4:]} mph", _figure(value)] for name, value in bins.items()]
    _table((f"{found.title}, roads from {found.threshold:.3g}", ""), rows)
    if request.scenes:
        shown = [name for name in TITLES if name in found.metrics]
        rows = [
            [scene["scene"], str(scene["tiles"]), *(_figure(scene[name]) for name in shown)]
            for scene in found.scenes
        ]
        # Names are whole, however narrow the terminal.
        _table(("scene", "tiles", *(TITLES[name] for name in shown)), rows, width=1000)
    if request.sweep:
        rows = [[*map(_figure, step.values())] for step in found.sweep[SWEPT::SWEPT]]
        _table(("threshold", "precision", "recall", "road IoU"), rows)
    for note in found.notes:
        print(f"note: {note}")


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], width: int = 0) -> None:
    """Print a table, at least so many characters wide where it needs them."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*titles)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, width=max(Console().width, width)).print(table)


def _figure(value: float) -> str:
    return "none there" if math.isnan(value) else f"{value:.3f}"


def _write(found: Evaluation, request: Request) -> None:
    from geoprep.storage import replaced

    if request.csv is not None:
        with replaced(request.csv) as partial, partial.open("w", newline="") as file:
            rows = csv.DictWriter(file, list(found.scenes[0]))
            rows.writeheader()
            rows.writerows(_plain(found.scenes))
    asked = {"checkpoint": str(request.checkpoint), "stores": request.stores, "tta": request.tta}
    figures = asdict(found) | asked | {"split": request.split}
    _write_json(request.json, {k: v for k, v in figures.items() if k not in ("title", "notes")})


def _write_json(file: Path | None, figures: object) -> None:
    from geoprep.storage import replaced

    if file is not None:
        with replaced(file) as partial:
            partial.write_text(json.dumps(_plain(figures), indent=2) + "\n")


def _plain(value: Any) -> Any:  # noqa: ANN401 - a nest of figures
    """Return figures for a file: JSON knows no "not a number"."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate as the command line says; return the exit status."""
    return run_command(lambda: evaluate(Request(**COMMAND.parse(arguments))), COMMAND)


if __name__ == "__main__":
    sys.exit(main())
