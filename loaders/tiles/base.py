"""Base class of all kinds of tiles: their table, and the copying of crops."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.store.reader import StoreReader
from loaders.batch import BufferPool, Crops, Pixels, crop_affine
from loaders.memory import format_bytes
from loaders.prefetch import SideThreads
from loaders.sampling import Sampling, StepCrops
from loaders.selection import Origin, Readers, TileTable, open_stores


class CropReader(ABC):
    """Copies crops of tiles into batches."""

    device = torch.device("cpu")  # of the pixels: batches are filled there
    asynchronous = False  # `copy` returns before the pixels are there: it needs no threads
    immediate = False  # `copy` moves bytes in memory, and neither reads nor decodes any

    @abstractmethod
    def copy(self, crops: Crops, image: Any, label: Any) -> None:  # noqa: ANN401 - as below
        """Copy crops to uint8 (n, y, x, band) and (n, y, x), C-contiguous, in any thread.

        Arrays or tensors on the host, tensors on another device.
        """

    def announce(self, steps: StepCrops) -> SideThreads | None:
        """Prepare for the crops of an epoch; return threads that must run meanwhile.

        UsageError if another epoch is running in the same memory.
        """
        del steps
        return None


class Tiles(CropReader):
    """Tiles of one or several stores, wherever their pixels are.

    Attributes
    ----------
    side
        Side of a tile in pixels: its level.
    road_fraction
        float32 (tile,), share of road of every tile.
    class_names
        Names of the classes in the order of label values; empty for labels of speeds.
    """

    def __init__(self, origin: Origin, table: TileTable, stores: Readers | None = None) -> None:
        self.origin = origin
        self.side, self.bands, self.left_out = origin.side, tuple(origin.bands), origin.left_out
        self.table = table
        self.road_fraction: NDArray[np.float32] = table["road_fraction"]
        self.class_names = tuple(origin.classes)
        self._stores = None if stores is None else tuple(stores)

    @abstractmethod
    def decode(self, tile: int, image: Pixels | None, label: Pixels | None) -> None:
        """Copy one whole tile to the host.

        Parameters
        ----------
        tile
            Index of the tile.
        image, label
            uint8 (y, x, band) and (y, x), C-contiguous; written. None leaves one out.
        """

    def copy(self, crops: Crops, image: Any, label: Any) -> None:  # noqa: ANN401 - see CropReader
        """Copy crops, decoding each of their tiles once; see `CropReader.copy`."""
        from loaders.copying import copy_crops  # numba is slow to import

        images, labels = np.asarray(image), np.asarray(label)
        whole = images.shape[1] == self.side and not crops.op.any()
        pixels, mask = self._empty()
        last = -1
        for i in np.argsort(crops.tile, kind="stable").tolist():
            tile, here = int(crops.tile[i]), slice(i, i + 1)
            if whole:
                self.decode(tile, images[i], labels[i])
                continue
            if tile != last:
                self.decode(tile, pixels, mask)
                last = tile
            crop = crops.rows(here)._replace(tile=np.zeros(1, np.int64))
            copy_crops(pixels[None], mask[None], crop, images[here], labels[here])

    def reader(self, sampling: Sampling, world_size: int, buffers: BufferPool) -> CropReader:
        """Return what copies the crops of an epoch for one loader.

        Parameters
        ----------
        sampling
            The samples of an epoch, made by `sampling` of these tiles.
        world_size
            Number of ranks that share an epoch.
        buffers
            Buffers of the loader's batches, which count towards a memory limit.

        Raises
        ------
        UsageError
            Tiles and batches do not fit into the memory limit of these tiles.
        """
        del sampling, world_size, buffers
        return self

    def sampling(self, **options: Any) -> Sampling:  # noqa: ANN401 - the fields of Sampling
        """Return the samples of an epoch of these tiles; options are the fields of `Sampling`."""
        return Sampling(len(self), self.side, **options)

    @property
    def has_classes(self) -> bool:
        """Whether labels hold classes, not speeds."""
        return bool(self.class_names)

    def label_of(self, tile: int) -> Pixels:
        """Return the label of a tile on the host, uint8 (y, x)."""
        label = np.empty((self.side, self.side), np.uint8)
        self.decode(tile, None, label)
        return label

    def pixels(self, tile: int) -> tuple[Pixels, Pixels]:
        """Return copies of image and label on the host, uint8 (y, x, band) and (y, x)."""
        image, label = self._empty()
        self.decode(tile, image, label)
        return image, label

    def _empty(self) -> tuple[Pixels, Pixels]:
        shape = (self.side, self.side)
        return np.empty((*shape, len(self.bands)), np.uint8), np.empty(shape, np.uint8)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def tile_bytes(self) -> int:
        """Bytes of one tile, image and label."""
        return self.side * self.side * (len(self.bands) + 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all tiles, images and labels."""
        return len(self) * self.tile_bytes

    @property
    def stores(self) -> tuple[StoreReader, ...]:
        """The stores of the tiles; none for tiles from arrays."""
        if self._stores is None:
            self._stores = open_stores(self.origin.stores) if self.origin.stores else ()
        return self._stores

    @property
    def store(self) -> StoreReader:
        """The store of the tiles; an error unless there is exactly one."""
        if len(self.stores) != 1:
            raise UsageError(
                f"these tiles come from {len(self.stores)} stores: use `tiles.stores`, which "
                "DevicePrep.from_store accepts as well"
            )
        return self.stores[0]

    @property
    def fingerprint(self) -> str:
        """Number and checksum of the tiles: the same for the same tiles in the same order."""
        parts = (self.table[name].tobytes() for name in ("store", "tile", "transform"))
        return f"{len(self)}x{self.side}x{len(self.bands)}-{zlib.crc32(b''.join(parts)):08x}"

    def scene(self, tile: int) -> str:
        """Return the id of a tile's scene."""
        store, scene = self._scene_of(tile)
        return self.origin.scenes[store][scene]

    def crs(self, tile: int) -> str:
        """Return the CRS of a tile's affine."""
        store, scene = self._scene_of(tile)
        return self.origin.crs[store][scene]

    def affine(
        self, tile: int, crop: tuple[int, int, int] = (0, 0, 0), side: int | None = None
    ) -> tuple[float, float, float, float, float, float]:
        """Return the affine of a tile, or of a crop of it, at the level of these tiles.

        Parameters
        ----------
        tile
            Index of the tile.
        crop
            Row, column and symmetry, a row of `Batch.where`.
        side
            Side of the crop in pixels; None for the whole tile.

        Returns
        -------
        tuple of float
            ``a b c d e f`` of rasterio, pixel corner (column, row) -> CRS.
        """
        a, b, c, d, e, f = self.table["transform"][tile].tolist()
        scale = self.origin.finest[self._scene_of(tile)[0]] / self.side
        level = (a * scale, b * scale, c, d * scale, e * scale, f)
        return crop_affine(level, *crop, self.side if side is None else side)

    def _scene_of(self, tile: int) -> tuple[int, int]:
        """Return the numbers of a tile's store, and of its scene in that store."""
        return int(self.table["store"][tile]), int(self.table["scene"][tile])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stores": None}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} tiles of {self.side} x {self.side} x "
            f"{len(self.bands)}, {self._size()}, left out {self.left_out or 'none'})"
        )

    def _size(self) -> str:
        """Return the size of the tiles, for people."""
        return format_bytes(self.nbytes)
