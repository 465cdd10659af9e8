"""A form of a trained model in a separate process, called through `benchmarks.child`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import resident
from training.engine import keep_memory
from training.evaluation import evaluate_runner
from training.predict import COMMAND, make_job
from training.prediction import PredictionJob, PredictOptions, Screen, elapsed
from training.runners import Runner

_ENOUGH = 10**12
"""Number of pixels that makes compiling worthwhile."""


def parse_job(words: Sequence[str]) -> tuple[PredictionJob, tuple[str, ...]]:
    """Return the prediction job of arguments of `training.predict`, and its images."""
    options = PredictOptions(**COMMAND.parse(words))
    return make_job(options)[0], options.images


class FormServer:
    """A loaded model that answers requests.

    Parameters
    ----------
    words
        Arguments of `training.predict`: model, options and images.
    """

    def __init__(self, words: Sequence[str]) -> None:
        keep_memory(1 << 30, one_heap=True)
        start = time.perf_counter()
        job, self.images = parse_job(words)
        self.single_runner, _ = job.runner.for_pixels(0)
        self.runner, _ = job.runner.for_pixels(_ENOUGH)
        self.job = replace(job, runner=self.runner)
        self.loaded, self._warm = time.perf_counter() - start, False

    def describe(self) -> dict[str, Any]:
        """Return the seconds that loading took."""
        return {"seconds": self.loaded}

    def batch(self, count: int, side: int) -> Tensor:
        """Return random uint8 (n, band, y, x), channels last."""
        shape = count, len(self.job.predictor.info.bands), side, side
        image = torch.randint(0, 256, shape, dtype=torch.uint8)
        return image.contiguous(memory_format=torch.channels_last)

    def latency(self, count: int, side: int, times: int) -> dict[str, Any]:
        """Return the seconds of each of ``times`` batches."""
        image, runner = self.batch(count, side), self.single_runner if count == 1 else self.runner
        return {"seconds": [_seconds(runner, image) for _ in range(times)]}

    def rate(self, count: int, side: int, seconds: float) -> dict[str, Any]:
        """Return Mpx/s over at least two batches and ``seconds``, and peak memory in bytes.

        As many threads call the model as a prediction has. A first batch, which allocates memory,
        is not measured.
        """
        image, at_once = self.batch(count, side), self.runner.at_once
        self.runner(image)
        start = time.perf_counter()

        def batches(_: int) -> int:
            done = 0
            while done < 2 or time.perf_counter() - start < seconds:
                self.runner(image)
                done += 1
            return done

        with ThreadPoolExecutor(at_once) as pool:
            pixels = sum(pool.map(batches, range(at_once))) * count * side * side
        return {"mpx_s": pixels / 1e6 / (time.perf_counter() - start), "peak": resident()}

    def predict(self) -> dict[str, Any]:
        """Return Mpx/s of predicting the images: through the model, and of output pixels.

        A first prediction of one window is not measured.
        """
        if not self._warm:
            self._warm_up()
        stats = [
            outcome.stats
            for outcome in self.job.run(self.images, Screen(quiet=True, send=lambda _: None))
        ]
        took = elapsed([one for one in stats if one])
        return {
            "network_mpx_s": sum(one.network_pixels for one in stats if one) / 1e6 / took,
            "image_mpx_s": sum(one.image_pixels for one in stats if one) / 1e6 / took,
        }

    def _warm_up(self) -> None:
        """Predict a corner of the first image: the first prediction loads compiled loops."""
        import rasterio
        from rasterio.windows import Window

        side = self.job.predictor.options.window
        with TemporaryDirectory() as folder:
            corner = Path(folder) / "corner.tif"
            with rasterio.open(self.images[0]) as image:
                pixels = image.read(window=Window(0, 0, side, side))
                size = {"width": side, "height": side, "count": len(pixels)}
                place = {"crs": image.crs, "transform": image.transform}
                with rasterio.open(corner, "w", dtype=pixels.dtype, **size, **place) as file:
                    file.write(pixels)
            self.job.run([str(corner)], Screen(quiet=True, send=lambda _: None))
        self._warm = True

    def evaluate(self, store: str) -> dict[str, Any]:
        """Return the metrics of `training.evaluate` on the validation tiles of a store."""
        job, predictor = self.job, self.job.predictor
        found = evaluate_runner(
            job.runner, predictor.info, [store], "val", threshold=predictor.threshold, quiet=True
        ).metrics
        return {name: found[name] for name in ("road_iou", "bin_iou") if name in found}


def _seconds(runner: Runner, image: Tensor) -> float:
    start = time.perf_counter()
    runner(image)
    return time.perf_counter() - start
