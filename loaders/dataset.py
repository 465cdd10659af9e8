"""The same samples for ``torch.utils.data.DataLoader``.

The items of a batch are copied into one block and collated without a copy. In a worker process the
block is anonymous memory that the loop's process attaches to, and that the worker fills again when
the loop has dropped the batch: new pages would take ten times as long as the copy.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import is_
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from loaders.batch import Batch, Crops, batch_of, block_bytes, describe
from loaders.memory import ArrayLayout, MemoryHandle, SharedArrays
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
        self._counters = _Writable.create(counters)
        self.set_epoch(-1)
        # Kernels that are loaded here are shared by workers that are forked.
        none = Crops(*np.empty((6, 0), np.int64))
        pixels = np.empty((0, self.sampling.sample_side, self.sampling.sample_side), np.uint8)
        tiles.copy(none, pixels[..., None].repeat(len(tiles.bands), -1), pixels)

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
        drawn = [self.sampling.crops(e, samples[epochs == e]) for e in np.unique(epochs).tolist()]
        back = np.argsort(np.argsort(epochs, kind="stable"))
        crops = Crops(*(np.concatenate(columns)[back] for columns in zip(*drawn, strict=True)))
        shape = len(samples), self.sampling.sample_side, len(self.tiles.bands)
        block = None if get_worker_info() is None else _free_block(block_bytes(*shape))
        memory = (
            torch.empty(block_bytes(*shape), dtype=torch.uint8) if block is None else block.lend()
        )
        parts = batch_of(memory, *shape, has_classes=self.tiles.has_classes)
        describe(parts, crops)
        self.tiles.copy(crops, parts.image.permute(0, 2, 3, 1), parts.label)
        batch = _columns(parts) if block is None else _Sent(parts, block, shape)
        columns: list[Any] = [*list(batch.values())[:2], crops.tile.tolist(), crops.key.tolist()]
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


class _Writable(SharedArrays):
    """Arrays that other processes write to as well."""

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(_Writable.attach, writable=True), (self.handle, self._layout)


class _Block(_Writable):
    """Memory of a batch, of the process that fills it or of the one that gets the batch."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach_block, (self.handle, self._layout)

    def lend(self) -> Tensor:
        """Return its bytes as a tensor; the block is free when nothing refers to them any more."""
        # Not a view of the array: torch would keep the array.
        view = np.frombuffer(self["bytes"].data, np.uint8)
        self.lent = weakref.finalize(view, self._give_back, os.getpid())
        self.lent.atexit = False
        return torch.from_numpy(view)

    def _give_back(self, process: int) -> None:
        if process == os.getpid():  # not in one that was forked meanwhile
            self["used"][0] = 0


def _attach_block(handle: MemoryHandle, layout: ArrayLayout) -> _Block:
    """Return a block of a worker; it stays attached until the worker has ended."""
    if handle not in _attached:
        for other in [h for h in _attached if not Path(f"/proc/{h.pid}").exists()]:
            del _attached[other]
        _attached[handle] = _Block.attach(handle, layout, writable=True)
    return _attached[handle]


_filled: list[_Block] = []
"""Blocks of this process, if it is a worker."""

_attached: dict[MemoryHandle, _Block] = {}
"""Blocks of worker processes."""


def _free_block(nbytes: int) -> _Block:
    """Return a block of this worker that has room and is not in use, or a new one."""
    for block in _filled:
        if not block["used"][0] and block["bytes"].nbytes >= nbytes:
            break
    else:
        layout: ArrayLayout = {"used": ("int64", (1,)), "bytes": ("uint8", (nbytes,))}
        block = _Block.create(layout)
        _filled.append(block)
    block["used"][0] = 1
    return block


class _Sent(dict[str, Any]):
    """A batch in a block; its pickle is a handle of the block, unless its columns were replaced."""

    def __init__(self, parts: Batch, block: _Block, shape: tuple[int, int, int]) -> None:
        super().__init__(_columns(parts))
        self._parts, self._block, self._shape, self._lent = dict(self), block, shape, block.lent

    def __reduce__(self) -> tuple[Any, ...]:
        whole = all(self.get(name) is value for name, value in self._parts.items())
        # From here on the receiver gives the block back. A second pickle has copies.
        if not whole or self._lent.detach() is None:
            return dict, (dict(self),)
        rest = {name: value for name, value in self.items() if name not in self._parts}
        return _received, (self._block, self._shape, "label" in self, rest)


def _received(
    block: _Block, shape: tuple[int, int, int], has_classes: bool, rest: dict[str, Any]
) -> dict[str, Any]:
    """Return a batch that a worker has sent."""
    return _columns(batch_of(block.lend(), *shape, has_classes=has_classes)) | rest


def _columns(parts: Batch) -> dict[str, Any]:
    """Return the columns of a batch; who keeps the numbers only does not keep the block."""
    label, numbers = "label" if parts.has_classes else "speed", ("index", "key")
    columns = {"image": parts.image, label: parts.label}
    return columns | {name: getattr(parts, name).clone() for name in numbers}


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
