"""Windows faded into each other, one row of them in memory at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.prediction.pixels import to_bytes
from training.prediction.windows import Axis


class Strip:
    """Weighted sums under one row of windows.

    Holds ``rows.side`` rows of the image and no more, whatever the image's height.

    Parameters
    ----------
    rows, columns
        The windows along both axes.
    channels
        Of the network.
    device
        Where the sums are kept.
    """

    def __init__(
        self, rows: Axis, columns: Axis, channels: int, device: torch.device | str = "cpu"
    ) -> None:
        self._rows, self._columns = rows, columns
        shape = (rows.side, columns.covered * channels)
        self._sums = torch.zeros(shape, dtype=torch.float32, device=device)
        self._channels = channels
        self._down = torch.from_numpy(rows.weights).to(device)
        across = np.repeat(columns.weights, channels, axis=1)
        self._across = torch.from_numpy(across).to(device)

    @property
    def rows_held(self) -> int:
        """Rows of sums in memory."""
        return len(self._sums)

    def add(self, row: int, columns: list[int], probabilities: Tensor) -> None:
        """Add windows of one row.

        Parameters
        ----------
        row
            Index of the row of windows.
        columns
            Index of each window in it.
        probabilities
            float32 (n, y, x, channel), contiguous; multiplied in place.
        """
        flat = probabilities.flatten(2)
        flat.mul_(self._across[columns][:, None, :])
        down = self._down[row][:, None]
        for column, window in zip(columns, flat, strict=True):
            start = self._columns.starts[column] * self._channels
            self._sums[:, start : start + window.shape[1]].addcmul_(window, down)

    def take(self, count: int) -> NDArray[np.float32]:
        """Return float32 (count, x, channel), the first rows; valid until `drop`."""
        sums = self._sums[:count].view(count, -1, self._channels)
        taken: NDArray[np.float32] = sums[:, : self._columns.length].cpu().numpy()
        return taken

    def drop(self, count: int) -> None:
        """Move all rows up by ``count``, and begin the freed ones at zero."""
        kept = self._sums[count:]
        # A copy in between only where both overlap, which copy_ does not allow.
        self._sums[: len(kept)] = kept.clone() if len(kept) > count else kept
        self._sums[len(kept) :] = 0


class Finisher:
    """Sums -> bytes, with a few threads.

    Parameters
    ----------
    class_mph
        Speed of each class channel; empty for no speed band.
    threshold
        Least probability of a road.
    threads
        How many.
    """

    def __init__(self, class_mph: tuple[float, ...], threshold: float, threads: int) -> None:
        self._mph = np.array(class_mph, np.float32)
        self._threshold = threshold
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "predict-finish")

    def __call__(
        self, sums: NDArray[np.float32], valid: NDArray[np.uint8], out: NDArray[np.uint8]
    ) -> None:
        """Write ``out``, uint8 (band, y, x); see `training.prediction.pixels.to_bytes`."""
        cuts = np.linspace(0, len(sums), self._threads + 1).astype(int)

        def part(i: int) -> None:
            rows = slice(cuts[i], cuts[i + 1])
            to_bytes(sums[rows], valid[rows], self._mph, self._threshold, out[:, rows])

        list(self._pool.map(part, range(self._threads)))

    def __enter__(self) -> Finisher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()
