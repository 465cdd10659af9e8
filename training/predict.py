"""``python -m training.predict``: GeoTIFF in, georeferenced map of road speeds out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from geoprep.errors import UsageError
from training.cli import Command, Status, argument, option, run_command

if TYPE_CHECKING:
    from training.checkpoint import Facts
    from training.prediction.job import Job, Reporter
    from training.prediction.runner import Runner

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


def check_bands(text: str | None) -> tuple[int, ...]:
    """Return the bands of ``5,3,2``; none where nothing was said.

    Raises
    ------
    UsageError
        They are not numbers from 1 up.
    """
    try:
        bands = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        bands = (0,)
    if any(band < 1 for band in bands):
        raise UsageError(f"--bands {text}: give numbers from 1 up, such as 5,3,2")
    return bands


def check_gsd(text: str) -> None:
    """Raise UsageError where ``--gsd`` is neither a word nor metres."""
    from training.prediction import images

    images.check_gsd(text)


def check_rescale(text: str) -> None:
    """Raise UsageError where ``--rescale`` is no rule."""
    from geoprep.plan import parse_rescale

    if text != "checkpoint":
        parse_rescale(text)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Network: which one, and how it computes."""

    checkpoint: Path = argument(
        "A checkpoint, the folder of a run (its best.pt), or a file of training.export: .pt2, "
        ".onnx, .xml, .ipex.",
        "NETWORK",
    )
    threshold: float | None = option(
        None,
        "Least probability of a road; by default the one that validation found best, which the "
        "checkpoint holds, else 0.5.",
        "SHARE",
        above=0,
        most=1,
    )
    tta: Literal["none", "flips", "d4"] = option(
        "none", "Average over 4 flips, or over them and their transposes: 4 or 8 times the work."
    )
    weights: Literal["auto", "ema", "raw"] = option(
        "auto", "Which weights: by default the averaged ones where there are any."
    )
    model: str | None = option(
        None,
        "Consent to import the network's own code, which the checkpoint only names.",
        "package.module:factory",
    )
    device: Literal["auto", "cpu", "cuda", "xpu"] = option("auto", "Where it computes.")
    precision: Literal["auto", "bf16", "fp32"] = option("auto", "Of the convolutions.")

    def open(self, compile_mode: Literal["auto", "on", "off"] = "off") -> tuple[Runner, Facts]:
        """Return the runner and what it is for, see `training.deploy.opening.open_network`."""
        from training.deploy.opening import open_network

        return open_network(
            self.checkpoint,
            device=self.device,
            precision=self.precision,
            compile_mode=compile_mode,
            weights=self.weights,
            model=self.model,
        )


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files: what is read and written."""

    images: tuple[str, ...] = argument("GeoTIFFs, folders or patterns, also on S3.", "IMAGE")
    out: Path | None = option(None, "Folder for the maps, one NAME.tif per image.", "FOLDER")
    overlay: bool = option(False, "Also a PNG per map: its roads over the image.")
    overwrite: bool = option(False, "Replace maps of other checkpoints or options.")
    compress: Literal["zstd", "deflate"] = option("zstd", "Compression of the maps.")
    quiet: bool = option(False, "No progress bar.")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Reading: how an image is seen."""

    gsd: str = option(
        "checkpoint",
        "Pixel size to predict at: the checkpoint's, the image's, or metres. Images more than "
        "10 % off are resampled, and their maps have the pixels that the network saw.",
        "checkpoint|image|METRES",
        check=check_gsd,
    )
    bands: str | None = option(
        None, "1-based bands to read, such as 5,3,2.", "N,...", check=check_bands
    )
    rescale: str = option(
        "checkpoint",
        "How values become bytes: as in the training store, scene, none, or LO,HI.",
        "RULE",
        check=check_rescale,
    )
    allow_no_crs: bool = option(False, "Take images without a place on the ground, as they are.")
    pixel_size: float | None = option(
        None,
        "Metres that a pixel of such images is wide: then they are resampled like any other. "
        "Their maps have no place on the ground either.",
        "METRES",
        above=0,
    )


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Windows: how an image goes through the network."""

    window: int = option(1024, "Side of the windows in pixels.", "PIXELS")
    overlap: int = option(64, "Pixels that neighbouring windows share.", "PIXELS")
    batch_size: int = option(1, "Windows per batch.", "N", least=1)
    compile: Literal["auto", "on", "off"] = option(
        "auto",
        "Compile the network: a minute that large jobs win back; half a second for a .xml file. "
        "Files of .onnx and .ipex are as they are.",
    )


@dataclass(frozen=True, kw_only=True)
class Instances:
    """Instances: several processes at once, for many images on many cores."""

    instances: int = option(
        1,
        "Processes, each on cores of its own; they share the images, and write into one folder.",
        "N",
        least=1,
    )


@dataclass(frozen=True, kw_only=True)
class Request(Network, Files, Reading, Windows, Instances):
    """All of it."""


COMMAND = Command(
    "python -m training.predict", (Network, Files, Reading, Windows, Instances), INTRODUCTION
)


def predict(request: Request) -> int:
    """Map all images, and return the exit status."""
    from training.engine import host
    from training.prediction.report import Screen, print_summary

    if request.instances > 1:
        from training.prediction.instances import run_instances

        return run_instances(request, _instance, request.instances, request.device)
    allocator = host.keep_memory(_RESERVE, one_heap=True)
    job, header = make_job(request)
    with Screen(quiet=request.quiet) as screen:
        for line in (*header, f"allocator: {allocator}"):
            screen.say(line)
        outcomes = job.run(request.images, screen)
    print_summary(outcomes, job.mapper)
    return Status.FAILED if any(outcome.error for outcome in outcomes) else Status.DONE


def _instance(request: Request, turn: tuple[int, int], since: float, reporter: Reporter) -> None:
    """Do the part of one process among several."""
    from training.engine import host

    host.keep_memory(_RESERVE, one_heap=True)
    job, header = make_job(request)
    if turn[0] == 0:
        for line in header:
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
    from training.deploy.opening import network_file
    from training.prediction.images import ReadOptions
    from training.prediction.job import Job
    from training.prediction.mapping import Mapper
    from training.prediction.product import MapOptions, check_targets, file_hash
    from training.prediction.windows import check_window

    if request.out is None:
        raise UsageError("--out FOLDER is missing: where the maps go")
    check_window(request.window, request.overlap)
    runner, facts = request.open(request.compile)
    check_targets(facts)
    threshold = chosen_threshold(facts.targets, request.threshold, facts.threshold)
    whose = "never validated" if facts.threshold is None else "the best on validation tiles"
    whose = whose if request.threshold is None else "as asked"
    file = network_file(request.checkpoint)
    options = MapOptions(
        checkpoint=f"{file_hash(file)} {request.weights}",
        reading=ReadOptions(
            gsd=request.gsd,
            bands=check_bands(request.bands),
            rescale=request.rescale,
            allow_no_crs=request.allow_no_crs,
            pixel_size=request.pixel_size,
        ),
        window=request.window,
        overlap=request.overlap,
        batch=request.batch_size,
        tta=request.tta,
        threshold=threshold,
        compression=request.compress,
    )
    # What was compiled or not without being asked for is as good either way.
    loose = ("compiled",) if request.compile == "auto" else ()
    job = Job(
        Mapper(facts, options), runner, request.out, request.overwrite, request.overlay, loose
    )
    x, y = facts.gsd_m
    header = [
        f"network {file}: {facts.network}, bands {', '.join(facts.bands)}, "
        f"{x:.3g} x {y:.3g} m, {runner.description}",
        f"roads from a probability of {threshold:.3g} ({whose})",
    ]
    return job, header


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    status = run_command(lambda: predict(Request(**COMMAND.parse(arguments))))
    if status == Status.INTERRUPTED:
        print("What was finished is kept: run the same command again to carry on.", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
