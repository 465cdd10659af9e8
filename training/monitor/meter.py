"""The loss of the steps at hand, read from the device only now and then, and where time goes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loaders import Batch
from training.losses import LossParts

PARTS = ("loss", "main", "dice")


class Reading(NamedTuple):
    """What the meter says about the batches since it was last read.

    Attributes
    ----------
    rows
        Loss, main part and dice of every batch.
    counts
        Samples in every batch.
    seconds, waited
        Wall time, and the part of it spent waiting for batches.
    bad
        Number among them of the first batch whose loss is no number; None for none.
    """

    rows: list[list[float]]
    counts: list[int]
    seconds: float
    waited: float
    bad: int | None

    @property
    def samples(self) -> int:
        """Samples in all batches."""
        return sum(self.counts)

    @property
    def loss(self) -> float:
        """Mean loss over samples."""
        total = sum(n * row[0] for n, row in zip(self.counts, self.rows, strict=True))
        return total / max(self.samples, 1)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A batch that was trained on: its loss, still on the device, and which samples it had."""

    parts: Tensor
    index: Tensor
    where: Tensor


class Meter:
    """Collects losses without waiting for the device."""

    def __init__(self) -> None:
        self._seen: list[_Seen] = []
        self._waited = 0.0
        self._since = time.perf_counter()

    def timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches, counting the time that each is waited for."""
        self._since = time.perf_counter()
        asked = time.perf_counter()
        for batch in batches:
            self._waited += time.perf_counter() - asked
            yield batch
            del batch  # or its buffer would stay taken while the next one is waited for
            asked = time.perf_counter()

    def add(self, batch: Batch, parts: LossParts) -> None:
        """Take note of a batch and its loss."""
        # Copies: the batch's own memory is filled again.
        loss = torch.stack([part.detach().float() for part in parts])
        self._seen.append(_Seen(loss, batch.index.clone(), batch.where.clone()))

    def read(self) -> Reading:
        """Wait for the device and return what came since the last reading."""
        now = time.perf_counter()
        rows = torch.stack([s.parts for s in self._seen]).tolist() if self._seen else []
        counts = [len(s.index) for s in self._seen]
        bad = next((i for i, row in enumerate(rows) if not math.isfinite(row[0])), None)
        reading = Reading(rows, counts, now - self._since, self._waited, bad)
        if bad is None:
            self._seen = []
        self._waited, self._since = 0.0, now
        return reading

    def write_bad(self, path: Path, bad: int, about: dict[str, Any]) -> None:
        """Write which samples the bad batch had, as JSON.

        Parameters
        ----------
        path
            Of the file.
        bad
            Number of the batch, from the last reading.
        about
            What else to write.
        """
        seen = self._seen[bad]
        values = dict(zip(PARTS, map(str, seen.parts.tolist()), strict=True))
        where = {"tile": seen.index.tolist(), "row, column, symmetry": seen.where.tolist()}
        path.write_text(json.dumps(about | values | where, indent=2) + "\n", encoding="utf-8")
