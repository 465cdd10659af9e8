"""One image through a network: read ahead, predict, blend, write behind."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.executors import usable_cores
from training.checkpoint import Facts
from training.inference import VIEWS, Runner, mean_of_views
from training.prediction.blend import SPEED_BAND, RowBlender
from training.prediction.cog.journal import Journal
from training.prediction.cog.writer import MapWriter, Shape
from training.prediction.images import Source, known_limits, scene_limits
from training.prediction.options import Reading, Request, parse_bands
from training.prediction.product import map_tags
from training.prediction.windows import WindowGrid, WindowRow, ahead, read_window_rows

FORMAT = 2
"""Of maps: what each band holds, and how probabilities become speeds."""

Report = Callable[[int], None]
"""Called with how many pixels of the windows are done with."""

Limits = NDArray[np.float64]


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
        How images are read and mapped.
    threshold
        Least probability of any road for a speed.
    checkpoint
        Hash of its file, and which weights of it.
    """

    facts: Facts
    options: Request
    threshold: float
    checkpoint: str

    def grid(self, source: Source) -> WindowGrid:
        """Return the windows over an image."""
        options = self.options
        return WindowGrid.over(
            source.height, source.width, options.window, options.overlap, options.batch_size
        )

    def network_pixels(self, source: Source) -> int:
        """Return how many pixels of an image go through the network."""
        return self.grid(source).pixels * len(VIEWS[self.options.tta])

    def signature(self, name: str, version: str, runner: Runner) -> dict[str, Any]:
        """Return what tells one map from another of the same name, as plain JSON.

        All that its pixels depend on is in it.

        Parameters
        ----------
        name, version
            Of the image, see `training.prediction.images.Source`.
        runner
            The network.
        """
        options = self.options
        limits = known_limits(self.facts, options.rescale)
        return {
            "format": FORMAT,
            "checkpoint": self.checkpoint,
            "window": options.window,
            "overlap": options.overlap,
            "tta": options.tta,
            "threshold": self.threshold,
            "compression": options.compress,
            **{item.name: getattr(options, item.name) for item in fields(Reading)},
            "bands": list(parse_bands(options.bands)),
            "limits": "scene" if limits is None else limits.tolist(),
            **runner.identity,
            "image": [name, version],
        }

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
        signed = self.signature(source.name, source.version, runner)
        with Journal(target, signed | {"batch": self.options.batch_size}) as journal:
            continued = journal.continued
            try:
                if not continued:
                    limits = known_limits(self.facts, self.options.rescale)
                    limits = scene_limits(source) if limits is None else limits
                    journal.settle(limits=limits.tolist())
                has_speed = bool(self.facts.class_mph)
                shape = Shape(self.facts.channels + has_speed, source.height, source.width)
                speed_band = SPEED_BAND if has_speed else None
                with MapWriter(journal, shape, self.options.compress, speed_band) as writer:
                    limits = np.array(journal.settled["limits"])
                    stats = self._write_rows(source, limits, writer, runner, report)
                    writer.finish(target, map_tags(source, self.facts, signed))
            except OSError:
                raise  # such as a full disk: what is done is taken up again
            except Exception:
                journal.remove()
                raise
            journal.remove()
        stats.continued, stats.compiled = continued, runner.fixed_batch
        stats.seconds = time.perf_counter() - started
        return stats

    def _write_rows(
        self, source: Source, limits: Limits, writer: MapWriter, runner: Runner, report: Report
    ) -> MapStats:
        """Put all rows of the map that are still to come."""
        grid, stats, views = self.grid(source), MapStats(), len(VIEWS[self.options.tta])
        first = grid.rows.first_touching(writer.next_row)
        with (
            closing(ahead(read_window_rows(source, limits, grid, first))) as rows,
            RowBlender(grid, self.facts, self.threshold, usable_cores()) as blender,
            closing(self._answers(_batches(rows, grid, runner), runner)) as answers,
        ):
            for (row, columns, _, is_last), (probabilities, seconds) in answers:
                stats.first_seconds = stats.first_seconds or seconds
                stats.forward_seconds += seconds
                if columns:
                    blender.add(row, columns, probabilities[: len(columns)])
                    stats.network_pixels += len(columns) * grid.window_pixels * views
                    done = row.number * len(grid.columns.starts) + columns[-1] + 1
                    report(done * grid.window_pixels)
                if is_last:
                    # Rows that an earlier run has written are done once more only for what fades
                    # into the next.
                    skipped = max(0, writer.next_row - grid.rows.starts[row.number])
                    found = blender.take(row)[:, skipped:]
                    writer.put(found)
                    stats.image_pixels += found[0].size
        stats.lost = blender.lost
        report(grid.pixels)
        return stats

    def _answers(
        self, batches: Iterator[_Batch], runner: Runner
    ) -> Generator[tuple[_Batch, _Answer], None, None]:
        """Yield batches with what the network says of them, in order."""
        count = runner.at_once
        if count == 1:
            for batch in batches:
                yield batch, self._forward(batch, runner)
            return
        pool = ThreadPoolExecutor(count, "predict-network")
        waiting = deque[tuple[_Batch, Future[_Answer]]]()
        try:
            for batch in batches:
                waiting.append((batch, pool.submit(self._forward, batch, runner)))
                # One that no thread has begun with, for when the first of them is done.
                if len(waiting) > count + 1:
                    first, coming = waiting.popleft()
                    yield first, coming.result()
            for first, coming in waiting:
                yield first, coming.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _forward(self, batch: _Batch, runner: Runner) -> _Answer:
        began = time.perf_counter()
        image = batch.image
        wanted = (*image.shape[:3], self.facts.channels)
        if not len(image):
            return np.zeros(wanted, np.float32), 0.0
        windows = torch.from_numpy(image).permute(0, 3, 1, 2)
        found: NDArray[np.float32] = mean_of_views(runner, windows, self.options.tta).cpu().numpy()
        if found.shape != wanted:
            raise UsageError(
                f"the network {self.facts.network} returns {found.shape} for {len(image)} windows, "
                f"not {wanted} (window, y, x, channel): its factory does not fit the checkpoint"
            )
        return found, (time.perf_counter() - began) / runner.at_once


class _Batch(NamedTuple):
    """Windows of one row, their columns, uint8 (n, y, x, band), and whether no more follow."""

    row: WindowRow
    columns: list[int]
    image: NDArray[np.uint8]
    last: bool


_Answer = tuple[NDArray[np.float32], float]
"""fp32 (n, y, x, channel), and the seconds that it took."""


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
