"""How good a prediction is: counted on the device, added up over batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from geoprep.errors import UsageError
from geoprep.speed import BIN_COUNT, BIN_TABLE, BIN_WIDTH_MPH, NO_DATA
from training.decode import expected_mph, road_mask, speed_bin

CLASSES = BIN_COUNT + 1
"""No road, and the bins."""

UNIT = 256
"""Speed errors are added up as whole 1/256 mph: exact, so that the order of adding is no matter."""

TARGETS = ("bins", "continuous", "binary")


def bin_names() -> tuple[str, ...]:
    """Return the names of the per-bin results: ``iou_1-10`` ... ``iou_61+``."""
    lows = [BIN_WIDTH_MPH * i + 1 for i in range(BIN_COUNT)]
    names = [f"iou_{low}-{low + BIN_WIDTH_MPH - 1}" for low in lows[:-1]]
    return (*names, f"iou_{lows[-1]}+")


class RoadMetrics(Metric):
    """Road IoU and F1, IoU of every speed bin, and the mean error of speed on road pixels.

    A pixel has the bin of its highest channel where the channel of any road says road. Pixels
    without a label do not count. A bin that neither label nor prediction has is not a number,
    and the mean over bins is over those that the labels have.

    Parameters
    ----------
    targets
        What the logits mean: ``bins``, ``continuous`` or ``binary``, which has no speeds.
    class_mph
        Speed of every bin in mph, for `bins`.
    """

    full_state_update = False
    higher_is_better = True
    confusion: Tensor
    error: Tensor
    roads: Tensor

    def __init__(
        self,
        targets: str = "bins",
        class_mph: Sequence[float] = (),
        **options: Any,  # noqa: ANN401 - torchmetrics'
    ) -> None:
        super().__init__(**options)
        if targets not in TARGETS:
            raise UsageError(f"targets={targets!r} is not one of {', '.join(TARGETS)}")
        self.targets = targets
        self.class_mph = tuple(class_mph)
        self.register_buffer("bins", torch.tensor(BIN_TABLE.astype("int64")), persistent=False)
        for name, shape in (("confusion", (CLASSES * CLASSES,)), ("error", ()), ("roads", ())):
            self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, speed: Tensor) -> None:
        """Count a batch, without waiting for the device.

        Parameters
        ----------
        logits
            (n, channel, y, x); what is beyond the label's size is padding and left out.
        speed
            uint8 (n, y, x), mph; 0 no road, 255 no data.
        """
        logits = logits[..., : speed.shape[-2], : speed.shape[-1]]
        table: Tensor = self.bins  # type: ignore[assignment]  # a buffer
        valid = speed != NO_DATA
        truth = table[speed.int()]
        road = road_mask(logits, self.targets)
        found = road.long() if self.targets == "binary" else road * speed_bin(logits, self.targets)
        if self.targets == "binary":
            truth = (truth > 0).long()
        self.confusion.scatter_add_(0, (truth * CLASSES + found).flatten(), valid.flatten().long())
        if self.targets != "binary":
            self._add_error(logits, speed, valid & (speed > 0))

    def _add_error(self, logits: Tensor, speed: Tensor, road: Tensor) -> None:
        miss = (expected_mph(logits, self.targets, self.class_mph) - speed).abs()
        self.error += ((miss * UNIT).round().long() * road).sum()
        self.roads += road.sum()

    def compute(self) -> dict[str, Tensor]:
        """Return every result as a 0-d fp32 tensor; not a number where nothing was to be judged.

        ``road_iou``, ``road_f1``, and unless targets are binary ``bin_iou`` (the mean), one
        ``iou_LOW-HIGH`` a bin (see `bin_names`) and ``speed_mae_mph``.
        """
        table = self.confusion.view(CLASSES, CLASSES).double()
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
            results["speed_mae_mph"] = self.error.double() / UNIT / self.roads
        return {name: value.float() for name, value in results.items()}
