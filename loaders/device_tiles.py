"""Tiles on an accelerator: crops are cut and transformed there.

The crops are those of the host loader, drawn by the same function, so that residency changes no
sample. Only their positions, some bytes per sample, cross the bus.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoprep.errors import UsageError
from loaders.crops import FLIP_X, FLIP_Y, TRANSPOSE, Crops
from loaders.memory import format_bytes
from loaders.prefetch import check_speeds
from loaders.ram import RamTiles
from loaders.selection import Split, Stores
from loaders.tiles import Tiles

_STAGE_BYTES = 64 << 20
"""Size of the pieces that are uploaded."""

_RESERVE = 0.9
"""Share of the free device memory that tiles may take; the rest is left for a model."""


def _free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes, or None if it is not known."""
    ask = getattr(getattr(torch, device.type, None), "mem_get_info", None)
    return None if device.type == "cpu" or ask is None else int(ask(device)[0])


def _upload(source: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Return an array on a device, copied piece by piece without a second copy on the host."""
    target = torch.empty(source.shape, dtype=torch.uint8, device=device)
    step = max(1, _STAGE_BYTES // max(1, source[:1].nbytes))
    stage = torch.empty((min(step, len(source)), *source.shape[1:]), dtype=torch.uint8)
    for start in range(0, len(source), step):
        part = source[start : start + step]
        stage.numpy()[: len(part)] = part
        target[start : start + len(part)].copy_(stage[: len(part)])
    return target


class DeviceTiles(Tiles):
    """The tiles of a split on a device; only the table stays in the host's memory.

    Parameters
    ----------
    tiles
        Tiles in memory, which may be dropped afterwards.
    device
        Device of the pixels; None for the accelerator of this process. Under DDP every rank holds
        all tiles on its own device.

    Raises
    ------
    UsageError
        They do not fit, or there is no accelerator.
    """

    asynchronous = True

    def __init__(self, tiles: RamTiles, device: torch.device | str | None = None) -> None:
        where = torch.accelerator.current_accelerator() if device is None else device
        if where is None:
            raise UsageError("DeviceTiles finds no accelerator: name one with device=")
        self.device = torch.device(where)
        free = _free_bytes(self.device)
        if free is not None and tiles.nbytes > _RESERVE * free:
            raise UsageError(
                f"{len(tiles)} tiles of level {tiles.side} take {format_bytes(tiles.nbytes)}; "
                f"{self.device} has {format_bytes(free)} free. Keep the tiles in memory "
                "(RamTiles, `residency` ram), or use a coarser level or fewer bands"
            )
        # A copy: the original table would keep the memory of all pixels.
        super().__init__(tiles.origin, tiles.table.copy())
        self.image = _upload(tiles.image, self.device)
        self.label = _upload(tiles.label, self.device)

    @property
    def speed(self) -> Tensor:
        """The label of speeds, uint8 (tile, y, x); raises UsageError for classes."""
        check_speeds("tiles.label", has_classes=self.has_classes)
        return self.label

    @classmethod
    def load(
        cls,
        stores: Stores,
        split: Split = "train",
        level: int | None = None,
        *,
        device: torch.device | str | None = None,
        **options: Any,  # noqa: ANN401 - RamTiles.load checks them
    ) -> DeviceTiles:
        """Load a split onto a device; the memory that it passes through is freed.

        Parameters
        ----------
        stores, split, level, options
            As for `RamTiles.load`.
        device
            As for `DeviceTiles`.

        Raises
        ------
        StoreError, UsageError
            As `RamTiles.load` and `DeviceTiles` do.
        """
        return cls(RamTiles.load(stores, split, level, **options), device)

    def copy(self, crops: Crops, image: Tensor, label: Tensor) -> None:
        """Copy crops on the device; see `CropReader.copy`."""
        columns = np.stack([crops.tile, crops.y, crops.x, crops.op])
        tile, y, x, op = torch.from_numpy(columns).to(self.device)
        side = image.shape[1]
        if side == self.side and not crops.op.any():
            torch.index_select(self.image, 0, tile, out=image)
            torch.index_select(self.label, 0, tile, out=label)
            return
        pixel = self._pixels(tile, y, x, op, side).view(-1)
        bands = len(self.bands)
        torch.index_select(self.image.view(-1, bands), 0, pixel, out=image.view(-1, bands))
        torch.index_select(self.label.view(-1), 0, pixel, out=label.view(-1))

    def decode(
        self, tile: int, image: NDArray[np.uint8] | None, label: NDArray[np.uint8] | None
    ) -> None:
        """Copy one whole tile to the host; see `Tiles.decode`."""
        for source, target in ((self.image, image), (self.label, label)):
            if target is not None:
                target[:] = source[tile].cpu().numpy()

    def _pixels(self, tile: Tensor, y: Tensor, x: Tensor, op: Tensor, side: int) -> Tensor:
        """Return the flat index of the source pixel of every output pixel, int64 (n, y, x)."""
        line = torch.arange(side, device=self.device)
        i, j = (
            torch.where((op & flip)[:, None] > 0, side - 1 - line, line)
            for flip in (FLIP_Y, FLIP_X)
        )
        transposed = (op & TRANSPOSE)[:, None] > 0
        down = torch.where(transposed, i, i * self.side)
        along = torch.where(transposed, j * self.side, j)
        corner = (tile * self.side + y) * self.side + x
        return (corner[:, None] + down)[:, :, None] + along[:, None, :]
