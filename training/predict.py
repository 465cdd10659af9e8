"""Predict roads and their speeds, or classes, with a trained model.

  geoprep predict runs/moscow scenes/ --out predictions           the run's best.pt
  geoprep predict runs/moscow/last.pt 'scenes/*.tif' --out predictions --tta flips
  geoprep predict runs/moscow s3://bucket/scene.tif --out predictions --overlay
  geoprep predict runs/fold* scenes/ --out predictions            the mean of several models
  geoprep predict runs/houses scenes/ --out predictions --polygons houses.gpkg --square
  geoprep predict runs/houses --of houses.zarr --split test --out predictions

A prediction is a Cloud Optimised GeoTIFF, uint8, nodata 255. Its bands: the probability of a road
times 255; the speed in mph, 0 for background; on request the probability of each speed bin times
255. The model of binary targets gives the first band only. A model of classes gives the class of
every pixel, with a palette; on request confidence and probabilities. Several models add a band
spread: the standard deviation of their probabilities times 255. NAME.qml is a style for QGIS.
An interrupted command resumes when it is run again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory

import geoprep
from geoprep.cli.running import Status, run
from geoprep.texts import counted, printable
from training.cli import Command
from training.prediction.predict_options import PredictOptions

_COMMON = (
    *("checkpoint", "threshold", "tta", "device", "images", "out", "overlay", "polygons"),
    *("square", "overwrite", "gsd", "bands", "allow_no_crs", "window"),
)
COMMAND = Command(
    "predict",
    (*PredictOptions.__bases__, PredictOptions),
    __doc__,
    action=lambda given: predict(PredictOptions(**given)),
    common=_COMMON,
)


def predict(options: PredictOptions) -> int:
    """Predict all images and return the exit status."""
    from training.prediction.job import predict_images, scenes_of
    from training.prediction.screen import Screen, summary
    from training.runners.ensemble import split_models
    from training.runners.model_options import parse_devices

    if options.of is not None and not split_models(options.checkpoint, options.images)[1]:
        with TemporaryDirectory(prefix="geoprep-") as folder:  # the bytes that the store has
            geoprep.export_scenes(options.of, scenes_of(options), folder, what="image")
            rescale = "none" if options.rescale == "checkpoint" else options.rescale
            images = (*options.images, folder)
            return predict(replace(options, images=images, of=None, split=None, rescale=rescale))
    if options.instances > 1 or len(parse_devices(options.device)) > 1:
        from training.prediction.instances import run_instances

        complete = run_instances(options, COMMAND.spell)
    else:
        with Screen(quiet=options.quiet, spell=COMMAND.spell) as screen:
            outcomes = predict_images(options, screen)
        for line in summary(outcomes):
            screen.say(line)
        complete = not any(outcome.error for outcome in outcomes)
    if complete and options.polygons:
        polygons = geoprep.polygonize(
            options.out,
            out=options.polygons,
            overwrite=options.overwrite,
            square=options.square,
            min_area_m2=options.min_area,
            simplify_m=options.simplify,
            pixel_size=options.pixel_size,
            progress=not options.quiet,
        )
        count = counted(len(polygons), "polygon")
        print(printable(f"wrote {options.polygons}: {count}"), flush=True)
    return Status.DONE if complete else Status.FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m training.predict``; return the exit status."""
    return run(COMMAND, arguments, "python -m training.predict")


if __name__ == "__main__":
    sys.exit(main())
