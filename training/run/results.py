"""Results of steps that are still on the device, and the figures of an epoch."""

from __future__ import annotations

import math
import time

import torch

from geoprep.texts import counted
from training.checkpoint import RunProgress
from training.engine.distributed import sum_over_ranks
from training.run.report import Pace, Report
from training.run.step import StepResult

PARTS = ("loss", "main", "dice")


class Results:
    """Collects the results of steps; reading them waits for the device."""

    def __init__(self, progress: RunProgress, report: Report) -> None:
        self._progress, self._report = progress, report
        self._pending: list[StepResult] = []
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Measure the pace from now on."""
        self._pace, self._since = Pace(), time.perf_counter()

    def append(self, result: StepResult) -> None:
        """Add the result of a step, without a wait."""
        self._pending.append(result)

    def read(self) -> tuple[float, Pace]:
        """Wait for the device, add pending steps to the epoch; return their loss and pace."""
        taken, self._pending, progress = self._pending, [], self._progress
        applied = [step.check(ago=len(taken) - number) for number, step in enumerate(taken)]
        if skipped := applied.count(False):
            progress.skipped += skipped
            self._report.line(
                f"{counted(skipped, 'step')} before step {progress.step + 1} skipped, with an "
                "overflow of fp16 in the gradient; the loss is scaled less from then on"
            )
        losses = [loss for step in taken for loss in step.losses]
        counts = [count for step in taken for count in step.counts]
        rows = torch.stack(losses).tolist() if losses else []
        begun, self._since = self._since, time.perf_counter()
        pace = Pace(sum(counts), self._since - begun, sum(step.waited for step in taken))
        self._pace = Pace(*map(sum, zip(self._pace, pace, strict=True)))
        progress.add(rows)
        labelled = sum(row[3] for row in rows)
        return sum(row[0] * row[3] for row in rows) / labelled if labelled else math.nan, pace

    def of_epoch(self, device: torch.device) -> dict[str, float]:
        """Return mean losses of the epoch over all ranks, and its pace."""
        progress = self._progress
        *sums, labelled = sum_over_ranks([*progress.sums, progress.labelled], device)
        means = (part / labelled if labelled else math.nan for part in sums)
        return dict(zip(PARTS, means, strict=True)) | self._pace.figures()
