"""Predict one image: windows through the model, while others are read, blended and written."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoprep.cpus import usable_cpus
from geoprep.errors import UsageError
from training.checkpoint import ModelInfo
from training.prediction.area import read_area
from training.prediction.blend import RowBlender
from training.prediction.cog import CogWriter
from training.prediction.image_rows import ImageRows, kept_probabilities
from training.prediction.images import ImageReader, ImageSource
from training.prediction.limits import known_limits
from training.prediction.predict_options import PredictOptions, parse_bands
from training.prediction.prediction_tags import band_names, tiff_tags
from training.prediction.spool import Shape, WriteJournal
from training.prediction.windows import (
    WindowGrid,
    WindowRow,
    prefetched,
    read_window_rows,
    window_grid,
)
from training.runners import (
    CLASS_BAND,
    SPEED_BAND,
    VIEWS,
    Runner,
    average_views,
    class_bytes,
    road_bytes,
    spread_bytes,
)

FORMAT = 3
"""Version of predictions: bands, how probabilities become speeds, and what identifies an image."""

READING = ("gsd", "grid", "bands", "rescale", "nodata", "allow_no_crs", "pixel_size")
"""Options that the pixels of an image depend on, as the model sees them."""

IN_FLIGHT = 2
"""Batches that are queued on an accelerator while the host blends and writes another one."""

Limits = NDArray[np.float64]

Output = tuple[NDArray[np.float32], float]
"""Probabilities, float32 (n, y, x, channel), and the seconds that they took."""

Start = Callable[[NDArray[np.uint8]], Callable[[], Output]]
"""Starts the work on windows, uint8 (n, y, x, band); returns what waits for the output."""

ProgressCallback = Callable[[float], object]
"""Called with the pixels of all windows that are finished so far."""


@dataclass(slots=True)
class PredictStats:
    """Pixels and seconds of the prediction of one image."""

    image_pixels: int = 0  # of the model's grid, predicted by this run
    network_pixels: int = 0  # through the model, in all views
    began: float = 0.0  # by `time.perf_counter`
    seconds: float = 0.0  # from opening the image to the finished file
    forward_seconds: float = 0.0  # the part of them that the model took
    continued: bool = False  # whether this run resumed another one
    lost: int = 0  # pixels where the model's output is not finite
    at_ends: float = 0.0  # share of the values that known limits stretched to 1 or 255


def elapsed(stats: Sequence[PredictStats]) -> float:
    """Return the seconds from the first start to the last end: predictions may overlap in time."""
    ends = [image.began + image.seconds for image in stats]
    return max(ends) - min(image.began for image in stats)


@dataclass(slots=True)
class ImageOutcome:
    """One image of a job, and the outcome of its prediction."""

    address: str
    target: Path
    source: ImageSource | None = None  # None if it cannot be opened or is not downloaded
    version: str = ""
    # Or: resumed; complete, before this run; busy: another command writes it; failed.
    state: str = "predicted"
    stats: PredictStats | None = None  # None if nothing had to be predicted, or it failed
    error: str = ""


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predicts images with the same model and options."""

    info: ModelInfo
    options: PredictOptions
    threshold: float
    checkpoint: str  # hashes of the files, and which of their weights are used
    spread: bool = False  # whether the last channel and band are the spread of several models

    @property
    def limits(self) -> Limits | None:
        """The values of all images that become black and white; None for each image's own."""
        return known_limits(self.info, self.options.rescale)

    def grid(self, source: ImageSource) -> WindowGrid:
        """Return the windows over an image."""
        options = self.options
        grid = window_grid(
            source.height, source.width, options.window, options.overlap, options.batch_size
        )
        return grid if source.area is None else grid.around(source.area, source.scales)

    def network_pixels(self, source: ImageSource) -> int:
        """Return how many pixels of an image go through the model."""
        return self.grid(source).pixels * len(VIEWS[self.options.tta])

    def signature(self, name: str, version: str, runner: Runner) -> dict[str, Any]:
        """Return everything that a prediction's pixels depend on, as plain JSON."""
        options, limits = self.options, self.limits
        reading = {name: getattr(options, name) for name in READING}
        extra: dict[str, Any] = {} if options.outputs == "all" else {"bins": False}
        if self.info.has_classes:
            extra = {"confidence": options.confidence, "probabilities": options.probabilities}
        if options.area:
            extra["area"] = read_area(options.area, options.where)[2]
        return {
            "format": FORMAT,
            "checkpoint": self.checkpoint,
            "window": options.window,
            "overlap": options.overlap,
            "tta": options.tta,
            "threshold": self.threshold,
            "compression": options.compress,
            **reading,
            "bands": list(parse_bands(options.bands)),
            "limits": "scene" if limits is None else limits.tolist(),
            **runner.identity,
            **extra,
            "image": [name, version],
        }

    def run(
        self, source: ImageSource, target: Path, runner: Runner, progress: ProgressCallback
    ) -> PredictStats:
        """Write the prediction of an image; resume it if an earlier run was interrupted.

        Raises
        ------
        ImageError
            The image is damaged.
        UsageError
            Another process writes this prediction, or the model's output has another shape than
            its number of channels says.
        """
        began = time.perf_counter()
        signed = self.signature(source.name, source.version, runner)
        if not source.resampled:  # both grids are one
            del signed["grid"]
        # Of a part on another device the last bits may differ.
        own = {"batch": self.options.batch_size, "device": runner.device.type}
        with WriteJournal(target, signed | own) as journal:
            continued = journal.continued
            try:
                reader = ImageReader(source, journal.folder / "valid.bits")
                if not continued:
                    reader.decide_validity()
                    limits = reader.scene_limits() if source.limits is None else source.limits
                    journal.settle(limits=limits.tolist())
                info, names = self.info, self._bands
                shape = Shape(len(names), *source.shape)
                by_mode = [CLASS_BAND if info.has_classes else SPEED_BAND]
                by_mode *= info.has_classes or bool(info.class_mph)
                with CogWriter(journal, shape, self.options.compress, by_mode) as writer:
                    limits = np.array(journal.settled["limits"])
                    stats = self._write_rows(reader, limits, writer, runner, progress)
                    reader.require_unchanged()
                    writer.finish(target, tiff_tags(source, info, names, signed))
            except OSError:
                raise  # such as a full disk: the next run resumes
            except Exception:
                journal.remove()
                raise
            journal.remove()
        stats.continued, stats.began = continued, began
        stats.seconds = time.perf_counter() - began
        return stats

    def _write_rows(
        self,
        reader: ImageReader,
        limits: Limits,
        writer: CogWriter,
        runner: Runner,
        progress: ProgressCallback,
    ) -> PredictStats:
        """Predict and write all rows that are not written yet."""
        source, stats = reader.source, PredictStats()
        grid, views = self.grid(source), len(VIEWS[self.options.tta])
        channels, bands = self.info.channels + self.spread, len(self._bands)
        threads, convert, shape = usable_cpus(), self._to_bytes(), (grid.rows.side, source.width)
        top, left, bottom, right = source.extent
        wide = round((right - left) / (source.scales[1] if source.on_image else 1))
        # Of the rows that are written or given to the writer, and of all
        end, stop, back = top + writer.next_row, bottom, None
        out: NDArray[Any] = np.empty((bands, *shape), np.uint8)
        pool = ThreadPoolExecutor(threads, "predict-image")
        if source.on_image:
            back = ImageRows(source, bands, convert, pool, end)
            end, stop, convert = back.first_needed, back.last_needed, kept_probabilities
            out = np.empty((*shape, channels), np.uint16).transpose(2, 0, 1)
        first = grid.rows.first_touching(end)
        stop = sum(s < stop for s in grid.rows.starts) if top + writer.next_row < bottom else first
        with (
            pool,
            closing(prefetched(read_window_rows(reader, limits, grid, first, stop))) as rows,
            RowBlender(grid, channels, out, convert, threads) as blender,
            closing(self._outputs(_batches(rows, grid, runner), runner, stats)) as outputs,
        ):
            for (row, columns, _, is_last), probabilities in outputs:
                if columns:
                    blender.add(row, columns, probabilities[: len(columns)])
                    stats.network_pixels += len(columns) * grid.window_pixels * views
                    progress(grid.pixels_before(row.number, columns[-1] + 1))
                if is_last:
                    # Rows that an earlier run has written are repeated only for the part that
                    # fades into the next row of windows.
                    start, high = grid.rows.starts[row.number], grid.rows.finished(row.number)
                    low = max(end, start)
                    fresh = blender.take(row)[:, low - start :]
                    asked = fresh[:, : max(0, bottom - low), left:right]
                    for part in back.add(row, low, low - start, fresh) if back else [asked]:
                        writer.put(part)
                    stats.image_pixels += max(0, high - low) * wide
                    end = max(end, high)
        stats.lost = back.lost if back else blender.lost
        stats.at_ends = reader.ends / max(reader.values, 1)
        progress(grid.pixels)
        return stats

    @property
    def _bands(self) -> list[str]:
        return band_names(self.info, self.options, spread=self.spread)

    def _to_bytes(self) -> Callable[..., int]:
        """Return the function that converts probabilities to the bands of a prediction."""
        options = self.options
        if self.info.has_classes:
            confidence, probabilities = options.confidence, options.probabilities
            convert: Callable[..., int] = partial(
                class_bytes, confidence=confidence, probabilities=probabilities
            )
        else:
            mph = np.array(self.info.class_mph, np.float32)
            convert = partial(road_bytes, class_mph=mph, threshold=self.threshold)
        return partial(spread_bytes, convert=convert) if self.spread else convert

    def _outputs(
        self, batches: Iterator[_WindowBatch], runner: Runner, stats: PredictStats
    ) -> Generator[tuple[_WindowBatch, NDArray[np.float32]], None, None]:
        """Yield batches with the model's output on the host, in order.

        1. On an accelerator `IN_FLIGHT` batches are queued.
        2. A runner that takes several at once is called by as many threads; one batch more waits.
        3. Others compute a batch when it is waited for.
        """
        forward = partial(self._forward, runner)
        pool = ThreadPoolExecutor(runner.at_once, "predict-model")

        def on_host(image: NDArray[np.uint8]) -> Output:
            with runner.turns:
                began = time.perf_counter()
                output = forward(torch.from_numpy(image).permute(0, 3, 1, 2)).cpu().numpy()
                return output, time.perf_counter() - began

        def in_thread(image: NDArray[np.uint8]) -> Callable[[], Output]:
            return pool.submit(on_host, image).result

        start: Start
        if has_streams(runner.device):
            start, ahead = queued_on(runner.device, forward), IN_FLIGHT  # 1
        elif runner.at_once > 1:
            start, ahead = in_thread, runner.at_once + 1  # 2
        else:
            start, ahead = partial(partial, on_host), 0  # 3
        waiting = deque[tuple[_WindowBatch, Callable[[], Output]]]()

        def oldest() -> tuple[_WindowBatch, NDArray[np.float32]]:
            batch, wait = waiting.popleft()
            output, seconds = wait()
            stats.forward_seconds += seconds / runner.at_once
            return batch, output

        try:
            for batch in batches:
                waiting.append((batch, start(batch.image) if len(batch.image) else _nothing))
                if len(waiting) > ahead:
                    yield oldest()
            while waiting:
                yield oldest()
        finally:
            pool.shutdown(cancel_futures=True)

    def _forward(self, runner: Runner, windows: Tensor) -> Tensor:
        """Return the mean over all views, fp32 (n, y, x, channel), of uint8 (n, band, y, x)."""
        count, _, height, width = windows.shape
        shape = (count, height, width, self.info.channels + self.spread)
        try:
            probabilities = average_views(runner, windows, self.options.tta)
        except torch.OutOfMemoryError as error:
            raise UsageError(
                f"{runner.device} has too little memory for batches of {count} windows of "
                f"{width} x {height} pixels: use a smaller `batch_size` or `window`"
            ) from error
        if probabilities.shape != shape:
            raise UsageError(
                f"the model {self.info.model} returns the shape {tuple(probabilities.shape)} for "
                f"{count} windows instead of {shape} (window, y, x, channel): its factory does not "
                "fit the checkpoint"
            )
        return probabilities


def has_streams(device: torch.device) -> bool:
    """Return whether work on a device can be queued, such as on a GPU."""
    return device.type in ("cuda", "xpu")


def queued_on(device: torch.device, forward: Callable[[Tensor], Tensor]) -> Start:
    """Return a function that queues batches on a device, so that the host never waits to start one.

    ``forward`` is the model: uint8 (n, band, y, x) on the device -> fp32 (n, y, x, channel).
    """
    module = torch.get_device_module(device)
    stream = module.Stream(device)
    stream.wait_stream(module.current_stream(device))  # the weights are copied there

    def start(image: NDArray[np.uint8]) -> Callable[[], Output]:
        began, ended, copied = (module.Event(enable_timing=True) for _ in range(3))
        staged = torch.empty(image.shape, dtype=torch.uint8, pin_memory=True)
        staged.numpy()[...] = image
        with module.stream(stream):
            moved = staged.to(device, non_blocking=True).permute(0, 3, 1, 2)
            began.record(stream)
            output = forward(moved)
            ended.record(stream)
            host = torch.empty(output.shape, pin_memory=True)
            host.copy_(output, non_blocking=True)
            copied.record(stream)

        def wait() -> Output:
            copied.synchronize()
            return host.numpy(), began.elapsed_time(ended) / 1000

        return wait

    return start


def _nothing() -> Output:
    return np.zeros(0, np.float32), 0.0


class _WindowBatch(NamedTuple):
    """Windows of one row."""

    row: WindowRow
    columns: list[int]  # index of each window in the row
    image: NDArray[np.uint8]  # (n, y, x, band), padded where batches have a fixed size
    last: bool  # the row has no further batch


def _batches(rows: Iterable[WindowRow], grid: WindowGrid, runner: Runner) -> Iterator[_WindowBatch]:
    """Yield the windows that have imagery; a row without any is one empty batch."""
    starts, side = grid.columns.starts, grid.columns.side
    for row in rows:
        full = [i for i, x in enumerate(starts) if row.valid[:, x : x + side].any()]
        for first in range(0, max(len(full), 1), grid.batch):
            chosen = full[first : first + grid.batch]
            # A compiled model needs batches of one size: the last one of a row is padded.
            count = grid.batch if runner.fixed_batch and chosen else len(chosen)
            image = np.empty((count, grid.rows.side, side, row.image.shape[2]), np.uint8)
            for window, index in zip(image, chosen, strict=False):
                window[...] = row.image[:, starts[index] : starts[index] + side]
            image[len(chosen) :] = 0
            yield _WindowBatch(row, chosen, image, first + grid.batch >= len(full))
