"""Tiles that live on the accelerator: batches are gathered and turned there.

The windows are those of the host loader, drawn by the same function, so that residency changes
no sample. Nothing but the windows, some bytes per sample, crosses the bus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoprep.errors import UsageError
from loaders.batch import Batch, Feed, Request
from loaders.memory import amount
from loaders.ram import RamTiles
from loaders.sampling import FLIP_X, FLIP_Y, TRANSPOSE, Drawn, Step, Windows
from loaders.selection import Split, Stores
from loaders.tiles import Tiles

_STAGE_BYTES = 64 << 20
_RESERVE = 0.9
"""Share of the free device memory that tiles may take; the rest is a model's."""


def _free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, or None where it cannot be asked."""
    ask = getattr(getattr(torch, device.type, None), "mem_get_info", None)
    return None if device.type == "cpu" or ask is None else int(ask(device)[0])


def _upload(source: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Return an array on a device, moved piece by piece so that no second copy is made here."""
    target = torch.empty(source.shape, dtype=torch.uint8, device=device)
    step = max(1, _STAGE_BYTES // max(1, source[:1].nbytes))
    stage = torch.empty((min(step, len(source)), *source.shape[1:]), dtype=torch.uint8)
    for start in range(0, len(source), step):
        part = source[start : start + step]
        stage.numpy()[: len(part)] = part
        target[start : start + len(part)].copy_(stage[: len(part)])
    return target


class DeviceTiles(Tiles):
    """The tiles of a split on a device; of the host's memory they keep the table alone.

    Parameters
    ----------
    tiles
        Tiles in memory, which may be dropped afterwards.
    device
        Where to put them; None for the accelerator there is. Under DDP every rank holds all of
        them on its own device.

    Raises
    ------
    UsageError
        They do not fit, or there is no accelerator.
    """

    def __init__(self, tiles: RamTiles, device: torch.device | str | None = None) -> None:
        where = torch.accelerator.current_accelerator() if device is None else device
        if where is None:
            raise UsageError("DeviceTiles finds no accelerator: name one with device=")
        self.device = torch.device(where)
        free = _free_bytes(self.device)
        if free is not None and tiles.nbytes > _RESERVE * free:
            raise UsageError(
                f"{len(tiles)} tiles of level {tiles.side} take {amount(tiles.nbytes)}, of "
                f"which {self.device} has {amount(free)} free: keep them in memory "
                "(RamTiles, --residency ram), or take a coarser level or fewer bands"
            )
        # A copy: the table itself would keep the memory of all pixels.
        super().__init__(tiles.origin, tiles.table.copy())
        self.image = _upload(tiles.image, self.device)
        self.speed = _upload(tiles.speed, self.device)

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
        """Load a split onto a device, through memory that is given back.

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

    def feed(self, request: Request) -> Feed:
        """Return what gathers batches on the device."""

        def batches(epoch: int, steps: Sequence[Step]) -> Iterator[Batch]:
            drawn = Drawn(request.sampling, epoch, steps)
            side = request.sampling.window
            return (self.gather(drawn(i), side) for i in range(len(steps)))

        return batches

    def speed_of(self, tile: int) -> NDArray[np.uint8]:
        """Return the mask of a tile on the host, uint8 (y, x)."""
        mask: NDArray[np.uint8] = self.speed[tile].cpu().numpy()
        return mask

    def pixels(self, tile: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return copies of image and mask on the host, uint8 (y, x, band) and (y, x)."""
        image, speed = (there[tile].cpu().numpy().copy() for there in (self.image, self.speed))
        return image, speed

    def gather(self, windows: Windows, side: int) -> Batch:
        """Return a batch, gathered on the device.

        Parameters
        ----------
        windows
            Which.
        side
            Side of the windows in pixels.
        """
        tile, y, x, op, key = torch.from_numpy(np.stack(windows)).to(self.device)
        if side == self.side and not windows.op.any():
            image, speed = self.image.index_select(0, tile), self.speed.index_select(0, tile)
        else:
            pixel = self._pixels(tile, y, x, op, side).view(-1)
            shape = (len(tile), side, side)
            image = self.image.view(-1, len(self.bands)).index_select(0, pixel).view(*shape, -1)
            speed = self.speed.view(-1).index_select(0, pixel).view(shape)
        where = torch.stack([y, x, op], dim=1).to(torch.int32)
        return Batch(image.permute(0, 3, 1, 2), speed, tile, where, key)

    def _pixels(self, tile: Tensor, y: Tensor, x: Tensor, op: Tensor, side: int) -> Tensor:
        """Return the flat index of the pixel behind every output pixel, int64 (n, y, x)."""
        line = torch.arange(side, device=self.device)
        i, j = (
            torch.where((op & flip)[:, None] > 0, side - 1 - line, line)
            for flip in (FLIP_Y, FLIP_X)
        )
        turned = (op & TRANSPOSE)[:, None] > 0
        down = torch.where(turned, i, i * self.side)
        along = torch.where(turned, j * self.side, j)
        corner = (tile * self.side + y) * self.side + x
        return (corner[:, None] + down)[:, :, None] + along[:, None, :]
