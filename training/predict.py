"""``python -m training.predict``: images in, georeferenced predictions of roads or classes out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from geoprep.errors import UsageError
from geoprep.storage import content_digest
from training.cli import Command, Status, run_command
from training.prediction import PredictOptions

if TYPE_CHECKING:
    from training.prediction import ImageOutcome, PredictionJob, Screen, Take

__all__ = ["COMMAND", "PredictOptions", "main", "make_job", "predict"]

INTRODUCTION = """\
Predict roads and their speeds, or classes, with a trained model.

  python -m training.predict runs/moscow scenes/ --out predictions           the run's best.pt
  python -m training.predict runs/moscow/last.pt 'scenes/*.tif' --out predictions --tta flips
  python -m training.predict runs/moscow s3://bucket/scene.tif --out predictions --overlay

A prediction is a Cloud Optimised GeoTIFF, uint8, nodata 255. Its bands: the probability of a road
times 255; the speed in mph, 0 for background; on request the probability of each speed bin times
255. The model of binary targets gives the first band only. A model of classes gives the class of
every pixel, with a palette; on request confidence and probabilities. NAME.qml is a style for QGIS.
An interrupted command resumes when it is run again.
"""
_RESERVE = 1 << 30
"""Bytes reserved in huge pages, about the activations of a batch."""


_COMMON = (
    *("checkpoint", "threshold", "tta", "device", "images", "out", "overlay", "overwrite"),
    *("gsd", "bands", "allow_no_crs", "window"),
)
COMMAND = Command(
    "python -m training.predict",
    (*PredictOptions.__bases__, PredictOptions),
    INTRODUCTION,
    common=_COMMON,
)


def predict(options: PredictOptions) -> int:
    """Predict all images and return the exit status."""
    from training.prediction import Screen, run_instances, summary
    from training.runners import parse_devices

    if options.instances > 1 or len(parse_devices(options.device)) > 1:
        done = run_instances(options, predict_part, COMMAND.spell)
        return Status.DONE if done else Status.FAILED
    with Screen(quiet=options.quiet, spell=COMMAND.spell) as screen:
        outcomes = predict_part(options, None, screen, first=True)
    for line in summary(outcomes):
        screen.say(line)
    return Status.FAILED if any(outcome.error for outcome in outcomes) else Status.DONE


def predict_part(
    options: PredictOptions, take: Take | None, screen: Screen, *, first: bool
) -> list[ImageOutcome]:
    """Predict as one process, the only one or one of several, see `PredictionJob`.

    The ``first`` one shows what is the same for all.
    """
    from training.engine import keep_memory

    allocator = keep_memory(_RESERVE, one_heap=True)
    job, header = make_job(options)
    for line in (*header, f"allocator: {allocator}") if first else ():
        screen.say(line)
    return replace(job, take=take).run(options.images, screen)


def make_job(options: PredictOptions) -> tuple[PredictionJob, list[str]]:
    """Return the job of the options, and lines that describe its model and threshold."""
    import torch

    from training.engine import slow_bf16
    from training.evaluation import chosen_threshold
    from training.prediction import PredictionJob, Predictor, check_targets, check_window
    from training.runners import NativeRunner, model_file, open_model

    if options.out is None:
        raise UsageError("`out` is missing: name a folder for the predictions")
    check_window(options.window, options.overlap)
    runner, info = open_model(options, options.compile)
    check_targets(info)
    for name in ("confidence", "probabilities"):
        if getattr(options, name) and not info.has_classes:
            raise UsageError(f"`{name}` is for models of classes; this one has roads")
    if options.outputs == "all" and info.has_classes:
        raise UsageError("`outputs` is for models of roads; this one has classes")
    threshold = chosen_threshold(info, options.threshold)
    origin = "default: never validated" if info.threshold is None else "chosen on validation scenes"
    origin = origin if options.threshold is None else "from the options"
    file = model_file(options.checkpoint)
    predictor = Predictor(
        info, options, threshold, f"{content_digest(str(file))} {options.weights}"
    )
    x, y = info.gsd_m
    header = [
        f"model {file}: {info.model}, bands {', '.join(info.bands)}, "
        f"{x:.3g} x {y:.3g} m, {runner.description}",
        f"classes {info.classes}" if info.has_classes else f"threshold {threshold:.3g} ({origin})",
    ]
    if isinstance(runner, NativeRunner):
        note = slow_bf16(runner.device, getattr(torch, runner.precision))
        header += [f"note: {note}"] if note else []
    return PredictionJob(predictor, runner, options.out), header


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    status = run_command(lambda: predict(PredictOptions(**COMMAND.parse(arguments))), COMMAND)
    if status > 128 and status != Status.BROKEN_PIPE:  # by a signal
        print("Finished work is kept. Run the same command again to resume.", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
