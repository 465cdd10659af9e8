"""``python -m training.predict``: GeoTIFF in, georeferenced map of road speeds out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geoprep.errors import GeoprepError, SourceError, UsageError
from training.errors import CheckpointError

if TYPE_CHECKING:
    from training.prediction.job import Job

STOPPED = 130
_RESERVE = 1 << 30
"""Bytes laid out for huge pages: about what a batch takes on its way through the network."""


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("images", nargs=-1, required=True)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the maps, one NAME.tif an image.",
)
@click.option("--window", default=1024, show_default=True, help="Side of the windows in pixels.")
@click.option("--overlap", default=64, show_default=True, help="Pixels that neighbours share.")
@click.option("--batch-size", default=1, show_default=True, type=click.IntRange(1))
@click.option(
    "--tta",
    default="none",
    show_default=True,
    type=click.Choice(["none", "flips", "d4"]),
    help="Average over 4 flips, or over them and their transposes: 4 or 8 times the work.",
)
@click.option(
    "--gsd",
    default="checkpoint",
    show_default=True,
    help="Pixel size to predict at: the checkpoint's, the image's, or metres. Images more than "
    "10 % off are resampled, and their maps have the pixels that the network saw.",
)
@click.option("--bands", default="", help="1-based bands to read, such as 5,3,2.")
@click.option(
    "--rescale",
    default="checkpoint",
    show_default=True,
    help="How values become bytes: as in the training store, scene, none, or LO,HI.",
)
@click.option(
    "--threshold",
    default=0.5,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Least probability of a road that gets a speed.",
)
@click.option("--weights", default="auto", type=click.Choice(["auto", "ema", "raw"]))
@click.option("--device", default="auto", type=click.Choice(["auto", "cpu", "cuda", "xpu"]))
@click.option("--precision", default="auto", type=click.Choice(["auto", "bf16", "fp32"]))
@click.option(
    "--compile",
    "compile_wish",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "on", "off"]),
    help="Compile the network: a minute that large jobs win back.",
)
@click.option("--compress", default="zstd", type=click.Choice(["zstd", "deflate"]))
@click.option("--overlay", is_flag=True, help="Also a PNG of roads over the image.")
@click.option("--allow-no-crs", is_flag=True, help="Take images without a place on the ground.")
@click.option("--overwrite", is_flag=True, help="Replace maps of other checkpoints or options.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def predict(images: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401 - click's own values
    """Map roads and their speeds with a trained network.

    IMAGES are GeoTIFFs, folders or patterns, also on S3. Each map is a cloud optimised GeoTIFF of
    bytes: the probability of each speed bin and of any road times 255, and the expected speed in
    mph (0 no road); 255 is no data. Killed and run again, the same command goes on where it was.

    Exits with 0, with 1 if an image failed, with 2 if the request cannot be carried out.
    """
    from training.engine import host as machine
    from training.prediction.report import Screen, print_summary

    allocator = machine.keep_memory(_RESERVE)
    job, header = make_job(**options)
    header.append(f"allocator: {allocator}")
    with Screen(quiet=options["quiet"]) as screen:
        for line in header:
            screen.say(line)
        outcomes = job.run(images, screen)
    print_summary(outcomes, job.mapper)
    if any(outcome.error for outcome in outcomes):
        raise click.exceptions.Exit(1)


def make_job(checkpoint: Path, **options: Any) -> tuple[Job, list[str]]:  # noqa: ANN401 - as above
    """Return the job that the options describe, and lines that say how it will be done.

    Raises
    ------
    UsageError
        An option makes no sense.
    CheckpointError
        The checkpoint cannot be used.
    """
    from geoprep.plan import parse_rescale
    from training.checkpoint import BEST, load_network
    from training.prediction import network
    from training.prediction.job import Job
    from training.prediction.mapping import Mapper
    from training.prediction.product import Recipe, check_targets, file_hash
    from training.prediction.source import Wishes, check_gsd
    from training.prediction.windows import check_window

    check_window(options["window"], options["overlap"])
    if options["rescale"] != "checkpoint":
        parse_rescale(options["rescale"])
    wishes = Wishes(
        gsd=check_gsd(options["gsd"]),
        bands=parse_bands(options["bands"]),
        rescale=options["rescale"],
        allow_no_crs=options["allow_no_crs"],
    )
    device = network.choose_device(options["device"])
    trained, facts = load_network(checkpoint, device=device, weights=options["weights"])
    check_targets(facts)
    predictor = network.Predictor(
        trained,
        facts,
        device=device,
        precision=options["precision"],
        augmentation=options["tta"],
    )
    file = checkpoint / BEST if checkpoint.is_dir() else checkpoint
    precision = str(predictor.dtype).removeprefix("torch.")
    recipe = Recipe(
        checkpoint=f"{file_hash(file)} {options['weights']}",
        wishes=wishes,
        window=options["window"],
        overlap=options["overlap"],
        tta=options["tta"],
        threshold=options["threshold"],
        precision=precision,
        compression=options["compress"],
    )
    mapper = Mapper(predictor, facts, recipe, options["batch_size"])
    job = Job(
        mapper, options["out"], options["compile_wish"], options["overwrite"], options["overlay"]
    )
    x, y = facts.gsd_m
    header = [
        f"checkpoint {file}: {facts.network}, bands {', '.join(facts.bands)}, "
        f"{x:.3g} x {y:.3g} m, {precision} on {device}",
    ]
    return job, header


def parse_bands(text: str) -> tuple[int, ...]:
    """Return the bands of ``5,3,2``; none for an empty text.

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


def main() -> None:
    """Run the command line; errors are one message, exit statuses those of the help text."""
    try:
        status = predict.main(standalone_mode=False, prog_name="python -m training.predict")
        sys.exit(status or 0)  # click returns the status of an Exit here, and raises it elsewhere
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo(
            "\nInterrupted. What was finished is kept: run the same command again to carry on.",
            err=True,
        )
        sys.exit(STOPPED)
    except GeoprepError as error:
        click.echo(f"Error: {str(error).replace('--images ', '')}", err=True)
        usage = isinstance(error, UsageError | SourceError | CheckpointError)
        sys.exit(2 if usage else 1)


if __name__ == "__main__":
    main()
