"""How good a prediction is: counted on the device, added up over batches and ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from geoprep.errors import UsageError
from geoprep.speed import BIN_COUNT, BIN_TABLE, BIN_WIDTH_MPH, NODATA, UNKNOWN_SPEED
from training.decode import default_threshold, road_probability, speed_bin, speed_mph

CLASSES = BIN_COUNT + 1
"""No road, and the bins."""

UNIT = 256
"""Speed errors are added up as whole 1/256 mph: exact, so that the order of adding is no matter."""

STEPS = 256
"""Thresholds that are tried: k / 256."""

TARGETS = ("bins", "continuous", "binary")


class Sweep(NamedTuple):
    """Quality of the road mask at every threshold k / 256, fp64 (256,) each."""

    precision: Tensor
    recall: Tensor
    iou: Tensor


def bin_names() -> tuple[str, ...]:
    """Return the names of the per-bin results: ``iou_1-10`` ... ``iou_61+``."""
    lows = [BIN_WIDTH_MPH * i + 1 for i in range(BIN_COUNT)]
    names = [f"iou_{low}-{low + BIN_WIDTH_MPH - 1}" for low in lows[:-1]]
    return (*names, f"iou_{lows[-1]}+")


class RoadMetrics:
    """Road IoU and F1, IoU per speed bin, and the mean error of speed on road pixels.

    A pixel is what a map says of it: road from the threshold on, of the most likely bin. Pixels
    without a label do not count, nor those whose prediction is not a number. A bin that neither
    label nor prediction has is not a number, and the mean over bins is over those that the labels
    have.

    Parameters
    ----------
    targets
        What the channels mean: ``bins``, ``continuous`` or ``binary``, which has no speeds.
    class_mph
        Speed per bin in mph, for ``bins``.
    threshold
        Least probability of a road; None for the usual one of these targets.
    groups
        Number of groups, such as scenes, that figures are wanted of one by one.
    device
        Where it counts.

    Attributes
    ----------
    lost
        Labelled pixels whose prediction is not a number, int64 ().
    """

    def __init__(
        self,
        targets: str = "bins",
        class_mph: Sequence[float] = (),
        *,
        threshold: float | None = None,
        groups: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        if targets not in TARGETS:
            raise UsageError(f"targets={targets!r} is not one of {', '.join(TARGETS)}")
        self.targets = targets
        self.class_mph = tuple(class_mph)
        self.threshold = default_threshold(targets) if threshold is None else threshold
        zeros = partial(torch.zeros, dtype=torch.int64, device=device)
        self._bins = torch.tensor(BIN_TABLE.astype("int64"), device=device)
        self._confusion = zeros(groups, CLASSES, CLASSES)
        self._error, self._roads = zeros(groups), zeros(groups)
        self._scores, self.lost = zeros(2, STEPS), zeros(())

    def counts(self) -> tuple[Tensor, ...]:
        """Return all that is counted, int64: what ranks add up, in place, before they compute."""
        return self._confusion, self._error, self._roads, self._scores, self.lost

    def update(self, probabilities: Tensor, speed: Tensor, group: Tensor | None = None) -> None:
        """Count a batch, without waiting for the device.

        Parameters
        ----------
        probabilities
            (n, channel, y, x); what is beyond the label's size is padding and left out.
        speed
            uint8 (n, y, x), mph; 0 no road, 254 a road of unknown speed (left out unless targets
            are binary), 255 no data.
        group
            int64 (n,), group of each tile; None where there is one.
        """
        probabilities = probabilities[..., : speed.shape[-2], : speed.shape[-1]].float()
        labelled, known = speed != NODATA, probabilities.sum(dim=1).isfinite()
        valid = labelled & known
        self.lost += (labelled & ~known).sum()
        probabilities = probabilities.nan_to_num()
        truth = self._bins[speed.int()]
        score = road_probability(probabilities)
        found = (score >= self.threshold).long()
        if self.targets == "binary":
            truth = ((speed > 0) & labelled).long()
        else:
            found *= speed_bin(probabilities, self.targets)
            valid &= speed != UNKNOWN_SPEED  # which bin it should have found, nobody knows
        if group is None:
            group = torch.zeros(len(speed), dtype=torch.int64, device=speed.device)
        cell = (group.view(-1, 1, 1) * CLASSES + truth) * CLASSES + found
        self._confusion.view(-1).scatter_add_(0, cell.flatten(), valid.flatten().long())
        step = (score * STEPS).long().clamp(0, STEPS - 1) + STEPS * (truth > 0)
        self._scores.view(-1).scatter_add_(0, step.flatten(), valid.flatten().long())
        if self.targets != "binary":
            self._add_error(probabilities, speed, valid & (speed > 0), group)

    def _add_error(self, probabilities: Tensor, speed: Tensor, road: Tensor, group: Tensor) -> None:
        miss = (speed_mph(probabilities, self.targets, self.class_mph) - speed).abs()
        summed = ((miss * UNIT).round().long() * road).sum(dim=(1, 2))
        self._error.scatter_add_(0, group, summed)
        self._roads.scatter_add_(0, group, road.sum(dim=(1, 2)))

    def compute(self) -> dict[str, float]:
        """Return every result; not a number where nothing was to be judged.

        ``road_iou``, ``road_f1``, and unless targets are binary ``bin_iou`` (the mean), one
        ``iou_LOW-HIGH`` per bin (see `bin_names`) and ``speed_mae_mph``; then ``threshold``, the
        least probability of a road that gives the highest road IoU, and that ``best_road_iou``.
        """
        whole = self._figures(self._confusion.sum(0), self._error.sum(), self._roads.sum())
        iou = self.sweep().iou
        highest = iou.nan_to_num().max()
        # A plateau of equals, such as of a perfect prediction, is left where it is nearest 0.5.
        equals = (iou == highest).nonzero().flatten()
        best = [math.nan, math.nan]
        if len(equals):
            step = equals[(equals - STEPS // 2).abs().argmin()]
            best = [step.item() / STEPS, iou[step].float().item()]
        return whole | dict(zip(("threshold", "best_road_iou"), best, strict=True))

    def by_group(self) -> list[dict[str, float]]:
        """Return the figures of each group by themselves, as `compute` does, at one threshold."""
        counts = zip(self._confusion, self._error, self._roads, strict=True)
        return [self._figures(*each) for each in counts]

    def sweep(self) -> Sweep:
        """Return the quality of the road mask at every threshold k / 256."""
        count = self._scores[1].sum().double()
        roads = torch.where(count > 0, count, torch.nan)
        # What a threshold lets through: everything from its step on.
        wrong, right = self._scores.double().flip(1).cumsum(1).flip(1)
        return Sweep(right / (right + wrong), right / roads, right / (roads + wrong))

    def _figures(self, confusion: Tensor, error: Tensor, roads: Tensor) -> dict[str, float]:
        table = confusion.double()
        both = table[1:, 1:].sum()
        missed, invented = table[1:, 0].sum(), table[0, 1:].sum()
        results = {
            "road_iou": both / (both + missed + invented),
            "road_f1": 2 * both / (2 * both + missed + invented),
        }
        if self.targets != "binary":
            hit, truth, found = table.diagonal(), table.sum(dim=1), table.sum(dim=0)
            iou = (hit / (truth + found - hit))[1:]
            results["bin_iou"] = iou[truth[1:] > 0].mean()
            results |= dict(zip(bin_names(), iou, strict=True))
            results["speed_mae_mph"] = error.double() / UNIT / roads
        return {name: value.float().item() for name, value in results.items()}
