"""One image through the network: read ahead, predict, blend, write behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from geoprep.errors import ImageError
from geoprep.executors import usable_cores
from training.checkpoint import Facts
from training.prediction.blend import Strip
from training.prediction.cog.tiles import Shape
from training.prediction.cog.writer import MapWriter
from training.prediction.flow import ahead
from training.prediction.journal import Journal
from training.prediction.network import Predictor
from training.prediction.product import Recipe, map_tags, signature
from training.prediction.reader import Band, read_bands
from training.prediction.source import Source, find_limits
from training.prediction.windows import Axis, plan_axis, plan_batch

Report = Callable[[int], None]
"""Called with how many of the plan's pixels are done with."""

_BANDS_AHEAD = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """How an image is cut into windows and batches.

    Attributes
    ----------
    rows, columns
        The windows.
    batch
        Windows in a batch.
    """

    rows: Axis
    columns: Axis
    batch: int

    @classmethod
    def of(cls, source: Source, recipe: Recipe, batch: int) -> Plan:
        """Return the plan of an image."""
        columns = plan_axis(source.width, recipe.window, recipe.overlap)
        rows = plan_axis(source.height, recipe.window, recipe.overlap)
        # As many pixels in a batch, whatever the windows of a small image.
        fitting = max(1, round(batch * recipe.window**2 / (rows.side * columns.side)))
        return cls(rows, columns, plan_batch(len(columns.starts), fitting))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Windows, rows and columns of a batch: what a network is compiled for."""
        return self.batch, self.rows.side, self.columns.side

    @property
    def window_pixels(self) -> int:
        """Of one window."""
        return self.rows.side * self.columns.side

    @property
    def pixels(self) -> int:
        """Of all windows together."""
        return len(self.rows.starts) * len(self.columns.starts) * self.window_pixels


@dataclass(slots=True)
class Work:
    """What it took to map an image.

    Attributes
    ----------
    image_pixels
        Of the network's grid, mapped in this run.
    network_pixels
        Put through the network in this run, once for each view.
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
    note
        For people; may be empty.
    """

    image_pixels: int = 0
    network_pixels: int = 0
    seconds: float = 0.0
    forward_seconds: float = 0.0
    first_seconds: float = 0.0
    continued: bool = False
    compiled: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Mapper:
    """Maps images with one network and one recipe.

    Attributes
    ----------
    predictor
        The network.
    facts
        Of its checkpoint.
    recipe
        How.
    batch
        Windows of the usual size in a batch.
    """

    predictor: Predictor
    facts: Facts
    recipe: Recipe
    batch: int

    def run(self, source: Source, target: Path, compiled: bool, report: Report) -> Work:
        """Write the map of an image, going on where a killed run left off.

        Parameters
        ----------
        source
            The image.
        target
            The GeoTIFF; its folder exists.
        compiled
            Whether to compile the network, unless that was settled by an earlier run.
        report
            Told of the progress.

        Raises
        ------
        ImageError
            The image is damaged.
        UsageError
            Another process writes this map.
        """
        started = time.perf_counter()
        work = Work()
        identity = signature(source, self.recipe) | {"batch": self.batch}
        with Journal(target, identity) as journal:
            work.continued = journal.continued
            if not journal.continued:
                limits, work.note = find_limits(source, self.facts, self.recipe.wishes.rescale)
                journal.settle(limits=limits.tolist(), compiled=compiled)
            work.compiled = bool(journal.settled["compiled"])
            try:
                self._map(source, target, journal, work, report)
            except ImageError:
                journal.remove()  # a mended image is another one
                raise
            journal.remove()
        work.seconds = time.perf_counter() - started
        return work

    def _map(
        self, source: Source, target: Path, journal: Journal, work: Work, report: Report
    ) -> None:
        plan = Plan.of(source, self.recipe, self.batch)
        limits = np.array(journal.settled["limits"])
        has_speed = bool(self.facts.class_mph)
        shape = Shape(self.predictor.channels + has_speed, source.height, source.width)
        speed_band = shape.bands - 1 if has_speed else None
        compression = self.recipe.compression
        with MapWriter(journal, shape, compression, speed_band) as writer:
            first = plan.rows.first_touching(writer.next_row)
            if writer.next_row < source.height:
                bands = read_bands(source, limits, plan.rows, plan.columns, first)
                with ahead(bands, _BANDS_AHEAD) as coming, self._strip(plan) as strip:
                    painter = _Painter(self.predictor, plan, writer, strip, work.compiled)
                    for band in coming:
                        painter.paint(band, work, report)
            report(plan.pixels)
            writer.finish(target, map_tags(source, self.facts, self.recipe))

    def _strip(self, plan: Plan) -> Strip:
        channels, mph = self.predictor.channels, self.facts.class_mph
        return Strip(plan.rows, plan.columns, channels, mph, self.recipe.threshold, usable_cores())


class _Painter:
    """Takes one row of windows after the other from pixels to the writer."""

    def __init__(
        self,
        predictor: Predictor,
        plan: Plan,
        writer: MapWriter,
        strip: Strip,
        compiled: bool,
    ) -> None:
        self._predictor = predictor
        self._plan = plan
        self._writer = writer
        self._strip = strip
        self._compiled = compiled

    def paint(self, band: Band, work: Work, report: Report) -> None:
        """Predict a row of windows; hand on the rows of the map that it completes."""
        columns = self._plan.columns
        full = [
            i
            for i, start in enumerate(columns.starts)
            if band.valid[:, start : start + columns.side].any()
        ]
        for i in range(0, len(full), self._plan.batch):
            chosen = full[i : i + self._plan.batch]
            predicted = self._predict(band, chosen, work)
            self._strip.add(band.row, chosen, predicted, band.valid)
            report((band.row * len(columns.starts) + chosen[-1] + 1) * self._plan.window_pixels)
        top, done = self._plan.rows.starts[band.row], self._plan.rows.finished(band.row)
        # Rows that an earlier run has written are done once more only for what fades into the next.
        skipped = max(0, self._writer.next_row - top)
        count = done - top
        if count > skipped:
            found = self._strip.take(band.row, count, band.valid)[:, skipped:]

            def fill(rows: slice, out: NDArray[np.uint8]) -> None:
                out[...] = found[:, rows]

            self._writer.put(count - skipped, fill)
            work.image_pixels += found[0].size
        self._strip.drop(band.row, count)

    def _predict(self, band: Band, chosen: list[int], work: Work) -> NDArray[np.float32]:
        """Return fp32 (n, y, x, channel) for some windows of a band."""
        starts, side = self._plan.columns.starts, self._plan.columns.side
        # The last batch of a row is filled up where the network is compiled for one size.
        count = self._plan.batch if self._compiled else len(chosen)
        image = np.zeros((count, band.image.shape[0], side, band.image.shape[2]), np.uint8)
        for window, index in zip(image, chosen, strict=False):
            window[...] = band.image[:, starts[index] : starts[index] + side]
        began = time.perf_counter()
        tensor = torch.from_numpy(image).permute(0, 3, 1, 2)
        result = self._predictor(tensor, compiled=self._compiled)
        predicted: NDArray[np.float32] = result[: len(chosen)].cpu().numpy()
        seconds = time.perf_counter() - began
        if not work.forward_seconds:
            work.first_seconds = seconds
        work.forward_seconds += seconds
        work.network_pixels += len(chosen) * self._plan.window_pixels * self._predictor.views
        return predicted
