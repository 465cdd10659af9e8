"""One image through a network: read ahead, predict, blend, write behind."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.executors import usable_cores
from training.checkpoint import Facts
from training.prediction.blend import SPEED_BAND, RowBlender
from training.prediction.cog.journal import Journal
from training.prediction.cog.tiles import Shape
from training.prediction.cog.writer import MapWriter
from training.prediction.images import Source, known_limits, scene_limits
from training.prediction.product import MapOptions, map_tags, signature
from training.prediction.reader import WindowRow, ahead, read_window_rows
from training.prediction.runner import VIEWS, Runner, mean_of_views
from training.prediction.windows import WindowGrid

Report = Callable[[int], None]
"""Called with how many pixels of the windows are done with."""


@dataclass(slots=True)
class MapStats:
    """What it took to map an image.

    Attributes
    ----------
    image_pixels
        Of the network's grid, mapped in this run.
    network_pixels
        Put through the network, in every view.
    seconds
        From opening it to the finished file.
    forward_seconds
        Of them, in the network.
    first_seconds
        Of these, in the first batch, which may have been compiled.
    continued
        Whether another run had begun it.
    compiled
        Whether the network was.
    lost
        Pixels for which the network gave something else than a number.
    """

    image_pixels: int = 0
    network_pixels: int = 0
    seconds: float = 0.0
    forward_seconds: float = 0.0
    first_seconds: float = 0.0
    continued: bool = False
    compiled: bool = False
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Mapper:
    """Maps images with the same options.

    Attributes
    ----------
    facts
        What the network is for.
    options
        How maps are made.
    """

    facts: Facts
    options: MapOptions

    def grid(self, source: Source) -> WindowGrid:
        """Return the windows over an image."""
        options = self.options
        return WindowGrid.over(
            source.height, source.width, options.window, options.overlap, options.batch
        )

    def network_pixels(self, source: Source) -> int:
        """Return how many pixels of an image go through the network."""
        return self.grid(source).pixels * len(VIEWS[self.options.tta])

    def run(self, source: Source, target: Path, runner: Runner, report: Report) -> MapStats:
        """Write the map of an image, going on where a killed run left off.

        Parameters
        ----------
        source
            As `training.prediction.images.inspect` returns it.
        target
            The GeoTIFF; its folder exists.
        runner
            The network.
        report
            Told of the progress.

        Raises
        ------
        ImageError
            The image is damaged.
        UsageError
            Another process writes this map, or the network returns something else than
            probabilities of the channels it is said to have.
        """
        started = time.perf_counter()
        signed = signature(source.name, source.version, self.facts, self.options, runner)
        with Journal(target, signed | {"batch": self.options.batch}) as journal:
            stats = MapStats(continued=journal.continued, compiled=runner.fixed_batch)
            try:
                if not journal.continued:
                    limits = known_limits(self.facts, self.options.reading.rescale)
                    journal.settle(
                        limits=(scene_limits(source) if limits is None else limits).tolist()
                    )
                with self._writer(source, journal) as writer:
                    self._write(source, journal, writer, runner, stats, report)
                    writer.finish(target, map_tags(source, self.facts, self.options, signed))
            except OSError:
                raise  # such as a full disk: what is done is taken up again
            except Exception:
                journal.remove()
                raise
            journal.remove()
        stats.seconds = time.perf_counter() - started
        return stats

    def _writer(self, source: Source, journal: Journal) -> MapWriter:
        has_speed = bool(self.facts.class_mph)
        shape = Shape(self.facts.channels + has_speed, source.height, source.width)
        speed_band = SPEED_BAND if has_speed else None
        return MapWriter(journal, shape, self.options.compression, speed_band)

    def _write(
        self,
        source: Source,
        journal: Journal,
        writer: MapWriter,
        runner: Runner,
        stats: MapStats,
        report: Report,
    ) -> None:
        """Put all rows of the map that are still to come."""
        grid = self.grid(source)
        if writer.next_row < source.height:
            first = grid.rows.first_touching(writer.next_row)
            limits = np.array(journal.settled["limits"])
            rows = read_window_rows(source, limits, grid.rows, grid.columns, first)
            with (
                closing(ahead(rows)) as coming,
                self._blender(grid) as blender,
                closing(self._answers(_batches(coming, grid, runner), runner)) as answers,
            ):
                for batch, answer in answers:
                    self._blend(batch, answer, grid, blender, stats, report)
                    if batch.last:
                        _put(batch.row, grid, blender, writer, stats)
                stats.lost = blender.lost
        report(grid.pixels)

    def _blender(self, grid: WindowGrid) -> RowBlender:
        return RowBlender(
            grid.rows,
            grid.columns,
            self.facts.channels,
            self.facts.class_mph,
            self.options.threshold,
            usable_cores(),
        )

    def _answers(
        self, batches: Iterator[_Batch], runner: Runner
    ) -> Generator[tuple[_Batch, _Answer], None, None]:
        """Yield batches with what the network says of them, in order."""
        count = runner.at_once
        if count == 1:
            for batch in batches:
                yield batch, self._forward(batch, runner)
            return
        pool, waiting = ThreadPoolExecutor(count, "predict-network"), deque[_Waiting]()
        try:
            for batch in batches:
                waiting.append((batch, pool.submit(self._forward, batch, runner)))
                # One that no thread has begun with, for when the first of them is done.
                if len(waiting) > count + 1:
                    yield _finished(waiting)
            while waiting:
                yield _finished(waiting)
        finally:
            pool.shutdown(cancel_futures=True)

    def _forward(self, batch: _Batch, runner: Runner) -> _Answer:
        began = time.perf_counter()
        image = batch.image
        windows = torch.from_numpy(image).permute(0, 3, 1, 2)
        wanted = (*image.shape[:3], self.facts.channels)
        if not len(image):
            return _Answer(np.zeros(wanted, np.float32), 0.0)
        result = mean_of_views(runner, windows, self.options.tta)
        found: NDArray[np.float32] = result.cpu().numpy()
        if found.shape != wanted:
            raise UsageError(
                f"the network {self.facts.network} returns {found.shape} for {len(image)} windows, "
                f"not {wanted} (window, y, x, channel): its factory does not fit the checkpoint"
            )
        return _Answer(found, (time.perf_counter() - began) / runner.at_once)

    def _blend(
        self,
        batch: _Batch,
        answer: _Answer,
        grid: WindowGrid,
        blender: RowBlender,
        stats: MapStats,
        report: Report,
    ) -> None:
        """Add the windows of a batch to the map."""
        row, columns = batch.row, batch.columns
        stats.first_seconds = stats.first_seconds or answer.seconds
        stats.forward_seconds += answer.seconds
        if columns:
            blender.add(row.number, columns, answer.probabilities[: len(columns)], row.valid)
            stats.network_pixels += len(columns) * grid.window_pixels * len(VIEWS[self.options.tta])
            report((row.number * len(grid.columns.starts) + columns[-1] + 1) * grid.window_pixels)


class _Batch(NamedTuple):
    """Windows of one row, their columns, uint8 (n, y, x, band), and whether no more follow."""

    row: WindowRow
    columns: list[int]
    image: NDArray[np.uint8]
    last: bool


class _Answer(NamedTuple):
    """fp32 (n, y, x, channel), and the seconds that it took."""

    probabilities: NDArray[np.float32]
    seconds: float


_Waiting = tuple[_Batch, Future[_Answer]]


def _finished(waiting: deque[_Waiting]) -> tuple[_Batch, _Answer]:
    batch, coming = waiting.popleft()
    return batch, coming.result()


def _batches(rows: Iterable[WindowRow], grid: WindowGrid, runner: Runner) -> Iterator[_Batch]:
    """Yield the windows that have imagery; a row without any is an empty batch."""
    starts, side = grid.columns.starts, grid.columns.side
    for row in rows:
        full = [i for i, x in enumerate(starts) if row.valid[:, x : x + side].any()]
        for first in range(0, max(len(full), 1), grid.batch):
            chosen = full[first : first + grid.batch]
            # The last batch of a row is filled up where all must have one size.
            count = grid.batch if runner.fixed_batch and chosen else len(chosen)
            image = np.zeros((count, grid.rows.side, side, row.image.shape[2]), np.uint8)
            for window, index in zip(image, chosen, strict=False):
                window[...] = row.image[:, starts[index] : starts[index] + side]
            yield _Batch(row, chosen, image, first + grid.batch >= len(full))


def _put(
    row: WindowRow, grid: WindowGrid, blender: RowBlender, writer: MapWriter, stats: MapStats
) -> None:
    """Hand on the rows of the map that a row of windows completes."""
    top = grid.rows.starts[row.number]
    count = grid.rows.finished(row.number) - top
    # Rows that an earlier run has written are done once more only for what fades into the next.
    skipped = max(0, writer.next_row - top)
    if count > skipped:
        found = blender.take(row.number, count, row.valid)[:, skipped:]

        def fill(rows: slice, out: NDArray[np.uint8]) -> None:
            out[...] = found[:, rows]

        writer.put(count - skipped, fill)
        stats.image_pixels += found[0].size
    blender.drop(row.number, count)
