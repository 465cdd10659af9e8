"""``python -m training.predict``: GeoTIFF in, georeferenced map of road speeds out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from geoprep.errors import UsageError
from training.cli import Command, Status, run_command
from training.prediction import Network, Request

if TYPE_CHECKING:
    from training.prediction import Job, Reporter

__all__ = ["COMMAND", "Network", "Request", "main", "make_job", "predict"]

INTRODUCTION = """\
Map roads and their speeds with a trained network.

  python -m training.predict runs/moscow scenes/ --out maps                the run's best.pt
  python -m training.predict runs/moscow/last.pt 'scenes/*.tif' --out maps --tta flips --overlay
  python -m training.predict runs/moscow s3://bucket/scene.tif --out maps

Each map is a cloud optimised GeoTIFF of bytes. Its bands: the probability of any road times 255;
the speed in mph, 0 beside roads; the probability of each speed bin times 255. 255 is no data in all
of them. NAME.qml beside it is its style in QGIS. Killed and run again, the same command goes on
where it was.
"""
_RESERVE = 1 << 30
"""Bytes laid out for huge pages: about what a batch takes on its way through the network."""


COMMAND = Command("python -m training.predict", Request.__bases__, INTRODUCTION)


def predict(request: Request) -> int:
    """Map all images, and return the exit status."""
    from training.engine import keep_memory
    from training.prediction import Screen, run_instances, summary

    if request.instances > 1:
        return run_instances(request, _instance)
    allocator = keep_memory(_RESERVE, one_heap=True)
    job, header = make_job(request)
    with Screen(quiet=request.quiet) as screen:
        for line in (*header, f"allocator: {allocator}"):
            screen.say(line)
        outcomes = job.run(request.images, screen)
    for line in summary(outcomes, job.mapper):
        screen.say(line)
    return Status.FAILED if any(outcome.error for outcome in outcomes) else Status.DONE


def _instance(request: Request, turn: tuple[int, int], since: float, reporter: Reporter) -> None:
    """Do the part of one process among several."""
    from training.engine import keep_memory

    keep_memory(_RESERVE, one_heap=True)
    job, header = make_job(request)
    for line in header if turn[0] == 0 else ():
        reporter.say(line)
    replace(job, turn=turn, since=since).run(request.images, reporter)


def make_job(request: Request) -> tuple[Job, list[str]]:
    """Return the job that the options describe, and lines that say how it will be done.

    Raises
    ------
    UsageError
        An option makes no sense.
    CheckpointError
        The checkpoint cannot be used.
    """
    from training.decode import chosen_threshold
    from training.inference import file_hash, network_file
    from training.prediction import Job, Mapper, check_targets, check_window

    if request.out is None:
        raise UsageError("--out FOLDER is missing: where the maps go")
    check_window(request.window, request.overlap)
    runner, facts = request.open(request.compile)
    check_targets(facts)
    threshold = chosen_threshold(facts.targets, request.threshold, facts.threshold)
    whose = "never validated" if facts.threshold is None else "the best on validation tiles"
    whose = whose if request.threshold is None else "as asked"
    file = network_file(request.checkpoint)
    mapper = Mapper(facts, request, threshold, f"{file_hash(file)} {request.weights}")
    x, y = facts.gsd_m
    header = [
        f"network {file}: {facts.network}, bands {', '.join(facts.bands)}, "
        f"{x:.3g} x {y:.3g} m, {runner.description}",
        f"roads from a probability of {threshold:.3g} ({whose})",
    ]
    return Job(mapper, runner, request.out), header


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    status = run_command(lambda: predict(Request(**COMMAND.parse(arguments))), COMMAND)
    if status == Status.INTERRUPTED:
        print("What was finished is kept: run the same command again to carry on.", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
