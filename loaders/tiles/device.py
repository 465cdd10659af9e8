"""Tiles on an accelerator: crops are cut and transformed there.

They are those of the host loader. Only their positions cross the bus, from pinned memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from geoprep.errors import UsageError
from loaders.batch import FLIP_X, FLIP_Y, TRANSPOSE, Crops, Pixels, check_speeds, copy_words
from loaders.memory import available_memory, format_bytes
from loaders.selection import Split, Stores
from loaders.tiles.base import Tiles
from loaders.tiles.ram import RamTiles

_STAGE_BYTES = 64 << 20
"""Size of the pieces that are uploaded."""

TILE_SHARE = 0.5
"""Share of the available device memory that tiles may take.

The rest is for training. Weights are on the device by then; a step needs its activations, two or
three batches, the int64 index of each pixel of a batch, and workspaces of convolutions.
"""


def _upload(source: Pixels, device: torch.device) -> Tensor:
    """Return an array on a device, copied piece by piece without a second copy on the host."""
    target = torch.empty(source.shape, dtype=torch.uint8, device=device)
    step = max(1, _STAGE_BYTES // source[0].nbytes)
    for start in range(0, len(source), step):
        stage = torch.from_numpy(source[start : start + step].copy())  # the source is read-only
        target[start : start + step].copy_(stage)
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
        They take more than `room`, or there is no accelerator.
    """

    asynchronous = True

    def __init__(self, tiles: RamTiles, device: torch.device | str | None = None) -> None:
        if device is None:
            device = torch.accelerator.current_accelerator(check_available=True)
        if device is None:
            raise UsageError("DeviceTiles finds no accelerator: name one with device=")
        self.device = torch.device(device)
        room = self.room(self.device)
        if room is not None and tiles.nbytes > room:
            raise UsageError(
                f"{len(tiles)} tiles of level {tiles.side} take {format_bytes(tiles.nbytes)}; "
                f"{self.device} has {format_bytes(int(room / TILE_SHARE))} free, of which tiles "
                f"may take {format_bytes(room)}: training needs the rest. Keep the tiles in memory "
                "(RamTiles, `residency` ram), or use a coarser `level` or fewer `bands`"
            )
        # A copy: the original table would keep the memory of all pixels.
        super().__init__(tiles.origin, tiles.table.copy())
        self.image = _upload(tiles.image, self.device)
        self.label = _upload(tiles.label, self.device)

    @staticmethod
    def room(device: torch.device) -> int | None:
        """Return the bytes that tiles may take on a device: half of those available.

        The other half is left for training. None for a CPU, where the tiles are in memory already.
        """
        if device.type == "cpu":
            return None
        return int(TILE_SHARE * available_memory(device=device).nbytes)

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
        positions = torch.empty(columns.shape, dtype=torch.int64, device=self.device)
        copy_words(columns, positions)
        tile, y, x, op = positions
        side = image.shape[1]
        if side == self.side and not crops.op.any():
            torch.index_select(self.image, 0, tile, out=image)
            torch.index_select(self.label, 0, tile, out=label)
            return
        pixel = self._pixels(tile, y, x, op, side).view(-1)
        bands = len(self.bands)
        torch.index_select(self.image.view(-1, bands), 0, pixel, out=image.view(-1, bands))
        torch.index_select(self.label.view(-1), 0, pixel, out=label.view(-1))

    def decode(self, tile: int, image: Pixels | None, label: Pixels | None) -> None:
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
