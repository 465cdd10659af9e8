"""The same tiles for people who live in ``torch.utils.data.DataLoader``.

A worker process attaches to the one copy in memory, whatever its start method. What DataLoader
itself needs stays: its batches travel through ``/dev/shm``, so where that is small (64 MB in a
container by default) keep ``batch_size * num_workers * prefetch_factor`` samples below it, use
``num_workers=0``, or use :class:`loaders.batches.BatchLoader`, which needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from loaders.gather import as_items, copy_window
from loaders.ram import RamTiles
from loaders.sampling import Augment, Sampling
from loaders.shared import SharedArrays


class TileDataset(Dataset[dict[str, Any]]):
    """Tiles, or random windows of them, as a map-style dataset.

    Item ``i`` is a function of (seed, epoch, i) alone; DataLoader decides the order. It pickles as
    a handle of some hundred bytes.

    Parameters
    ----------
    tiles
        In memory.
    crop
        Side of random square windows in pixels; None for whole tiles.
    augment
        ``d4``, ``flips`` or None.
    crops_per_tile
        Items per tile.
    seed
        With the epoch, decides windows and symmetries.
    georeference
        Whether items have ``affine`` and ``crs``.
    """

    def __init__(
        self,
        tiles: RamTiles,
        *,
        crop: int | None = None,
        augment: Augment | None = None,
        crops_per_tile: int = 1,
        seed: int = 0,
        georeference: bool = False,
    ) -> None:
        self.tiles = tiles
        self.georeference = georeference
        self.sampling = Sampling(
            len(tiles), tiles.side, crop, augment, crops_per_tile, seed, shuffle=False
        )
        # Shared, so that workers that outlive an epoch see the next one.
        self._epoch = SharedArrays.create({"epoch": ("int64", (1,))})

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, in the process that made the dataset; persistent workers follow."""
        self._epoch["epoch"][0] = epoch

    def __len__(self) -> int:
        return len(self.sampling)

    def __getitem__(self, item: int) -> dict[str, Any]:
        """Return an item.

        Returns
        -------
        dict
            ``image`` uint8 (band, y, x), channels last in memory; ``speed`` uint8 (y, x);
            ``index`` of the tile; ``key`` for jitter; with ``georeference`` also ``affine``,
            float64 (6,), ``a b c d e f`` of rasterio for the window as it is turned, and ``crs``.
        """
        if not -len(self) <= item < len(self):
            raise IndexError(f"item {item} of {len(self)}")
        samples = np.array([item % len(self)], np.int64)
        drawn = self.sampling.windows(int(self._epoch["epoch"][0]), samples)
        tile, y, x, op, key = (
            int(column[0]) for column in (drawn.tile, drawn.y, drawn.x, drawn.op, drawn.key)
        )
        found: dict[str, Any] = {
            "image": self._window(self.tiles.image[tile], y, x, op).permute(2, 0, 1),
            "speed": self._window(self.tiles.speed[tile][..., None], y, x, op)[..., 0],
            "index": tile,
            "key": key,
        }
        if self.georeference:
            affine = self.tiles.affine(tile, (y, x, op), self.sampling.window)
            found |= {"affine": torch.tensor(affine, dtype=torch.float64)}
            found |= {"crs": self.tiles.crs(tile)}
        return found

    def _window(self, tile: NDArray[np.uint8], y: int, x: int, op: int) -> Tensor:
        """Return a window of (y, x, band) as a tensor of its own."""
        side = self.sampling.window
        out = np.empty((side, side, tile.shape[-1]), np.uint8)
        copy_window(as_items(tile), y, x, op, as_items(out))
        return torch.from_numpy(out)


def collate(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Stack items into a batch whose images are channels last: ``DataLoader(collate_fn=collate)``.

    torch's own collation is right too, but lays every image out anew, bands first.
    """
    # Bands last, its default stacks whole rows; in a worker, straight into shared memory.
    rows = [{**item, "image": item["image"].permute(1, 2, 0)} for item in items]
    batch: dict[str, Any] = default_collate(rows)
    return batch | {"image": batch["image"].permute(0, 3, 1, 2)}
