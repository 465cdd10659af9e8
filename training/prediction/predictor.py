"""Predict one image: windows through the model, while others are read, blended and written."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from geoprep.cog.spool import Shape
from geoprep.cog.writer import CogWriter
from geoprep.cpus import usable_cpus
from geoprep.errors import UsageError
from geoprep.imagery.band_names import parse_bands
from loaders import has_streams
from training.checkpoint import ModelInfo
from training.prediction.area import read_area
from training.prediction.device import Device
from training.prediction.device_check import check_device
from training.prediction.host import Host
from training.prediction.images import ImageSource, look, scene_rows
from training.prediction.journal import WriteJournal
from training.prediction.predict_options import PredictOptions, known_limits
from training.prediction.prediction_tags import band_names, tiff_tags
from training.prediction.window_rows import WindowRow, WindowRows, prefetched
from training.prediction.windows import WindowGrid, window_grid
from training.runners.decoding import CLASS_BAND, SPEED_BAND
from training.runners.runner import VIEWS, Runner, average_views

FORMAT = 3
"""Version of predictions: bands, how probabilities become speeds, and what identifies an image."""

READING = ("gsd", "grid", "bands", "rescale", "nodata", "allow_no_crs", "pixel_size")
"""Options that the pixels of an image depend on, as the model sees them."""

Output = tuple[Any, float]
"""Probabilities, float32 (n, y, x, channel), and the seconds that they took."""

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
    discarded: bool = False  # whether it replaced one of other options, or of another device
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
    on_host: Callable[[], Runner] | None = None  # the model for the host, if it runs on a device
    checked: set[str] = field(default_factory=set, compare=False)  # runners found right

    def grid(self, source: ImageSource) -> WindowGrid:
        """Return the windows over an image."""
        options = self.options
        grid = window_grid(
            source.height, source.width, options.window, options.overlap, options.batch_size or 1
        )
        return grid if source.area is None else grid.around(source.area, source.scales)

    def network_pixels(self, source: ImageSource) -> int:
        """Return how many pixels of an image go through the model."""
        return self.grid(source).pixels * len(VIEWS[self.options.tta])

    def signature(self, name: str, version: str, runner: Runner) -> dict[str, Any]:
        """Return everything that a prediction's pixels depend on, as plain JSON."""
        options, limits = self.options, known_limits(self.info, self.options.rescale)
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
        DeviceError
            The device of the runner computes something else than the host.
        """
        began = time.perf_counter()
        signed = self.signature(source.name, source.version, runner)
        if not source.resampled:  # both grids are one
            del signed["grid"]
        place = Device(runner.device) if has_streams(runner.device) else Host()
        # Of a part on another device, or of the other blender, the last bits may differ.
        own = {"batch": self.options.batch_size, "device": runner.device.type}
        own["blender"] = place.blends
        with WriteJournal(target, signed | own) as journal:
            continued = journal.continued
            try:
                mask = journal.folder / "valid.bits"
                reader = scene_rows(source, mask, ahead=place.decoders > 1)
                if not continued:
                    journal.settle(limits=look(source, reader, mask, place.count).tolist())
                info, names = self.info, self._bands
                shape = Shape(len(names), *source.shape)
                by_mode = [CLASS_BAND if info.has_classes else SPEED_BAND]
                by_mode *= info.has_classes or bool(info.class_mph)
                how = self.options.compress, by_mode, place.halve
                with CogWriter(
                    *(shape, *how),
                    open_file=journal.open_tiles,
                    written=journal.rows,
                    record=journal.add_row,
                ) as writer:
                    limits = np.array(journal.settled["limits"])
                    reading = WindowRows(source, reader, limits, self.grid(source), place)
                    # A device has memory for the rows of one image; the host prepares the next one.
                    with runner.turns if isinstance(place, Device) else nullcontext():
                        self._check_device(reading, runner)
                        stats = self._write_rows(reading, writer, runner, progress)
                    source.require_unchanged()
                    writer.finish(journal.whole, tiff_tags(source, info, names, signed))
                    journal.deliver()
            except OSError:
                raise  # such as a full disk: the next run resumes
            except Exception:
                journal.remove()
                raise
            journal.remove()
        stats.continued, stats.began, stats.discarded = continued, began, journal.discarded
        stats.seconds = time.perf_counter() - began
        return stats

    def _check_device(self, reading: WindowRows, runner: Runner) -> None:
        """Compare a window of a runner on a device with the host's, once; see `check_device`."""
        if self.on_host is None or runner.compiled or runner.description in self.checked:
            return
        how = self.info, self.options, self.threshold, self.spread
        on_device, on_host = (partial(self._forward, of) for of in (runner, self.on_host()))
        if check_device(reading, how, on_device, on_host):
            self.checked.add(runner.description)

    def _write_rows(
        self,
        reading: WindowRows,
        writer: CogWriter,
        runner: Runner,
        progress: ProgressCallback,
    ) -> PredictStats:
        """Predict and write all rows that are not written yet."""
        source, grid, place = reading.source, reading.grid, reading.place
        stats, views = PredictStats(), len(VIEWS[self.options.tta])
        channels, bands = self.info.channels + self.spread, len(self._bands)
        how = self.info, self.options, self.threshold, self.spread
        convert: Callable[..., Any] | None = place.to_bytes(*how)
        top, left, bottom, right = source.extent
        wide = round((right - left) / (source.scales[1] if source.on_image else 1))
        # Of the rows that are written or given to the writer, and of all
        end, stop, back = top + writer.next_row, bottom, None
        pool = ThreadPoolExecutor(usable_cpus(), "predict-image")
        if source.on_image:
            back = place.image_rows(source, bands, convert, pool, end)
            end, stop, convert = back.first_needed, back.last_needed, None
        first = grid.rows.first_touching(end)
        stop = sum(s < stop for s in grid.rows.starts) if top + writer.next_row < bottom else first
        with (
            pool,
            closing(prefetched(reading.read(first, stop))) as rows,
            place.blender(grid, channels, bands, convert) as blender,
            closing(
                self._outputs(_batches(rows, grid, place), grid, runner, place, stats)
            ) as outputs,
            place.downloads(writer) as finished,
        ):
            for (row, columns, is_last), probabilities in outputs:
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
                        finished.put(part)
                    stats.image_pixels += max(0, high - low) * wide
                    end = max(end, high)
        stats.lost = int(back.lost if back else blender.lost)
        stats.at_ends = int(reading.ends) / max(int(reading.values), 1)
        stats.forward_seconds += sum(a.elapsed_time(b) for a, b in place.timings) / 1000
        progress(grid.pixels)
        return stats

    @property
    def _bands(self) -> list[str]:
        return band_names(self.info, self.options, spread=self.spread)

    def _outputs(
        self,
        batches: Iterator[_WindowBatch],
        grid: WindowGrid,
        runner: Runner,
        place: Host | Device,
        stats: PredictStats,
    ) -> Generator[tuple[_WindowBatch, Any], None, None]:
        """Yield batches with the model's output, in order.

        1. On an accelerator a batch is queued, and its output is there when all before it is done.
        2. A runner that takes several at once is called by as many threads; one batch more waits.
        3. Others compute a batch when it is waited for.
        """
        forward, ahead = partial(self._forward, runner), 0
        pool = ThreadPoolExecutor(runner.at_once, "predict-model")

        def on_host(image: Any) -> Output:  # noqa: ANN401 - an array
            with runner.turns:
                began = time.perf_counter()
                output = forward(torch.from_numpy(image)).cpu().numpy()
                return output, time.perf_counter() - began

        def start(batch: _WindowBatch) -> Callable[[], Output]:
            if not batch.columns:
                return lambda: (np.zeros(0, np.float32), 0.0)
            # A compiled model needs batches of one size: the last one of a row is padded.
            count = grid.batch if runner.fixed_batch else 0
            windows = place.windows(batch.row, batch.columns, grid, count)
            if isinstance(place, Device):
                return partial(lambda output: (output, 0.0), place.timed(forward, windows))  # 1
            if ahead:
                return pool.submit(on_host, windows).result  # 2
            return partial(on_host, windows)  # 3

        if isinstance(place, Host) and runner.at_once > 1:
            ahead = runner.at_once + 1
        waiting = deque[tuple[_WindowBatch, Callable[[], Output]]]()

        def oldest() -> tuple[_WindowBatch, Any]:
            batch, wait = waiting.popleft()
            output, seconds = wait()
            stats.forward_seconds += seconds / runner.at_once
            return batch, output

        try:
            for batch in batches:
                waiting.append((batch, start(batch)))
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


class _WindowBatch(NamedTuple):
    """Windows of one row."""

    row: WindowRow
    columns: Sequence[int]  # index of each window in the row; none: the row has no imagery
    last: bool  # the row has no further batch


def _batches(
    rows: Iterable[WindowRow], grid: WindowGrid, place: Host | Device
) -> Iterator[_WindowBatch]:
    """Yield the windows that have imagery; a row without any is one empty batch."""
    for row in rows:
        place.receive(row)
        for first in range(0, max(len(row.full), 1), grid.batch):
            chosen = row.full[first : first + grid.batch]
            yield _WindowBatch(row, chosen, first + grid.batch >= len(row.full))
