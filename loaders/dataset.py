"""The same samples for ``torch.utils.data.DataLoader``.

The items of a batch are copied into one block, in a worker process into the shared memory that the
batch is sent in (``/dev/shm``, 64 MB in a container by default), and collated without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import prod
from operator import is_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from loaders.batch import Crops
from loaders.memory import ArrayLayout, SharedArrays
from loaders.sampling import Augment
from loaders.tiles.ram import RamTiles


class TileDataset(Dataset[dict[str, Any]]):
    """Tiles, or random crops of them, as a map-style dataset.

    Item ``i`` is a function of (seed, epoch, i) alone; DataLoader determines the order. The n-th
    draw of an item, in whatever process, is that of epoch n, counted from 0, so that each pass
    shows other crops; `set_epoch` fixes the epoch instead. The pickle is a handle of some hundred
    bytes.

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
        # Shared, so that workers see the next epoch and the draws of each other.
        counters: ArrayLayout = {"epoch": ("int64", (1,)), "draws": ("int64", (len(self),))}
        self._counters = _Counters.create(counters)
        self.set_epoch(-1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of all draws from now on; -1 counts them. Worker processes follow."""
        self._counters["epoch"][0] = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, -1 unless it was set, and the draws of every item, int64 (item,)."""
        counters = self._counters
        return {"epoch": int(counters["epoch"][0]), "draws": torch.tensor(counters["draws"])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from a state of `state_dict`."""
        self.set_epoch(state["epoch"])
        self._counters["draws"][:] = state["draws"]

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
        """Return several items as views of one batch; DataLoader calls this method."""
        for item in items:
            if not -len(self) <= item < len(self):
                raise IndexError(f"there is no item {item}: the dataset has {len(self)} items")
        samples = np.array(items, np.int64) % len(self)
        epochs = self._epochs(samples)
        parts = [self.sampling.crops(e, samples[epochs == e]) for e in np.unique(epochs).tolist()]
        back = np.argsort(np.argsort(epochs, kind="stable"))
        crops = Crops(*(np.concatenate(columns)[back] for columns in zip(*parts, strict=True)))
        n, side, bands = len(samples), self.sampling.sample_side, len(self.tiles.bands)
        image, label = _empty(n, side, side, bands), _empty(n, side, side)
        self.tiles.copy(crops, image, label)
        batch: dict[str, Any] = {
            "image": image.permute(0, 3, 1, 2),
            "label" if self.tiles.has_classes else "speed": label,
            "index": torch.from_numpy(crops.tile),
            "key": torch.from_numpy(crops.key),
        }
        columns: list[Any] = [batch["image"], label, crops.tile.tolist(), crops.key.tolist()]
        if self.georeference:
            batch |= self._georeference(crops)
            columns += [batch["affine"], batch["crs"]]
        return _Items(zip(*columns, strict=True), batch)

    def _epochs(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the epoch of each item to be drawn, and count the draws."""
        (fixed,), draws = self._counters.values()
        epochs = draws[samples]
        np.add.at(draws, samples, 1)
        return epochs if fixed < 0 else np.full_like(samples, fixed)

    def _georeference(self, crops: Crops) -> dict[str, Any]:
        """Return affine and CRS of crops."""
        side, tiles = self.sampling.sample_side, crops.tile.tolist()
        where = np.stack([crops.y, crops.x, crops.op], axis=1).tolist()
        pairs = zip(tiles, where, strict=True)
        affine = [self.tiles.affine(tile, (y, x, op), side) for tile, (y, x, op) in pairs]
        crs = [self.tiles.crs(tile) for tile in tiles]
        return {"affine": torch.tensor(affine, dtype=torch.float64).reshape(-1, 6), "crs": crs}


class _Counters(SharedArrays):
    """Arrays that other processes write to as well."""

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(_Counters.attach, writable=True), (self.handle, self._layout)


class _Item(dict[str, Any]):
    """An item, of a type that torch's collation can be extended for."""


class _Items(list[dict[str, Any]]):
    """Items (their values in ``rows``), and the batch (name to column) that they are views of."""

    def __init__(self, rows: Iterable[tuple[Any, ...]], batch: dict[str, Any]) -> None:
        self._rows = list(rows)
        self._batch = batch
        super().__init__(_Item(zip(batch, row, strict=True)) for row in self._rows)

    def collated(self) -> dict[str, Any] | None:
        """Return the batch, or None if the items have other values by now."""
        same = len(self) == len(self._rows) and all(
            len(item) == len(row) and all(map(is_, item.values(), row))
            for item, row in zip(self, self._rows, strict=True)
        )
        return self._batch if same else None


def _empty(*shape: int) -> Tensor:
    """Return a new uint8 tensor, in a worker process in shared memory as torch's collation."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(prod(shape))  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


def collate(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Stack items into a batch whose images are channels last.

    DataLoader does this by itself with unchanged items of `TileDataset`. A dataset that wraps it
    and creates other items may want ``DataLoader(collate_fn=collate)``, since torch's own collation
    copies every image to a bands-first layout.

    Parameters
    ----------
    items
        Mappings with ``image`` uint8 (band, y, x) and other values that torch can collate.
    """
    whole = items.collated() if isinstance(items, _Items) else None
    if whole is not None:
        return whole
    # With bands last torch stacks whole rows; in a worker process, directly in shared memory.
    rows = [{**item, "image": item["image"].permute(1, 2, 0)} for item in items]
    batch: dict[str, Any] = default_collate(rows)
    return batch | {"image": batch["image"].permute(0, 3, 1, 2)}


# As torch documents for new types: `torch.utils.data.default_collate` calls it.
default_collate_fn_map[_Item] = lambda items, **_: collate(items)
