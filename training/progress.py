"""Where a run is, apart from weights: counters, sums of the running epoch, results so far."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from training.monitor.meter import PARTS, Reading


@dataclass(slots=True)
class Progress:
    """Counters of a run, which a checkpoint keeps.

    Attributes
    ----------
    epoch
        The epoch that runs, or is next; counted over all stages, from 0.
    step
        Optimizer steps done.
    best, best_epoch
        Best validation road IoU of this stage, and its epoch; not a number and -1 for none.
    sums, samples
        Of loss, main part and dice over the samples of the running epoch.
    seconds
        Wall time of training, over all starts.
    history
        One row an epoch, as in metrics.csv.
    """

    epoch: int = 0
    step: int = 0
    best: float = math.nan
    best_epoch: int = -1
    sums: list[float] = field(default_factory=lambda: [0.0] * len(PARTS))
    samples: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)

    def add(self, reading: Reading) -> None:
        """Add what was read to the running epoch, batch by batch.

        So the sums are the same to the bit, whenever they were read.
        """
        for count, row in zip(reading.counts, reading.rows, strict=True):
            self.sums = [total + count * part for total, part in zip(self.sums, row, strict=True)]
            self.samples += count
        self.seconds += reading.seconds

    def close_epoch(self, row: dict[str, float]) -> None:
        """Go on to the next epoch; ``row`` joins the history."""
        self.history.append(row)
        self.epoch += 1
        self.sums, self.samples = [0.0] * len(PARTS), 0

    def is_best(self, road_iou: float) -> bool:
        """Take note of a result; return whether it is the best of its stage so far."""
        if not math.isnan(self.best) and not road_iou > self.best:
            return False
        self.best, self.best_epoch = road_iou, self.epoch
        return True

    def forget_best(self) -> None:
        """Begin a stage: figures at another resolution do not compare."""
        self.best, self.best_epoch = math.nan, -1

    def to_plain(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Self:
        """Return what `to_plain` made plain."""
        return cls(**values)
