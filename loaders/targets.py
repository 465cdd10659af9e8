"""Training targets from labels, by table lookup on the device."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from geoprep.errors import UsageError
from geoprep.speed import (
    BIN_TABLE,
    BINARY_TABLE,
    CHANNEL_TABLE,
    NODATA,
    UNKNOWN_SPEED,
)

Targets = Literal["bins", "binary", "bin_index", "classes"]

IGNORE_INDEX = -100
"""Class of a pixel without a label: the default ``ignore_index`` of torch's losses."""


class SpeedTarget(nn.Module):
    """Turns labels, one byte of mph per pixel, into a training target by table lookup.

    Parameters
    ----------
    targets
        ``bins``: (n, 8, y, x), CRESI's seven ten-mph bins, exclusive, and any road, 0 or 1.
        ``binary``: (n, 1, y, x), 1 on roads.
        ``bin_index``: int64 (n, y, x), 0 background, 1..7 the bin, `IGNORE_INDEX` where unknown.

        A road of unknown speed is a road for ``binary``. For the other targets its pixels are not
        valid, although the channel of any road is 1 in ``bins``.
    dtype
        Dtype of all targets but ``bin_index``.
    """

    table: Tensor
    limits: Tensor | None

    def __init__(self, targets: Targets = "bins", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        known = get_args(Targets)[:-1]
        if targets not in known:
            raise UsageError(f"targets={targets!r} is not one of {', '.join(known)}")
        self.targets = targets
        table = _table(targets, dtype)
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("limits", _limits(table), persistent=False)

    @property
    def channels(self) -> int:
        """Number of channels of a model for this target."""
        return {"bins": 8, "bin_index": 8}.get(self.targets, 1)

    def valid(self, speed: Tensor) -> Tensor:
        """Return where the target of uint8 (n, y, x) is known, bool of the same shape."""
        if self.targets == "binary":
            return speed != NODATA
        return speed < UNKNOWN_SPEED

    def forward(self, speed: Tensor) -> Tensor:
        """Return the target of uint8 (n, y, x)."""
        if speed.is_cuda and self.limits is not None:  # a ninth of the time of a lookup (H100)
            least, most = self.limits
            inside: Tensor = (speed[..., None] >= least) & (speed[..., None] <= most)
            return inside.to(self.table.dtype).permute(0, 3, 1, 2)
        # An embedding with int32 indexes is four times as fast as indexing with int64 (measured).
        values = functional.embedding(speed.int(), self.table)
        if self.targets == "bin_index":
            return values[..., 0].long()
        return values.permute(0, 3, 1, 2)


class ClassTarget(nn.Module):
    """Turns labels of classes into a training target.

    Parameters
    ----------
    channels
        Number of classes; other label values, such as 255 for nodata, are not valid.
    """

    targets: Targets = "classes"

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def valid(self, label: Tensor) -> Tensor:
        """Return where the class of uint8 (n, y, x) is known, bool of the same shape."""
        return label < self.channels

    def forward(self, label: Tensor) -> Tensor:
        """Return the class of uint8 (n, y, x), int64; `IGNORE_INDEX` where it is not known."""
        return label.long().masked_fill(~self.valid(label), IGNORE_INDEX)


def _table(targets: Targets, dtype: torch.dtype) -> Tensor:
    """Return the lookup table of a target, (256, channel)."""
    if targets == "bin_index":
        classes = BIN_TABLE.astype(np.float32)
        classes[[UNKNOWN_SPEED, NODATA]] = IGNORE_INDEX
        return torch.from_numpy(classes)[:, None]
    return torch.tensor(CHANNEL_TABLE if targets == "bins" else BINARY_TABLE[:, None]).to(dtype)


def _limits(table: Tensor) -> Tensor | None:
    """Return the first and last value that is 1 in each channel, uint8 (2, channel).

    None if channels are not 1 on one range of values and 0 elsewhere.
    """
    first = table.argmax(0)
    limits = torch.stack([first, first + (table == 1).sum(0) - 1])
    values = torch.arange(len(table))[:, None]
    inside = (values >= limits[0]) & (values <= limits[1])
    return limits.to(torch.uint8) if torch.equal(inside.to(table.dtype), table) else None
