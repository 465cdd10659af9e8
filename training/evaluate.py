"""Evaluate a model on whole tiles, decoded as in predictions.

Road IoU and F1, IoU per speed bin, and mean absolute speed error on road pixels; for classes mean
IoU, IoU per class and confusion matrix. Also the spread over scenes and, for the split val, a next
step.

  geoprep evaluate runs/moscow moscow.zarr                 best.pt of the run, split val
  geoprep evaluate runs/moscow/last.pt moscow.zarr --split test --json > metrics.json
  geoprep evaluate runs/moscow moscow.zarr --scenes --tta d4
  geoprep evaluate runs/moscow moscow.zarr --baseline
  geoprep evaluate runs/fold* moscow.zarr --split test     the mean of several models
  geoprep evaluate --compare runs/moscow moscow.xml moscow.onnx --on moscow.zarr

Model files are evaluated like checkpoints. For a model trained with --folds, the split val
holds the scenes of its validation fold.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from geoprep.cli.running import Status, run
from geoprep.errors import UsageError
from geoprep.options import argument, option
from geoprep.texts import printable
from training.cli import Command
from training.runners.model_options import ModelOptions

if TYPE_CHECKING:
    from training.evaluation.validation import Evaluation

TITLES = {
    "road_iou": "road IoU",
    "road_f1": "road F1",
    "bin_iou": "mean IoU of speed bins",
    "speed_mae_mph": "mean absolute speed error on roads, mph",
    "mean_iou": "mean IoU of classes",
    "accuracy": "share of pixels with the right class",
}
Table = tuple[Sequence[str], Iterable[Sequence[str]], int]
"""Titles, rows of text, and the width of a terminal that it needs; 0 for any."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedTiles:
    """Tiles: stores, split and level to evaluate on."""

    stores: tuple[str, ...] = argument(
        "One or more stores. Runs or model files before them are models too, whose mean is "
        "evaluated; with --compare they are compared with the first.",
        "STORE",
        default=(),
    )
    compare: bool = option(
        False,
        "Compare models (runs, checkpoints, model files) on the store of --on. Differences are "
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
    """Output: tables or JSON."""

    scenes: bool = option(False, "Print the metrics of each scene.")
    json: bool = option(
        False,
        "Print one JSON document instead of tables: also with the metrics of each scene, "
        "precision, recall and IoU of roads at 256 thresholds, and the pixels of each class by "
        "label and prediction.",
    )
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
    *("baseline", "scenes", "json"),
)
COMMAND = Command(
    *("evaluate", EvaluateOptions.__bases__, __doc__),
    action=lambda given: evaluate(EvaluateOptions(**given)),
    common=_COMMON,
)


def evaluate(options: EvaluateOptions) -> int:
    """Evaluate a model, print its metrics, and return the exit status."""
    from training.engine.distributed import is_rank_zero, process_group, set_threads
    from training.runners.ensemble import split_models

    if options.compare or options.on:
        set_threads(options.threads)
        return _compare(options)
    if not options.stores:
        raise UsageError("give a model and a store: geoprep evaluate MODEL STORE")
    models, stores = split_models(options.checkpoint, options.stores)
    options = replace(options, stores=stores)
    with process_group(options.device_kind):
        result = evaluated(options, models)
        if not is_rank_zero():
            return Status.DONE
        if options.json:
            _print_json(evaluation_document(result, options, models))
            return Status.DONE
        for table in _tables(result, options):
            _table(*table)
        for line in _lines(result):
            print(printable(line))
    return Status.DONE


def evaluated(options: EvaluateOptions, models: Sequence[Path] = ()) -> Evaluation:
    """Return the metrics of a model on its stores.

    ``models``: several models, whose mean counts. Options of tables and files are ignored.
    """
    from loaders import open_stores
    from training.engine.distributed import set_threads
    from training.evaluation.standing import read_history
    from training.evaluation.validation import evaluate_runner
    from training.runners.ensemble import open_models
    from training.runners.model_files import model_file

    set_threads(options.threads)
    files = models or [model_file(options.checkpoint)]
    runner, info = open_models(options, files, "auto")
    if len(files) > 1 and info.folds and options.split == "val":
        raise UsageError("models of folds were trained on the split val: use `split` test")
    runner, _ = runner.for_pixels(0)  # compiling does not pay for so few pixels
    stores, shared = open_stores(options.stores), options.shared()
    shared |= {"quiet": options.quiet, "baseline": options.baseline}
    result = evaluate_runner(runner, info, stores, **shared)
    return replace(result, history=read_history(files[0].parent))


def _compare(options: EvaluateOptions) -> int:
    """Print the metrics of several models."""
    from training.evaluation.comparison import compare
    from training.evaluation.standing import SCORES
    from training.runners.model_files import SUFFIXES, model_file, open_model

    if not (options.compare and options.on and options.stores):
        raise UsageError("compare", "needs at least two models, and a store in `on`")
    for name in ("scenes", "baseline"):
        if getattr(options, name):
            raise UsageError(name, "is for one model: leave out `compare`")
    models = []
    for file in map(model_file, (options.checkpoint, *map(Path, options.stores))):
        own: ModelOptions = replace(options, checkpoint=file)
        if file.suffix in SUFFIXES:  # options of checkpoints do not apply to exported files
            own = ModelOptions(checkpoint=file, device="cpu")
        models.append((file, *open_model(own, "auto")))
    compared = compare(models, options.on, **options.shared())
    if options.json:
        _print_json([asdict(form) for form in compared])
        return Status.DONE
    scores = [name for name in SCORES if name in compared[0].metrics]
    rows = []
    for form in compared:
        cells = [form.name, form.how]
        for name in scores:
            cells += [_cell(form.metrics[name]), f"{form.drop[name]:+.4f}"]
        rate = "" if form.mpx_per_second is None else f"{form.mpx_per_second:.2f}"
        rows.append([*cells, rate, f"{form.nbytes / 1e6:.1f}"])
    titles = [title for name in scores for title in (SCORES[name], "drop")]
    _table(("model", "runs as", *titles, "Mpx/s", "MB"), rows, width=160)
    for form in compared:
        for note in form.notes:
            print(printable(f"note: {form.name}: {note}"))
    return Status.DONE


def _lines(result: Evaluation) -> list[str]:
    """Return notes, and next steps with the options of geoprep fit."""
    from training.fit import COMMAND as FIT

    notes = [f"note: {note}" for note in result.notes]
    return notes + [f"next step: {FIT.spell(step)}" for step in result.next_steps()]


def _tables(result: Evaluation, options: EvaluateOptions) -> Iterator[Table]:
    """Yield the tables to show."""
    from training.evaluation.threshold import threshold_text

    rows = []
    for name, title in TITLES.items():
        if name in result.metrics:
            rows.append([title, _cell(result.metrics[name])])
        if name == "road_iou" and "best_road_iou" in result.metrics:
            best = f"  at the best threshold, {_cell(result.metrics['best_threshold'])}"
            rows.append([best, _cell(result.metrics["best_road_iou"])])
            chosen = threshold_text(result.metrics, 3)
            rows.append(["  threshold chosen by scenes", chosen])
    bins = {name: value for name, value in result.metrics.items() if name.startswith("iou_")}
    unit = "" if result.classes else " mph"
    rows += [[f"  IoU {name[4:]}{unit}", _cell(value)] for name, value in bins.items()]
    roads = "" if result.classes else f", roads from {result.threshold:.3g}"
    yield (f"{result.title}{roads}", ""), rows, 0
    if result.classes:
        total = max(1, sum(map(sum, result.confusion)))
        rows = [
            [name, *(f"{count / total:.2%}" if count else "" for count in counts)]
            for name, counts in zip(result.classes, result.confusion, strict=True)
        ]
        titles = ("label \\ prediction, share of pixels", *result.classes)
        yield titles, rows, 1000 if len(titles) > 8 else 0
    if options.scenes:
        shown = [name for name in TITLES if name in result.metrics]
        rows = [
            [scene["scene"], str(scene["tiles"]), *(_cell(scene[name]) for name in shown)]
            for scene in result.scenes
        ]
        # Names are not shortened, even on a narrow terminal.
        yield ("scene", "tiles", *(TITLES[name] for name in shown)), rows, 1000
    if base := result.baseline:
        methods = {
            "model": "this model",
            "forest": f"random forest, learned from {base['learned']:,} pixels",
            "most_common": "most common class" if result.classes else "road everywhere",
        }
        sample = f"{base['pixels']:,} pixels of {base['tiles']:,} of these tiles"
        rows = [[title, _cell(base[name])] for name, title in methods.items() if name in base]
        yield (f"baseline: {sample}", TITLES[result.score]), rows, 0
    yield ("where the model stands", ""), result.facts(), 160


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], width: int = 0) -> None:
    """Print a table that may be at least ``width`` characters wide."""
    from rich.table import Table

    from geoprep.executors.terminal import Terminal

    table = Table(*titles)
    for row in rows:
        table.add_row(*row)
    Terminal(width=max(Terminal().width, width)).print(table)


def _cell(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.3f}"


def evaluation_document(
    result: Evaluation, options: EvaluateOptions, models: Sequence[Path] = ()
) -> dict[str, Any]:
    """Return the metrics of a model, or the mean of several, as ``--json`` prints them."""
    from training.evaluation.standing import FAR, NEAR

    name = ", ".join(map(str, models)) if len(models) > 1 else str(options.checkpoint)
    given = {"checkpoint": name, "stores": options.stores, "tta": options.tta}
    metrics = asdict(result) | given
    for name in ("title", "score", "history"):
        del metrics[name]
    if not result.classes:
        del metrics["classes"], metrics["confusion"]
    if not options.baseline:
        del metrics["baseline"]
    gaps = []
    if places := result.places():
        counts, means = [*map(len, places)], [scores.mean() for scores in places]
        gaps.append({"scenes": [NEAR, FAR], "count": counts, "mean": means})
    return metrics | {"gaps": gaps, "next_steps": result.next_steps()}


def _print_json(metrics: object) -> None:
    # JSON has no NaN: null instead.
    plain = json.loads(json.dumps(metrics), parse_constant=lambda _: None)
    print(json.dumps(plain, indent=2))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m training.evaluate``; return the exit status."""
    return run(COMMAND, arguments, "python -m training.evaluate")


if __name__ == "__main__":
    sys.exit(main())
