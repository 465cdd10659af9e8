"""Metrics of predictions, counted on the device and summed over batches and ranks.

Probabilities are roads and speeds here; `training.runners.decoding` writes them as bytes, for
predictions and pictures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from geoprep.speed import (
    BIN_COUNT,
    BIN_TABLE,
    BIN_WIDTH_MPH,
    NODATA,
    UNKNOWN_SPEED,
)
from training.checkpoint import ModelInfo
from training.evaluation.threshold import choose_threshold
from training.runners.decoding import DEFAULT_THRESHOLD

CLASSES = BIN_COUNT + 1
"""Background and the bins."""

UNIT = 256
"""Speed errors are summed as integers of 1/256 mph, so that their order does not matter."""

STEPS = 256
"""Number of thresholds in a sweep: k / 256."""

THRESHOLDS = ("best_threshold", "best_road_iou", "threshold", "threshold_low", "threshold_high")
"""Names of the metrics that are chosen to suit the labels."""

_LOWS = [BIN_WIDTH_MPH * i + 1 for i in range(BIN_COUNT)]
BIN_NAMES = (*(f"iou_{low}-{low + BIN_WIDTH_MPH - 1}" for low in _LOWS[:-1]), f"iou_{_LOWS[-1]}+")
"""Names of the IoU per bin: ``iou_1-10`` ... ``iou_61+``."""


def activated(logits: Tensor, targets: str) -> Tensor:
    """Return fp32 probabilities of logits (n, channel, y, x): softmax for classes, else sigmoid."""
    return logits.float().softmax(dim=1) if targets == "classes" else logits.float().sigmoid()


def speed_mph(probabilities: Tensor, class_mph: Sequence[float]) -> Tensor:
    """Return the speed of every pixel, fp32 (n, y, x) in mph: that of the most probable bin.

    A mean weighted by probability would never reach the slowest and fastest speeds, since
    neighbouring bins have some probability.
    """
    speeds = torch.tensor(class_mph, dtype=torch.float32, device=probabilities.device)
    return speeds[probabilities[:, : len(class_mph)].argmax(dim=1)]


class _Confusion:
    """Pixels by label (rows) and prediction (columns) of each group, counted on the device.

    ``lost`` counts labelled pixels whose prediction is not a number.
    """

    def __init__(self, classes: int, groups: int, device: torch.device | str) -> None:
        self._zeros = partial(torch.zeros, dtype=torch.int64, device=device)
        self._confusion, self.lost = self._zeros(groups, classes, classes), self._zeros(())

    def _known(self, probabilities: Tensor, labelled: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities without padding and NaN, and where label and prediction are."""
        inside = probabilities[..., : labelled.shape[-2], : labelled.shape[-1]].float()
        finite = inside.sum(dim=1).isfinite()
        self.lost += (labelled & ~finite).sum()
        return inside.nan_to_num(), labelled & finite

    def _count(self, truth: Tensor, predicted: Tensor, valid: Tensor, group: Tensor) -> None:
        classes = self._confusion.shape[-1]
        cell = (group.view(-1, 1, 1) * classes + truth) * classes + predicted
        self._confusion.view(-1).scatter_add_(0, cell.flatten(), valid.flatten().long())


def _iou(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the IoU of every class in a confusion matrix, and whether the label has it."""
    hit, labelled, predicted = table.diagonal(), table.sum(dim=1), table.sum(dim=0)
    return hit / (labelled + predicted - hit), labelled > 0


class RoadMetrics(_Confusion):
    """Road IoU and F1, IoU per speed bin, and mean absolute speed error on road pixels.

    Pixels are decoded as in predictions: road from the threshold on, with the most probable bin.
    Pixels without a label, or whose prediction is not a number, are left out. The IoU of a bin in
    neither label nor prediction is NaN; the mean is over bins in the labels.
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
        super().__init__(CLASSES, groups, device)
        self.targets = targets
        self.class_mph = tuple(class_mph)
        self.threshold = DEFAULT_THRESHOLD if threshold is None else threshold
        self._bins = torch.tensor(BIN_TABLE.astype("int64"), device=device)
        self._error, self._roads = self._zeros(groups), self._zeros(groups)
        self._scores = self._zeros(groups, 2, STEPS)

    def counts(self) -> tuple[Tensor, ...]:
        """Return all counts, int64, to be summed over ranks in place before `compute`."""
        return self._confusion, self._error, self._roads, self._scores, self.lost

    def update(self, probabilities: Tensor, speed: Tensor, group: Tensor | None = None) -> None:
        """Count a batch (n, channel, y, x) with speeds in mph (n, y, x) and groups (n,).

        Sides beyond those of the label are padding. The host does not wait for the device.
        """
        labelled = speed != NODATA
        probabilities, valid = self._known(probabilities, labelled)
        truth = self._bins[speed.int()]
        score = probabilities[:, -1]  # of any road
        predicted = (score >= self.threshold).long()
        if self.targets == "binary":
            truth = ((speed > 0) & labelled).long()
        else:
            predicted *= probabilities[:, :BIN_COUNT].argmax(dim=1) + 1
            valid &= speed != UNKNOWN_SPEED  # its bin is not known
        group = self._zeros(len(speed)) if group is None else group
        self._count(truth, predicted, valid, group)
        step = (score * STEPS).long().clamp(0, STEPS - 1) + STEPS * (truth > 0)
        step += 2 * STEPS * group.view(-1, 1, 1)
        self._scores.view(-1).scatter_add_(0, step.flatten(), valid.flatten().long())
        if self.targets != "binary":
            road = valid & (speed > 0)
            error = (speed_mph(probabilities, self.class_mph) - speed).abs()
            summed = ((error * UNIT).round().long() * road).sum(dim=(1, 2))
            self._error.scatter_add_(0, group, summed)
            self._roads.scatter_add_(0, group, road.sum(dim=(1, 2)))

    def compute(self) -> dict[str, float]:
        """Return all metrics by name; NaN where the label has no such pixels.

        ``road_iou``, ``road_f1``, and unless targets are binary ``bin_iou`` (the mean), one
        ``iou_LOW-HIGH`` per bin (see `BIN_NAMES`) and ``speed_mae_mph``; then ``best_threshold``,
        the threshold with the highest road IoU, and that ``best_road_iou``; then ``threshold``, the
        one that the groups support, and its interval ``threshold_low`` and ``threshold_high``, see
        `training.evaluation.choose_threshold`.
        """
        counts = (self._confusion.sum(0), self._error.sum(), self._roads.sum())
        metrics = self._metrics(*(count.cpu() for count in counts))
        iou = self.sweep()["road_iou"]
        # Of equal thresholds, as for a perfect prediction, the one closest to 0.5 is used.
        equals = (iou == iou.nan_to_num().max()).nonzero().flatten()
        if not len(equals):
            return metrics | dict.fromkeys(THRESHOLDS, math.nan)
        step = equals[(equals - STEPS // 2).abs().argmin()]
        chosen = choose_threshold(self._scores.cpu().numpy(), DEFAULT_THRESHOLD)
        best = step.item() / STEPS, iou[step].float().item()
        return metrics | dict(zip(THRESHOLDS, (*best, *chosen), strict=True))

    def by_group(self) -> list[dict[str, float]]:
        """Return the metrics of each group, as `compute` at the given threshold."""
        # Metrics are computed on the host, in fp64, which some devices lack.
        counts = zip(self._confusion.cpu(), self._error.cpu(), self._roads.cpu(), strict=True)
        return [self._metrics(*of_group) for of_group in counts]

    def sweep(self) -> dict[str, Tensor]:
        """Return precision, recall and IoU of roads at every threshold k / 256, fp64 (256,)."""
        scores = self._scores.sum(0).cpu()
        count = scores[1].sum().double()
        roads = torch.where(count > 0, count, torch.nan)
        # Pixels at or above each threshold.
        wrong, right = scores.double().flip(1).cumsum(1).flip(1)
        return {
            "threshold": torch.arange(STEPS) / STEPS,
            "precision": right / (right + wrong),
            "recall": right / roads,
            "road_iou": right / (roads + wrong),
        }

    def _metrics(self, confusion: Tensor, error: Tensor, roads: Tensor) -> dict[str, float]:
        table = confusion.double()
        hits = table[1:, 1:].sum()
        missed, invented = table[1:, 0].sum(), table[0, 1:].sum()
        labelled = torch.where(hits + missed > 0, hits + missed, torch.nan)
        results = {
            "road_iou": hits / (labelled + invented),
            "road_f1": 2 * hits / (hits + labelled + invented),
        }
        if self.targets != "binary":
            iou, there = _iou(table)
            results["bin_iou"] = iou[1:][there[1:]].mean()
            results |= dict(zip(BIN_NAMES, iou[1:], strict=True))
            results["speed_mae_mph"] = error.double() / UNIT / roads
        return {name: value.float().item() for name, value in results.items()}


class ClassMetrics(_Confusion):
    """IoU of each class, their mean, and the confusion matrix.

    Pixels are decoded as in predictions, with the most probable class. Pixels without a label, or
    whose prediction is not a number, are left out. The IoU of a class in neither label nor
    prediction is NaN; the mean is over classes in the labels.
    """

    def __init__(
        self, names: Sequence[str], *, groups: int = 1, device: torch.device | str = "cpu"
    ) -> None:
        self.names = tuple(names)
        super().__init__(len(self.names), groups, device)

    def counts(self) -> tuple[Tensor, ...]:
        """Return all counts, int64, to be summed over ranks in place before `compute`."""
        return self._confusion, self.lost

    def update(self, probabilities: Tensor, label: Tensor, group: Tensor | None = None) -> None:
        """Count a batch (n, class, y, x) with numbers of classes (n, y, x) and groups (n,)."""
        count = len(self.names)
        probabilities, valid = self._known(probabilities, label < count)
        group = self._zeros(len(label)) if group is None else group
        self._count(label.long().clamp(max=count - 1), probabilities.argmax(dim=1), valid, group)

    def confusion(self) -> list[list[int]]:
        """Return the pixels of each class in the label (rows) and the prediction (columns)."""
        table: list[list[int]] = self._confusion.sum(0).tolist()
        return table

    def compute(self) -> dict[str, float]:
        """Return all metrics by name; NaN where there are no pixels.

        ``mean_iou``, ``worst_iou``, ``accuracy`` (the share of pixels with the right class), and
        one ``iou_NAME`` per class.
        """
        return self._metrics(self._confusion.sum(0).cpu())

    def by_group(self) -> list[dict[str, float]]:
        """Return the metrics of each group."""
        return [self._metrics(table) for table in self._confusion.cpu()]

    def _metrics(self, confusion: Tensor) -> dict[str, float]:
        table = confusion.double()
        iou, present = _iou(table)
        there, hit = iou[present], table.diagonal()
        results = {
            "mean_iou": there.mean(),
            "worst_iou": there.min() if len(there) else there.mean(),
            "accuracy": hit.sum() / table.sum(),
        }
        results |= {f"iou_{name}": value for name, value in zip(self.names, iou, strict=True)}
        return {name: value.float().item() for name, value in results.items()}


Metrics = RoadMetrics | ClassMetrics


def worst_class(metrics: Mapping[str, float], names: Sequence[str]) -> str:
    """Return the name of the class whose IoU is the ``worst_iou`` of metrics; empty if none.

    A class without a label, which the mean and the worst leave out, is none even if it is found.
    """
    worst = metrics["worst_iou"]
    return next((name for name in names if metrics[f"iou_{name}"] == worst), "")


def metrics_of(
    info: ModelInfo, groups: int, device: torch.device, threshold: float | None = None
) -> Metrics:
    """Return empty metrics of a model."""
    if info.has_classes:
        return ClassMetrics(info.class_names, groups=groups, device=device)
    return RoadMetrics(
        info.targets, info.class_mph, threshold=threshold, groups=groups, device=device
    )
