"""``python -m training.evaluate``: metrics of a model on the tiles of stores."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from geoprep.errors import UsageError
from geoprep.storage import replaced, require_folder, require_suffix
from training.cli import Command, Status, argument, option, run_command
from training.runners import ModelOptions

if TYPE_CHECKING:
    from training.checkpoint import ModelInfo
    from training.evaluation import Evaluation, Table
    from training.runners import Runner

INTRODUCTION = """\
Evaluate a model on whole tiles, decoded as in predictions: road IoU and F1, IoU per speed bin, and
mean absolute speed error on road pixels. Of classes: mean IoU, IoU per class, confusion matrix.
Then where the model stands: spread over scenes, the split test if the stores have it, and the next
step that follows from them.

  python -m training.evaluate runs/moscow moscow.zarr                 best.pt of the run, split val
  python -m training.evaluate runs/moscow/last.pt moscow.zarr --split test --json > metrics.json
  python -m training.evaluate runs/moscow moscow.zarr --scenes --sweep --tta d4
  python -m training.evaluate runs/moscow moscow.zarr --baseline --report moscow.html
  python -m training.evaluate --compare runs/moscow moscow.xml moscow.onnx --on moscow.zarr

Exported model files are evaluated like checkpoints. For a model trained with --folds, the split val
holds the scenes of its validation fold.
"""
TITLES = {
    "road_iou": "road IoU",
    "road_f1": "road F1",
    "bin_iou": "mean IoU of speed bins",
    "speed_mae_mph": "mean absolute speed error on roads, mph",
    "mean_iou": "mean IoU of classes",
    "accuracy": "share of pixels with the right class",
}
SWEPT = 16
"""Step of the 256 thresholds in the printed table; ``--json`` has all."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedTiles:
    """Tiles: stores, split and level to evaluate on."""

    stores: tuple[str, ...] = argument(
        "One or more stores; with --compare the models to compare with the first.",
        "STORE",
        default=(),
    )
    compare: bool = option(
        False,
        "Compare models (checkpoints and exported files) on the store of --on. Differences are "
        "relative to the first model.",
    )
    on: str | None = option(None, "Store to compare models on, with --compare.", "STORE")
    split: Literal["val", "train", "test", "all"] = option("val", "Split to evaluate on.")
    level: int | None = option(
        None, "Tile side in pixels; default: the level trained last.", "PIXELS", least=1
    )
    baseline: bool = option(
        False,
        "Score simple methods on a sample of the same pixels: the most common class (of roads: "
        "road everywhere), and a random forest on single pixels and their surroundings, which "
        "needs scikit-learn.",
    )
    batch_size: int = option(4, "Tiles per batch.", "N", least=1)
    threads: int | None = option(
        None, "Threads for computation; default: all processors.", "N", least=1
    )


@dataclass(frozen=True, kw_only=True)
class EvaluateOutput:
    """Output: tables and files."""

    scenes: bool = option(False, "Print the metrics of each scene.")
    sweep: bool = option(False, "Print precision, recall and IoU of roads for several thresholds.")
    csv: Path | None = option(None, "CSV file for the metrics of each scene.", "FILE")
    report: Path | None = option(
        None,
        "HTML file for all tables and pictures of the worst and best scenes.",
        "FILE",
        check=lambda path: require_suffix(path, ".html", ".htm"),
    )
    confusion: Path | None = option(
        None, "CSV file for the confusion matrix of classes, in pixels.", "FILE"
    )
    json: bool = option(False, "Print all metrics as one JSON document instead of tables.")
    quiet: bool = option(False, "Hide the progress bar.")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(ModelOptions, EvaluatedTiles, EvaluateOutput):
    """All options of the command."""

    def shared(self) -> dict[str, Any]:
        """Return the options of both `evaluate_runner` and `compare`."""
        names = ("split", "level", "threshold", "tta", "batch_size")
        return {name: getattr(self, name) for name in names}


_COMMON = (
    *("checkpoint", "threshold", "tta", "device", "stores", "compare", "on", "split"),
    *("baseline", "scenes", "sweep", "csv", "report", "json"),
)
COMMAND = Command(
    "python -m training.evaluate", EvaluateOptions.__bases__, INTRODUCTION, common=_COMMON
)


def evaluate(options: EvaluateOptions) -> int:
    """Evaluate a model, print and write its metrics, and return the exit status."""
    from training.engine import is_rank_zero, process_group, set_threads

    for file in (options.csv, options.report, options.confusion):
        if file is not None:
            require_folder(file)
    if options.compare or options.on:
        set_threads(options.threads)
        return _compare(options)
    if not options.stores:
        raise UsageError("give a model and a store: training.evaluate MODEL STORE")
    with process_group(options.device_kind):
        found = evaluated(options)
        if is_rank_zero():
            if not options.json:
                for table in _tables(found, options):
                    _table(*table)
                for line in _lines(found):
                    print(line)
            if options.report:
                _report(options.report, found, options)
            _write(found, options)
    return Status.DONE


def evaluated(options: EvaluateOptions) -> Evaluation:
    """Return the metrics of a model on its stores; options of tables and files are ignored.

    Beside those of the split val, if the stores have a split test, the metrics of its scenes; and
    the log of the run if that is there.
    """
    from loaders import open_stores, select
    from training.engine import set_threads
    from training.evaluation import evaluate_runner, read_history
    from training.runners import model_file, open_model

    set_threads(options.threads)
    runner, info = open_model(options, "auto")
    runner, _ = runner.for_pixels(0)  # compiling does not pay for so few pixels
    has = "classes" if info.has_classes else "roads"
    for name, kind in (("sweep", "roads"), ("confusion", "classes")):
        if getattr(options, name) and kind != has:
            raise UsageError(f"`{name}` is for models of {kind}; this one has {has}")
    stores, shared = open_stores(options.stores), options.shared() | {"quiet": options.quiet}
    found = evaluate_runner(runner, info, stores, **shared, baseline=options.baseline)
    found = replace(found, history=read_history(model_file(options.checkpoint).parent))
    if options.split != "val" or not any(len(select(store, "test").tiles) for store in stores):
        return found
    test = evaluate_runner(runner, info, stores, **shared | {"split": "test"})
    return replace(found, test=test.scenes)


def _compare(options: EvaluateOptions) -> int:
    """Print and write the metrics of several models."""
    from training.evaluation import SCORES, compare
    from training.runners import model_file

    if not (options.compare and options.on and options.stores):
        raise UsageError("`compare` needs at least two models, and a store in `on`")
    for name in ("csv", "report", "scenes", "baseline"):
        if getattr(options, name):
            raise UsageError(f"`{name}` is for one model: leave out `compare`")
    files = [model_file(file) for file in (options.checkpoint, *map(Path, options.stores))]
    models = [(file, *_opened(options, file)) for file in files]
    compared = list(compare(models, [options.on], **options.shared()))
    if options.json:
        _print_json([asdict(one) for one in compared])
        return Status.DONE
    shown, rows = [name for name in SCORES if name in compared[0].metrics], []
    for one in compared:
        cells = []
        for name in shown:
            cells += [_cell(one.metrics[name]), f"{one.drop[name]:+.4f}"]
        rate = "" if one.mpx_per_second is None else f"{one.mpx_per_second:.2f}"
        rows.append([one.name, one.how, *cells, rate, f"{one.nbytes / 1e6:.1f}"])
    figures = [title for name in shown for title in (SCORES[name], "drop")]
    titles = ("model", "runs as", *figures, "Mpx/s", "MB")
    _table(titles, rows, width=160)
    return Status.DONE


def _opened(options: EvaluateOptions, file: Path) -> tuple[Runner, ModelInfo]:
    """Open one of several models; options of checkpoints do not apply to exported files."""
    from training.runners import SUFFIXES, open_model

    if file.suffix in SUFFIXES:
        return open_model(ModelOptions(checkpoint=file, device="cpu"), "auto")
    return open_model(replace(options, checkpoint=file), "auto")


def _lines(found: Evaluation) -> list[str]:
    """Return notes, and next steps with the options of training.fit."""
    from training.fit import COMMAND as FIT

    notes = [f"note: {note}" for note in found.notes]
    return notes + [f"next step: {FIT.spell(step)}" for step in found.next_steps()]


def _report(path: Path, found: Evaluation, options: EvaluateOptions) -> None:
    """Write all tables, and pictures of the worst and best scenes."""
    from training.data import tiles_of
    from training.evaluation import scene_examples, write_report
    from training.runners import open_model

    runner, info = open_model(options, "auto")
    level = replace(info, level=found.level)
    tiles = tiles_of(level, options.stores, options.split, residency="stream")
    pictures = {}
    for kind, rows in found.extremes().items():
        names = [row["scene"] for row in rows]
        if names:
            shown = scene_examples(runner, info, tiles, names, found.threshold, options.tta)
            pictures[f"{kind} scenes, from the top: {', '.join(names)}"] = shown
    every = replace(options, scenes=True, sweep=not found.classes)
    tables = _tables(found, every)
    title = f"{options.checkpoint} on {', '.join(options.stores)}"
    write_report(path, title, _lines(found), tables, pictures, info.bands)


def _tables(found: Evaluation, options: EvaluateOptions) -> Iterator[Table]:
    """Yield the tables to show."""
    from training.evaluation import threshold_text

    rows = []
    for name, title in TITLES.items():
        if name in found.metrics:
            rows.append([title, _cell(found.metrics[name])])
        if name == "road_iou" and name in found.metrics:
            best = f"  at the best threshold, {_cell(found.metrics['best_threshold'])}"
            rows.append([best, _cell(found.metrics["best_road_iou"])])
            rows.append(["  threshold chosen by scenes", threshold_text(found.metrics, 3)])
    bins = {name: value for name, value in found.metrics.items() if name.startswith("iou_")}
    unit = "" if found.classes else " mph"
    rows += [[f"  IoU {name[4:]}{unit}", _cell(value)] for name, value in bins.items()]
    roads = "" if found.classes else f", roads from {found.threshold:.3g}"
    yield (f"{found.title}{roads}", ""), rows, 0
    if found.classes:
        total = max(1, sum(map(sum, found.confusion)))
        rows = [
            [name, *(f"{count / total:.2%}" if count else "" for count in counts)]
            for name, counts in zip(found.classes, found.confusion, strict=True)
        ]
        titles = ("label \\ prediction, share of pixels", *found.classes)
        yield titles, rows, 1000 if len(titles) > 8 else 0
    if options.scenes:
        shown = [name for name in TITLES if name in found.metrics]
        rows = [
            [scene["scene"], str(scene["tiles"]), *(_cell(scene[name]) for name in shown)]
            for scene in found.scenes
        ]
        # Names are not shortened, even on a narrow terminal.
        yield ("scene", "tiles", *(TITLES[name] for name in shown)), rows, 1000
    if options.sweep:
        rows = [[*map(_cell, step.values())] for step in found.sweep[SWEPT::SWEPT]]
        yield ("threshold", "precision", "recall", "road IoU"), rows, 0
    if base := found.baseline:
        methods = {
            "model": "this model",
            "forest": f"random forest, learned from {base['learned']:,} pixels",
            "most_common": "most common class" if found.classes else "road everywhere",
        }
        sample = f"{base['pixels']:,} pixels of {base['tiles']:,} of these tiles"
        rows = [[title, _cell(base[name])] for name, title in methods.items() if name in base]
        yield (f"baseline: {sample}", TITLES[found.score]), rows, 0
    yield ("where the model stands", ""), found.facts(), 160


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], width: int = 0) -> None:
    """Print a table that may be at least ``width`` characters wide."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*titles)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, width=max(Console().width, width)).print(table)


def _cell(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.3f}"


def _write(found: Evaluation, options: EvaluateOptions) -> None:
    known = ([value if value == value else None for value in row.values()] for row in found.scenes)
    scenes: list[Any] = [list(found.scenes[0]), *known]
    pairs = zip(found.classes, found.confusion, strict=True)
    confusion: list[Any] = [["label", *found.classes], *([name, *counts] for name, counts in pairs)]
    for file, table in ((options.csv, scenes), (options.confusion, confusion)):
        if file is not None:
            with replaced(file) as partial, partial.open("w", newline="") as stream:
                csv.writer(stream).writerows(table)
    if options.json:
        _print_json(evaluation_document(found, options))


def evaluation_document(found: Evaluation, options: EvaluateOptions) -> dict[str, Any]:
    """Return the metrics of a model as ``--json`` prints them."""
    given = {"checkpoint": str(options.checkpoint), "stores": options.stores, "tta": options.tta}
    metrics = asdict(found) | given | {"split": options.split}
    hidden = {"title", "notes", "test", "score", "history"} | (
        set() if found.classes else {"classes", "confusion"}
    )
    hidden |= set() if options.baseline else {"baseline"}
    gaps = [
        {"scenes": [near, far], "count": [len(one), len(other)], "mean": [one.mean(), other.mean()]}
        for near, far, one, other in found.groups()
    ]
    steps = {"gaps": gaps, "next_steps": found.next_steps()}
    return {k: v for k, v in metrics.items() if k not in hidden} | steps


def _print_json(metrics: object) -> None:
    # JSON has no NaN: null instead.
    plain = json.loads(json.dumps(metrics), parse_constant=lambda _: None)
    print(json.dumps(plain, indent=2))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return run_command(lambda: evaluate(EvaluateOptions(**COMMAND.parse(arguments))), COMMAND)


if __name__ == "__main__":
    sys.exit(main())
