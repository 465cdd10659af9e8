"""The same samples for ``torch.utils.data.DataLoader``.

Its worker processes send batches in shared memory (``/dev/shm``, 64 MB in a container by default).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from loaders.batch import Crops
from loaders.memory import SharedArrays
from loaders.sampling import Augment
from loaders.tiles.ram import RamTiles


class TileDataset(Dataset[dict[str, Any]]):
    """Tiles, or random crops of them, as a map-style dataset.

    Item ``i`` is a function of (seed, epoch, i) alone; DataLoader determines the order. The pickle
    is a handle of some hundred bytes.

    Parameters
    ----------
    tiles
        Tiles in memory.
    crop
        Side of random square crops in pixels; None for whole tiles.
    augment
        ``d4`` for the eight symmetries of the square, ``flips`` for four, None for none.
    crops_per_tile
        Items per tile.
    seed
        Random seed of crops and symmetries.
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
        self.sampling = tiles.sampling(
            crop=crop, augment=augment, crops_per_tile=crops_per_tile, seed=seed, shuffle=False
        )
        # Shared, so that persistent workers see the next epoch.
        self._epoch = SharedArrays.create({"epoch": ("int64", (1,))})

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, in the process that created the dataset; its workers follow."""
        self._epoch["epoch"][0] = epoch

    def __len__(self) -> int:
        return len(self.sampling)

    def __getitem__(self, item: int) -> dict[str, Any]:
        """Return one item.

        Returns
        -------
        dict
            ``image`` uint8 (band, y, x), channels last in memory; ``speed`` uint8 (y, x), or
            ``label`` if the tiles have classes; ``index`` of the tile; ``key`` for jitter; with
            ``georeference`` also ``affine``, float64 (6,), ``a b c d e f`` of rasterio for the crop
            after its symmetry, and ``crs``.
        """
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Return several items; DataLoader calls this method."""
        for item in items:
            if not -len(self) <= item < len(self):
                raise IndexError(f"there is no item {item}: the dataset has {len(self)} items")
        samples = np.array(items, np.int64) % len(self)
        crops = self.sampling.crops(int(self._epoch["epoch"][0]), samples)
        n, side, bands = len(samples), self.sampling.sample_side, len(self.tiles.bands)
        image = np.empty((n, side, side, bands), np.uint8)
        label = np.empty((n, side, side), np.uint8)
        self.tiles.copy(crops, image, label)
        columns: dict[str, Any] = {
            "image": torch.from_numpy(image).permute(0, 3, 1, 2),
            "label" if self.tiles.has_classes else "speed": torch.from_numpy(label),
            "index": crops.tile.tolist(),
            "key": crops.key.tolist(),
        }
        if self.georeference:
            columns |= self._georeference(crops)
        rows = zip(*columns.values(), strict=True)
        return [_Item(zip(columns, row, strict=True)) for row in rows]

    def _georeference(self, crops: Crops) -> dict[str, Any]:
        """Return affine and CRS of crops."""
        side, tiles = self.sampling.sample_side, crops.tile.tolist()
        where = np.stack([crops.y, crops.x, crops.op], axis=1).tolist()
        pairs = zip(tiles, where, strict=True)
        affine = [self.tiles.affine(tile, (y, x, op), side) for tile, (y, x, op) in pairs]
        crs = [self.tiles.crs(tile) for tile in tiles]
        return {"affine": torch.tensor(affine, dtype=torch.float64).reshape(-1, 6), "crs": crs}


class _Item(dict[str, Any]):
    """An item, of a type that torch's collation can be extended for."""


def collate(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Stack items into a batch whose images are channels last.

    DataLoader does this by itself with items of `TileDataset`. A dataset that wraps it and creates
    other items may want ``DataLoader(collate_fn=collate)``, since torch's own collation
    copies every image to a bands-first layout.

    Parameters
    ----------
    items
        Mappings with ``image`` uint8 (band, y, x) and other values that torch can collate.
    """
    # With bands last torch stacks whole rows; in a worker process, directly in shared memory.
    rows = [{**item, "image": item["image"].permute(1, 2, 0)} for item in items]
    batch: dict[str, Any] = default_collate(rows)
    return batch | {"image": batch["image"].permute(0, 3, 1, 2)}


def _collate_items(batch: Sequence[_Item], *, collate_fn_map: object = None) -> dict[str, Any]:
    """Collate as `collate`; called by `torch.utils.data.default_collate`."""
    return collate(batch)


# As torch documents for new types.
default_collate_fn_map[_Item] = _collate_items
