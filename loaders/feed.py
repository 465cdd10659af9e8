"""What feeds a loader: the batches of the steps of an epoch, by each kind of tiles in its way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from loaders.ahead import Ahead
from loaders.batch import Batch, Ring, batch_of, block_bytes, put_windows
from loaders.gather import as_items, gather
from loaders.sampling import Sampling, Windows
from loaders.schedule import Schedule, Step

_STEPS_DRAWN = 16
"""Steps whose windows are drawn at once."""


class Feed(Protocol):
    """What a kind of tiles gives to a loader."""

    def batches(self, epoch: int, steps: Sequence[Step]) -> Iterator[Batch]:
        """Return an iterator over the batch of every step."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a loader asks of tiles.

    Attributes
    ----------
    sampling
        What an epoch consists of, in the order that the tiles gave it.
    schedule
        Which positions this rank takes.
    bands
        Of the images.
    threads
        That fill batches.
    prefetch
        Batches filled ahead.
    pinned
        Whether batches are page-locked.
    """

    sampling: Sampling
    schedule: Schedule
    bands: int
    threads: int
    prefetch: int
    pinned: bool

    def ring(self) -> Ring:
        """Return buffers for the batches."""
        nbytes = block_bytes(self.schedule.batch_size, self.sampling.window, self.bands)
        # In work or waiting, with the one that the loop gets next: prefetch + 1. And what it has.
        return Ring(nbytes, self.prefetch + 2, pinned=self.pinned)

    def take(self, ring: Ring, samples: int) -> Batch:
        """Return a batch of so many samples, with whatever its buffer held before."""
        return batch_of(ring.take(), samples, self.sampling.window, self.bands)


class Drawn:
    """The windows of every step, drawn for a few steps at once.

    To draw those of a thousand samples takes little longer than those of ten, and between two
    batches, which have driven all else out of the caches, everything takes long.

    Parameters
    ----------
    sampling, epoch
        What to draw from.
    steps
        Of this epoch.
    """

    def __init__(self, sampling: Sampling, epoch: int, steps: Sequence[Step]) -> None:
        self._sampling, self._epoch, self._steps = sampling, epoch, steps
        self._order = sampling.order(epoch)
        self._last: tuple[int, Windows, list[int]] | None = None

    def __call__(self, i: int) -> Windows:
        """Return the windows of step number ``i``; any thread may ask."""
        part, within = divmod(i, _STEPS_DRAWN)
        last = self._last  # one look: another thread may put the next in its place
        if last is None or last[0] != part:
            last = self._last = self._draw(part)
        _, windows, bounds = last
        return windows.rows(bounds[within], bounds[within + 1])

    def _draw(self, part: int) -> tuple[int, Windows, list[int]]:
        steps = self._steps[part * _STEPS_DRAWN :][:_STEPS_DRAWN]
        samples = np.concatenate([self._order[step.positions] for step in steps])
        bounds = list(accumulate((step.size for step in steps), initial=0))
        return part, self._sampling.windows(self._epoch, samples), bounds


class HostFeed:
    """Batches from arrays in memory, each filled as a whole by one of several threads.

    Parameters
    ----------
    image
        uint8 (tile, y, x, band).
    speed
        uint8 (tile, y, x).
    request
        What is wanted.
    """

    def __init__(
        self, image: NDArray[np.uint8], speed: NDArray[np.uint8], request: Request
    ) -> None:
        self._image = as_items(image)
        self._speed = speed
        self._request = request
        self._ring = request.ring()

    def batches(self, epoch: int, steps: Sequence[Step]) -> Iterator[Batch]:
        """Return an iterator over the batch of every step, filled ahead."""
        request, drawn = self._request, Drawn(self._request.sampling, epoch, steps)

        def fill(step: int) -> Batch:
            windows = drawn(step)
            batch = request.take(self._ring, len(windows))
            copy_windows(self._image, self._speed, windows, batch)
            put_windows(batch, windows)
            return batch

        return Ahead(fill, range(len(steps)), threads=request.threads, ahead=request.prefetch)


def copy_windows(
    image: NDArray[Any],
    speed: NDArray[np.uint8],
    windows: Windows,
    batch: Batch,
    rows: slice = slice(None),
) -> None:
    """Copy windows of tiles into rows of a batch on the host.

    Parameters
    ----------
    image
        Items (tile, y, x), from `as_items`.
    speed
        uint8 (tile, y, x).
    windows
        Which.
    batch
        Written.
    rows
        Which of its samples the windows are.
    """
    out = as_items(batch.image.numpy().transpose(0, 2, 3, 1))
    gather(image, windows, out[rows])
    gather(speed, windows, batch.speed.numpy()[rows])
