"""The same tiles for people who live in ``torch.utils.data.DataLoader``.

A worker process attaches to the one copy in memory, whatever its start method. What DataLoader
itself needs stays: its batches travel through ``/dev/shm``, so where that is small (64 MB in a
container by default) keep ``batch_size * num_workers * prefetch_factor`` samples below it, use
``num_workers=0``, or use :class:`loaders.batches.BatchLoader`, which needs none of it.

DataLoader asks for the items of a batch together. They are gathered into one place, in a worker
straight into the shared memory that the batch travels in, and collated without a further copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from loaders.ram import RamTiles
from loaders.sampling import Augment, Windows
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
        self.sampling = tiles.sampling(
            crop=crop, augment=augment, crops_per_tile=crops_per_tile, seed=seed, shuffle=False
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
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Return several items, which are views of one batch; DataLoader asks for them so."""
        for item in items:
            if not -len(self) <= item < len(self):
                raise IndexError(f"item {item} of {len(self)}")
        samples = np.array(items, np.int64) % len(self)
        drawn = self.sampling.windows(int(self._epoch["epoch"][0]), samples)
        n, side, bands = len(samples), self.sampling.window, len(self.tiles.bands)
        image, speed = _empty(n, side, side, bands), _empty(n, side, side)
        self.tiles.copy(drawn, image.numpy(), speed.numpy())
        batch: dict[str, Any] = {
            "image": image.permute(0, 3, 1, 2),
            "speed": speed,
            "index": torch.from_numpy(drawn.tile),
            "key": torch.from_numpy(drawn.key),
        }
        columns: list[Any] = [batch["image"], speed, drawn.tile.tolist(), drawn.key.tolist()]
        if self.georeference:
            batch |= self._places(drawn)
            columns += [batch["affine"], batch["crs"]]
        return _Items(zip(*columns, strict=True), batch)

    def _places(self, drawn: Windows) -> dict[str, Any]:
        """Return affine and CRS of windows."""
        side, tiles = self.sampling.window, drawn.tile.tolist()
        where = np.stack([drawn.y, drawn.x, drawn.op], axis=1).tolist()
        pairs = zip(tiles, where, strict=True)
        affine = [self.tiles.affine(tile, (y, x, op), side) for tile, (y, x, op) in pairs]
        crs = [self.tiles.crs(tile) for tile in tiles]
        return {"affine": torch.tensor(affine, dtype=torch.float64).reshape(-1, 6), "crs": crs}


class _Item(dict[str, Any]):
    """An item, of a type that torch's collation can be taught to know."""


class _Items(list[dict[str, Any]]):
    """Items, and the batch that they are views of.

    Parameters
    ----------
    rows
        The values of every item, in order.
    batch
        Name to column: what the items collate to.
    """

    def __init__(self, rows: Iterable[tuple[Any, ...]], batch: dict[str, Any]) -> None:
        self._rows = list(rows)
        self._batch = batch
        super().__init__(_Item(zip(batch, row, strict=True)) for row in self._rows)

    def collated(self) -> dict[str, Any] | None:
        """Return the batch, or None if somebody put other values into the items."""
        same = len(self) == len(self._rows) and all(
            len(item) == len(row) and all(map(is_, item.values(), row))
            for item, row in zip(self, self._rows, strict=True)
        )
        return self._batch if same else None


def _empty(*shape: int) -> Tensor:
    """Return uint8, in a worker process shared memory, as torch's own collation has it there."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(prod(shape))  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


def collate(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Stack items into a batch whose images are channels last.

    DataLoader does so by itself with items of `TileDataset`, as they come; a dataset that wraps it
    and makes items of its own may want ``DataLoader(collate_fn=collate)``, since torch's own
    collation lays every image out anew, bands first.

    Parameters
    ----------
    items
        With ``image`` uint8 (band, y, x) and whatever else collates.
    """
    whole = items.collated() if isinstance(items, _Items) else None
    if whole is not None:
        return whole
    # Bands last, torch stacks whole rows; in a worker, straight into shared memory.
    rows = [{**item, "image": item["image"].permute(1, 2, 0)} for item in items]
    batch: dict[str, Any] = default_collate(rows)
    return batch | {"image": batch["image"].permute(0, 3, 1, 2)}


def _collate_items(batch: Sequence[_Item], *, collate_fn_map: object = None) -> dict[str, Any]:
    """Collate as `collate` does, called by `torch.utils.data.default_collate`."""
    return collate(batch)


# The way that torch documents for types of one's own.
default_collate_fn_map[_Item] = _collate_items
