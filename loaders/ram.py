"""A split of one or more stores in memory: one copy on a machine, whoever reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError, UsageError
from geoprep.store import REPAIR, Store
from loaders.ahead import Ahead, Progress, progress_bar
from loaders.batch import Batch, Feed, Request, as_items, copy_window, copy_windows
from loaders.chunks import Decoder, Part, read_all
from loaders.memory import amount
from loaders.sampling import Drawn, Step, Windows
from loaders.selection import ROW, Origin, Plan, Split, Stores, Table, check_fits, plan_load
from loaders.shared import Handle, Layout, SharedArrays, load_once
from loaders.tiles import Tiles

LOAD_THREADS = 4
"""Shards read at a time."""

Keep = Literal["pixels", "compressed"]


class RamTiles(Tiles):
    """Tiles and their table in shared, read-only memory.

    It pickles as a handle of some hundred bytes, whatever its size: a worker under fork, spawn or
    forkserver, or any process of this machine that is sent the pickle, attaches to the same
    memory, and needs neither the store nor zarr.

    Parameters
    ----------
    arrays
        Pixels, table and origin.
    stores
        The opened stores where there are any; opened again when they are asked for.
    """

    def __init__(self, arrays: SharedArrays, stores: Sequence[Store] | None = None) -> None:
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
        folds: int | None = None,
        fold: int = 0,
        split_seed: int = 0,
        keep: Keep = "pixels",
        threads: int = LOAD_THREADS,
        share: bool = True,
        progress: bool | Progress | None = None,
    ) -> RamTiles:
        """Load a split into memory.

        Parameters
        ----------
        stores
            A store or several: opened, a local path or an address. Several are one data set.
        split
            ``train``, ``val``, ``test`` or ``all``.
        level
            Tile side in pixels; None for the finest.
        bands
            Names of the bands to keep, in this order; None for all.
        folds, fold, split_seed
            Cut train and val anew as fold ``fold`` of ``folds``; the test split stays.
        keep
            ``pixels``, or ``compressed``: chunks as they are stored, each decoded whenever a
            batch has a window of it. The same batches, in less memory and more processor time;
            `image` and `speed` then do not exist.
        threads
            Shards read at a time.
        share
            Where torch.distributed is initialised: load once per machine and attach in its other
            ranks. That is a collective; False lets every rank load for itself.
        progress
            True for a bar, None for one where somebody is at a terminal, or a function that is
            called with (tiles read, tiles in all).

        Raises
        ------
        StoreError
            A store cannot be used, lacks the level, or is corrupted; array and shard are named.
        UsageError
            It does not fit into memory, no tile is usable, or the arguments do not fit together.
        """

        def load() -> RamTiles:
            plan = plan_load(stores, split, level, bands, folds, fold, split_seed)
            with progress_bar(progress, f"loading {plan.name}") as report:
                return ways[keep](plan, threads, report)

        ways = {"pixels": _load_pixels, "compressed": _load_compressed}
        if keep not in ways:
            raise UsageError(f"keep={keep!r} is not one of {', '.join(ways)}")
        return load_once(load) if share else load()

    @classmethod
    def from_arrays(
        cls,
        image: NDArray[np.uint8],
        speed: NDArray[np.uint8],
        *,
        bands: Sequence[str] | None = None,
        transform: NDArray[np.float64] | None = None,
        crs: str = "EPSG:4326",
    ) -> RamTiles:
        """Copy arrays into shared memory: tiles that never were in a store.

        Parameters
        ----------
        image
            uint8 (tile, side, side, band).
        speed
            uint8 (tile, side, side).
        bands
            Names of the bands; numbers from 1 by default.
        transform
            float64 (tile, 6), affine of each tile; pixel coordinates by default.
        crs
            Of the transform.
        """
        n, side, width, count = image.shape
        if speed.shape != (n, side, side) or width != side:
            raise UsageError(
                f"image {image.shape} and speed {speed.shape} do not match: (tile, side, side, "
                "band) and (tile, side, side) are needed"
            )
        known = (speed != 255).sum(axis=(1, 2))
        road = ((speed != 255) & (speed != 0)).sum(axis=(1, 2))
        table = np.zeros(n, ROW)
        table["tile"] = table["scene"] = np.arange(n)
        table["transform"] = (1, 0, 0, 0, 1, 0) if transform is None else transform
        table["road_fraction"] = road / np.maximum(known, 1)
        table["valid_fraction"] = known / (side * side)
        names = [str(i + 1) for i in range(count)] if bands is None else list(bands)
        origin = Origin(side, names, {}, [], [side], [[str(i) for i in range(n)]], [[crs] * n])
        arrays = _share(origin, table, _pixels(origin, n))
        arrays["image"][:], arrays["speed"][:] = image, speed
        arrays.freeze()
        return cls(arrays, ())

    @property
    def image(self) -> NDArray[np.uint8]:
        """uint8 (tile, y, x, band)."""
        return self._arrays["image"]

    @property
    def speed(self) -> NDArray[np.uint8]:
        """uint8 (tile, y, x), mph; 0 no road, 255 no data."""
        return self._arrays["speed"]

    def copy(self, windows: Windows, image: NDArray[np.uint8], speed: NDArray[np.uint8]) -> None:
        """Copy windows of these tiles, in any thread.

        Parameters
        ----------
        windows
            Which.
        image, speed
            uint8 (n, y, x, band) and (n, y, x), C-contiguous; written.
        """
        copy_windows(as_items(self.image), self.speed, windows, image, speed)

    def feed(self, request: Request) -> Feed:
        """Return what fills batches from memory, each as a whole in one of several threads."""
        ring = request.ring()

        def batches(epoch: int, steps: Sequence[Step]) -> Iterator[Batch]:
            drawn = Drawn(request.sampling, epoch, steps)

            def fill(step: int) -> Batch:
                windows = drawn(step)
                batch = request.batch(ring, windows)
                self.copy(windows, *batch.arrays())
                return batch

            return Ahead(fill, range(len(steps)), threads=request.threads, ahead=request.prefetch)

        return batches

    def speed_of(self, tile: int) -> NDArray[np.uint8]:
        """Return the mask of a tile, uint8 (y, x)."""
        mask: NDArray[np.uint8] = self.speed[tile]
        return mask

    def pixels(self, tile: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return copies of image and mask, uint8 (y, x, band) and (y, x)."""
        return self.image[tile].copy(), self.speed[tile].copy()

    @property
    def handle(self) -> Handle:
        """Where other processes find the memory, and how large it is."""
        return self._arrays.handle

    def __reduce__(self) -> tuple[Any, ...]:
        return RamTiles, (self._arrays,)


class CompressedTiles(RamTiles):
    """Tiles whose chunks are kept as stored, and decoded for every batch.

    Parameters
    ----------
    arrays
        ``chunks`` uint8, ``bounds`` int64 (tile, 2, 2), first byte and the one after the last of
        image and mask; and the table.
    decoders
        Of images and masks, per store.
    stores
        As for `RamTiles`.
    """

    def __init__(
        self,
        arrays: SharedArrays,
        decoders: Sequence[tuple[Decoder, Decoder]],
        stores: Sequence[Store] | None = None,
    ) -> None:
        super().__init__(arrays, stores)
        self._decoders = decoders
        self._chunks, self._bounds = arrays["chunks"], arrays["bounds"]

    @property
    def image(self) -> NDArray[np.uint8]:
        """Nowhere."""
        raise UsageError("tiles kept compressed are no arrays: use pixels(), or keep='pixels'")

    @property
    def speed(self) -> NDArray[np.uint8]:
        """Nowhere."""
        return self.image

    def copy(self, windows: Windows, image: NDArray[np.uint8], speed: NDArray[np.uint8]) -> None:
        """Decode tiles and copy windows of them, as `RamTiles.copy` does."""
        whole = image.shape[1] == self.side and not windows.op.any()
        pixels, mask = (None, None) if whole else self._empty()
        last = -1
        for i in np.argsort(windows.tile, kind="stable").tolist():
            tile, y, x, op = (int(a[i]) for a in (windows.tile, windows.y, windows.x, windows.op))
            if pixels is None or mask is None:
                self._decode(tile, image[i], speed[i])
                continue
            if tile != last:
                self._decode(tile, pixels, mask)
                last = tile
            copy_window(as_items(pixels), y, x, op, as_items(image[i]))
            copy_window(mask, y, x, op, speed[i])

    def speed_of(self, tile: int) -> NDArray[np.uint8]:
        """Return the mask of a tile, uint8 (y, x)."""
        mask = np.empty((self.side, self.side), np.uint8)
        self._decode(tile, None, mask)
        return mask

    def pixels(self, tile: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return image and mask, uint8 (y, x, band) and (y, x)."""
        image, mask = self._empty()
        self._decode(tile, image, mask)
        return image, mask

    def _empty(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        shape = (self.side, self.side)
        return np.empty((*shape, len(self.bands)), np.uint8), np.empty(shape, np.uint8)

    def _decode(self, tile: int, *out: NDArray[np.uint8] | None) -> None:
        """Decode image and mask of a tile, those that are wanted.

        Raises
        ------
        StoreError
            What the store holds under a good checksum is no tile.
        """
        store = int(self.table["store"][tile])
        bounds = self._bounds[tile].tolist()
        for decode, (start, end), target in zip(self._decoders[store], bounds, out, strict=True):
            try:
                if target is not None:
                    decode(self._chunks[start:end], target)
            except (ValueError, RuntimeError) as error:
                raise StoreError(
                    f"{self.origin.stores[store]}: array {decode.layout.array}, tile "
                    f"{self.table['tile'][tile]} cannot be decoded: {error}. {REPAIR}"
                ) from error

    def _held(self) -> str:
        return f"{amount(self._chunks.nbytes)} compressed, {super()._held()} as pixels"

    def __reduce__(self) -> tuple[Any, ...]:
        return CompressedTiles, (self._arrays, self._decoders)


def _load_pixels(plan: Plan, threads: int, progress: Progress | None) -> RamTiles:
    """Return tiles as pixels."""
    check_fits(plan)
    arrays = _share(plan.origin, plan.table, _pixels(plan.origin, len(plan.table)))

    def read(part: Part) -> None:
        for pixels, name in zip(part.arrays, ("image", "speed"), strict=True):
            pixels.read(part.rows, arrays[name][part.places])

    read_all(list(plan.parts()), read, threads=threads, progress=progress)
    arrays.freeze()
    return RamTiles(arrays, plan.stores)


def _load_compressed(plan: Plan, threads: int, progress: Progress | None) -> RamTiles:
    """Return tiles as they are stored; the indexes of their shards tell how large those are."""
    parts = list(plan.parts())
    sizes = np.zeros((len(plan.table), 2), np.int64)

    def ask(part: Part) -> None:
        for kind, pixels in enumerate(part.arrays):
            sizes[part.places, kind] = pixels.stored_sizes(part.rows)

    read_all(parts, ask, threads=threads)
    ends = np.cumsum(sizes).reshape(sizes.shape)
    nbytes = int(ends[-1, -1])
    check_fits(plan, nbytes)
    layout: Layout = {"chunks": ("u1", (nbytes,)), "bounds": ("i8", (len(plan.table), 2, 2))}
    arrays = _share(plan.origin, plan.table, layout)
    arrays["bounds"][:] = np.stack([ends - sizes, ends], axis=-1)

    def read(part: Part) -> None:
        for kind, pixels in enumerate(part.arrays):
            bounds = arrays["bounds"][part.places, kind].tolist()
            pixels.read_stored(part.rows, [arrays["chunks"][slice(*each)] for each in bounds])

    read_all(parts, read, threads=threads, progress=progress)
    arrays.freeze()
    decoders = [(image.decode, speed.decode) for image, speed in plan.arrays()]
    return CompressedTiles(arrays, decoders, plan.stores)


def _pixels(origin: Origin, tiles: int) -> Layout:
    shape = (tiles, origin.side, origin.side)
    return {"image": ("u1", (*shape, len(origin.bands))), "speed": ("u1", shape)}


def _share(origin: Origin, table: Table, layout: Layout) -> SharedArrays:
    """Return new shared memory, filled but for what the layout names."""
    small = {"origin": np.frombuffer(json.dumps(origin).encode(), np.uint8), "table": table}
    arrays = SharedArrays.create(layout | {k: (v.dtype, v.shape) for k, v in small.items()})
    for name, values in small.items():
        arrays[name][:] = values
    return arrays
