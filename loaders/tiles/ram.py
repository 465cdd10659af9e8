"""A split of one or more stores in memory: one copy per machine for all processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError, UsageError
from geoprep.store.reader import StoreReader
from geoprep.store.schema import REPAIR
from loaders.batch import Crops, Pixels, check_speeds
from loaders.chunks import Decoder, ReportProgress, ShardRead, progress_bar, read_all
from loaders.memory import ArrayLayout, MemoryHandle, SharedArrays, format_bytes, load_once
from loaders.selection import (
    ROW,
    LoadPlan,
    Origin,
    Split,
    Stores,
    TileChoice,
    TileTable,
    check_fits,
    plan_load,
)
from loaders.tiles.base import Tiles

LOAD_THREADS = 4
"""Shards read at the same time."""

Keep = Literal["pixels", "compressed"]


class RamTiles(Tiles):
    """Tiles and their table in shared, read-only memory.

    The pickle is a handle of some hundred bytes, whatever the size of the tiles. A worker under
    fork, spawn or forkserver, or any process of this machine that receives the pickle, attaches to
    the same memory, and needs neither the store nor zarr.

    Parameters
    ----------
    arrays
        Pixels, table and origin.
    stores
        The opened stores; None to open them again on first use.
    """

    immediate = True

    def __init__(self, arrays: SharedArrays, stores: Sequence[StoreReader] | None = None) -> None:
        self._arrays = arrays
        super().__init__(Origin(*json.loads(arrays["origin"].tobytes())), arrays["table"], stores)

    @classmethod
    def load(
        cls,
        stores: Stores,
        split: Split = "train",
        level: int | None = None,
        *,
        bands: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        folds: int | None = None,
        fold: int = 0,
        split_seed: int = 0,
        keep: Keep = "pixels",
        threads: int = LOAD_THREADS,
        progress: bool | ReportProgress | None = None,
    ) -> RamTiles:
        """Load a split into memory.

        If torch.distributed is initialised, one rank per machine loads and the others attach, which
        is a collective operation.

        Parameters
        ----------
        stores
            One store or several: opened, a local path or an address. Several are one data set.
        split
            ``train``, ``val``, ``test`` or ``all``.
        level
            Tile side in pixels; None for the finest.
        bands
            Names of the bands to keep, in this order; None for all.
        classes
            Names of the classes in the order of the values of loaded labels; None for the order
            of the first store. Every store must have these classes, in any order.
        folds, fold, split_seed
            Assign train and val anew as fold ``fold`` of ``folds``; the test split stays.
        keep
            ``pixels``, or ``compressed``: chunks as they are stored, each decoded whenever a
            batch has a crop of it. The batches are the same, in less memory and more processor
            time; `image` and `label` then do not exist.
        threads
            Shards read at the same time.
        progress
            True for a progress bar, None for one if standard error is a terminal, False for none;
            or a function that is called with (tiles read, tiles in all).

        Raises
        ------
        StoreError
            A store cannot be used, lacks the level, or is corrupted; array and shard are named.
        UsageError
            The tiles do not fit into memory, no tile is usable, or the arguments do not fit
            together.
        """

        def load() -> RamTiles:
            choice = TileChoice(split, level, bands, classes, folds, fold, split_seed)
            plan = plan_load(stores, choice)
            with progress_bar(progress, f"loading {plan.name}") as report:
                return loads[keep](plan, threads, report)

        loads = {"pixels": _load_pixels, "compressed": _load_compressed}
        if keep not in loads:
            raise UsageError(f"keep={keep!r} is not one of {', '.join(loads)}")
        return load_once(load)

    @classmethod
    def from_arrays(
        cls,
        image: Pixels,
        label: Pixels,
        *,
        classes: Sequence[str] = (),
        bands: Sequence[str] | None = None,
        transform: NDArray[np.float64] | None = None,
        crs: str = "EPSG:4326",
    ) -> RamTiles:
        """Copy arrays into shared memory, without a store.

        Parameters
        ----------
        image
            uint8 (tile, side, side, band).
        label
            uint8 (tile, side, side), 255 nodata; speeds in mph (0 background, 254 road of unknown
            speed), or numbers of classes.
        classes
            Names of the classes in the order of label values; empty for speeds.
        bands
            Names of the bands; None for numbers from 1.
        transform
            float64 (tile, 6), affine of each tile; None for pixel coordinates.
        crs
            CRS of the transform.

        Raises
        ------
        UsageError
            The shapes do not match.
        """
        n, side, width, count = image.shape
        if label.shape != (n, side, side) or width != side:
            raise UsageError(
                f"image {image.shape} and label {label.shape} do not match: give (tile, side, "
                "side, band) and (tile, side, side)"
            )
        known = (label != 255).sum(axis=(1, 2))
        road = ((label != 255) & (label != 0)).sum(axis=(1, 2)) * (not classes)
        table = np.zeros(n, ROW)
        table["tile"] = table["scene"] = np.arange(n)
        table["transform"] = (1, 0, 0, 0, 1, 0) if transform is None else transform
        table["road_fraction"] = road / np.maximum(known, 1)
        table["valid_fraction"] = known / (side * side)
        names = [str(i + 1) for i in range(count)] if bands is None else list(bands)
        ids = [str(i) for i in range(n)]
        origin = Origin(side, names, {}, [], [side], [ids], [[crs] * n], list(classes))
        arrays = _share(origin, table, _pixels(origin, n))
        arrays["image"][:], arrays["label"][:] = image, label
        arrays.freeze()
        return cls(arrays, ())

    @property
    def image(self) -> Pixels:
        """uint8 (tile, y, x, band)."""
        return self._arrays["image"]

    @property
    def label(self) -> Pixels:
        """uint8 (tile, y, x), speeds or classes as in `Batch.label`."""
        return self._arrays["label"]

    @property
    def speed(self) -> Pixels:
        """The label of speeds, uint8 (tile, y, x); raises UsageError for classes."""
        check_speeds("tiles.label", has_classes=self.has_classes)
        return self.label

    def copy(self, crops: Crops, image: Any, label: Any) -> None:  # noqa: ANN401 - see CropReader
        """Copy crops, in any thread; see `CropReader.copy`."""
        from loaders.copying import copy_crops  # numba is slow to import

        copy_crops(self.image, self.label, crops, np.asarray(image), np.asarray(label))

    def decode(self, tile: int, image: Pixels | None, label: Pixels | None) -> None:
        """Copy one whole tile; see `Tiles.decode`."""
        for source, target in ((self.image, image), (self.label, label)):
            if target is not None:
                target[:] = source[tile]

    @property
    def handle(self) -> MemoryHandle:
        """The handle that other processes attach to the memory with."""
        return self._arrays.handle

    def __reduce__(self) -> tuple[Any, ...]:
        return RamTiles, (self._arrays,)


class CompressedTiles(RamTiles):
    """Tiles whose chunks are kept as stored, and decoded for every batch.

    ``bounds`` int64 (tile, 2, 2): first byte and end of image and label in ``chunks``.
    """

    immediate = False

    def __init__(
        self,
        arrays: SharedArrays,
        decoders: Sequence[tuple[Decoder, Decoder]],
        stores: Sequence[StoreReader] | None = None,
    ) -> None:
        super().__init__(arrays, stores)
        self._decoders = decoders
        self._chunks, self._bounds = arrays["chunks"], arrays["bounds"]

    @property
    def image(self) -> Pixels:
        """Not available: raises UsageError."""
        raise UsageError("compressed tiles are not arrays: use pixels(), or keep='pixels'")

    @property
    def label(self) -> Pixels:
        """Not available: raises UsageError."""
        return self.image

    def copy(self, crops: Crops, image: Any, label: Any) -> None:  # noqa: ANN401 - see CropReader
        """Decode tiles and copy crops of them; see `CropReader.copy`."""
        Tiles.copy(self, crops, image, label)

    def decode(self, tile: int, image: Pixels | None, label: Pixels | None) -> None:
        """Decode one whole tile; see `Tiles.decode`."""
        store = int(self.table["store"][tile])
        bounds = self._bounds[tile].tolist()
        targets = zip(self._decoders[store], bounds, (image, label), strict=True)
        for decode, (start, end), target in targets:
            try:
                if target is not None:
                    decode(self._chunks[start:end], target)
            except (ValueError, RuntimeError) as error:
                raise StoreError(
                    f"{self.origin.stores[store]}: array {decode.layout.array}, tile "
                    f"{self.table['tile'][tile]} cannot be decoded: {error}. {REPAIR}"
                ) from error

    def _size(self) -> str:
        return f"{format_bytes(self._chunks.nbytes)} compressed, {super()._size()} as pixels"

    def __reduce__(self) -> tuple[Any, ...]:
        return CompressedTiles, (self._arrays, self._decoders)


def _load_pixels(plan: LoadPlan, threads: int, progress: ReportProgress | None) -> RamTiles:
    """Load tiles as pixels."""
    check_fits(plan)
    arrays = _share(plan.origin, plan.table, _pixels(plan.origin, len(plan.table)))

    def read(shard: ShardRead) -> None:
        for pixels, name in zip(shard.arrays, ("image", "label"), strict=True):
            pixels.read(shard.rows, arrays[name][shard.places])

    read_all(list(plan.reads()), read, threads=threads, progress=progress)
    arrays.freeze()
    return RamTiles(arrays, plan.stores)


def _load_compressed(plan: LoadPlan, threads: int, progress: ReportProgress | None) -> RamTiles:
    """Load the chunks of tiles as stored; their sizes are in the indexes of the shards."""
    shards = list(plan.reads())
    sizes = np.zeros((len(plan.table), 2), np.int64)

    def note_sizes(shard: ShardRead) -> None:
        for kind, pixels in enumerate(shard.arrays):
            sizes[shard.places, kind] = pixels.stored_sizes(shard.rows)

    read_all(shards, note_sizes, threads=threads)
    ends = np.cumsum(sizes).reshape(sizes.shape)
    nbytes = int(ends[-1, -1])
    check_fits(plan, nbytes)
    layout: ArrayLayout = {"chunks": ("u1", (nbytes,)), "bounds": ("i8", (len(plan.table), 2, 2))}
    arrays = _share(plan.origin, plan.table, layout)
    arrays["bounds"][:] = np.stack([ends - sizes, ends], axis=-1)

    def read(shard: ShardRead) -> None:
        for kind, pixels in enumerate(shard.arrays):
            bounds = arrays["bounds"][shard.places, kind].tolist()
            pixels.read_stored(shard.rows, [arrays["chunks"][slice(*each)] for each in bounds])

    read_all(shards, read, threads=threads, progress=progress)
    arrays.freeze()
    decoders = [(image.decode, label.decode) for image, label in plan.arrays()]
    return CompressedTiles(arrays, decoders, plan.stores)


def _pixels(origin: Origin, tiles: int) -> ArrayLayout:
    shape = (tiles, origin.side, origin.side)
    return {"image": ("u1", (*shape, len(origin.bands))), "label": ("u1", shape)}


def _share(origin: Origin, table: TileTable, layout: ArrayLayout) -> SharedArrays:
    """Return new shared memory with origin and table, and arrays of a layout to be filled."""
    small = {"origin": np.frombuffer(json.dumps(origin).encode(), np.uint8), "table": table}
    arrays = SharedArrays.create(layout | {k: (v.dtype, v.shape) for k, v in small.items()})
    for name, values in small.items():
        arrays[name][:] = values
    return arrays
