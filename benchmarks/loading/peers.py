"""Loaders to compare: a class each, configured as its documentation says for data in memory.

Each package is imported only when used; except for ours, they import nothing else of this project.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.loading.peer_task import (
    ByteCrops,
    ByteTiles,
    FloatTiles,
    Loader,
    NormalisedTiles,
    Pairs,
    Peer,
    Task,
    TiffTiles,
)

PAIR = itemgetter("image", "speed")

EPSG = "EPSG:32637"
"""Of all tiles: no loader has to warp one."""
WEBDATASET_SHARDS = 8
"""At least one shard per worker: workers read complete shards."""


# Ours


class Ours(Peer):
    """`BatchLoader`, of whole tiles or of crops; both have the same bytes per epoch."""

    packages = ("geoprep",)

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        from benchmarks.loading.data import load_tiles
        from loaders import BatchLoader

        tiles = load_tiles(task.store)
        loader = BatchLoader(
            tiles,
            task.batch_size,
            crop=task.crop,
            augment=None if task.crop is None else "d4",
            crops_per_tile=1 if task.crop is None else max(1, (tiles.side // task.crop) ** 2),
            threads=max(1, task.workers),
            drop_last=False,
        )
        return Pairs(loader, attrgetter("image", "speed"))


class OursDataset(Peer):
    """`TileDataset` in torch's DataLoader."""

    packages = ("geoprep",)

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        from loaders import RamTiles, TileDataset

        tiles = RamTiles.load(task.store, split="all", progress=False)
        loader = DataLoader(TileDataset(tiles), shuffle=True, **task.loading)
        return Pairs(loader, PAIR)


# torch's DataLoader


class Uint8(Peer):
    """A careful use of DataLoader: dtypes stay uint8, and batches go through ``/dev/shm``."""

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        pixels = task.in_memory()
        dataset = ByteTiles(*pixels) if task.crop is None else ByteCrops(*pixels, task.crop)
        return DataLoader(dataset, shuffle=True, **task.loading)


class Classic(Peer):
    """The usual DataLoader of float32 and int64."""

    grey = 255.0

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        return DataLoader(FloatTiles(*task.in_memory()), shuffle=True, **task.loading)


class Normalised(Peer):
    """A DataLoader whose workers make float32 images that are ready for a model."""

    normalised = True

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        return DataLoader(NormalisedTiles(*task.in_memory()), shuffle=True, **task.loading)


class TiffFiles(Peer):
    """A DataLoader that reads TIFF files in ``__getitem__``."""

    packages = ("rasterio",)

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        return DataLoader(TiffTiles(task), shuffle=True, **task.loading)


# General packages


class Ffcv(Peer):
    """FFCV with ``os_cache=True`` and order ``RANDOM``, as its guide says for data in memory.

    Its image field has three bands and JPEG; its array field has any shape. A page of 16 MiB holds
    several tiles of any measured size.
    """

    packages = ("ffcv",)

    @staticmethod
    def prepare(task: Task, out: Path) -> None:
        from ffcv.fields import NDArrayField
        from ffcv.writer import DatasetWriter

        arrays = {"image": task.image, "speed": task.speed}
        fields = {n: NDArrayField(np.dtype("uint8"), a.shape[1:]) for n, a in arrays.items()}
        writer = DatasetWriter(str(out / "tiles.beton"), fields, page_size=16 << 20, num_workers=1)
        writer.from_indexed_dataset([tuple(map(np.array, row)) for row in task.rows()])

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        from ffcv.fields.decoders import NDArrayDecoder
        from ffcv.loader import Loader as FFCVLoader
        from ffcv.loader import OrderOption
        from ffcv.transforms import ToTensor

        loader: Loader = FFCVLoader(
            str(source / "tiles.beton"),
            batch_size=task.batch_size,
            num_workers=max(1, task.workers),
            order=OrderOption.RANDOM,
            os_cache=True,
            drop_last=False,
            pipelines={name: [NDArrayDecoder(), ToTensor()] for name in ("image", "speed")},
        )
        return loader


def _litdata_row(task: Task, tile: int) -> dict[str, Tensor]:
    image, speed = (torch.from_numpy(array[tile].copy()) for array in (task.image, task.speed))
    return {"image": image, "speed": speed}


class LitData(Peer):
    """Chunks of 64 MB, the size in LitData's documentation; local chunks are mapped."""

    packages = ("litdata",)

    @staticmethod
    def prepare(task: Task, out: Path) -> None:
        import litdata

        tiles = list(range(len(task.image)))
        how = {"chunk_bytes": "64MB", "num_workers": 1, "verbose": False}
        litdata.optimize(partial(_litdata_row, task), tiles, output_dir=str(out), **how)

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        import litdata

        dataset = litdata.StreamingDataset(str(source), shuffle=True, drop_last=False)
        return Pairs(litdata.StreamingDataLoader(dataset, **task.loading), PAIR)


class Streaming(Peer):
    """Uncompressed MDS shards of arrays of fixed shape, the fastest encoding."""

    packages = ("mosaicml-streaming",)

    @staticmethod
    def prepare(task: Task, out: Path) -> None:
        from streaming import MDSWriter

        arrays = {"image": task.image, "speed": task.speed}
        columns = {n: "ndarray:uint8:" + ",".join(map(str, a.shape[1:])) for n, a in arrays.items()}
        with MDSWriter(out=str(out), columns=columns, exist_ok=True) as writer:
            for image, speed in task.rows():
                writer.write({"image": image.copy(), "speed": speed.copy()})

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        from streaming import StreamingDataLoader, StreamingDataset

        dataset = StreamingDataset(local=str(source), shuffle=True, batch_size=task.batch_size)
        return Pairs(StreamingDataLoader(dataset, **task.loading), PAIR)


class WebDataset(Peer):
    """A WebLoader whose workers make complete batches; shards are read in order, then shuffled."""

    packages = ("webdataset",)

    @staticmethod
    def prepare(task: Task, out: Path) -> None:
        import webdataset

        most = -(-len(task.image) // WEBDATASET_SHARDS)
        with webdataset.ShardWriter(str(out / "%04d.tar"), maxcount=most, verbose=0) as sink:
            for tile, (image, speed) in enumerate(task.rows()):
                sink.write({"__key__": f"{tile:06d}", "image.npy": image, "speed.npy": speed})

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        import webdataset

        shards = [str(path) for path in sorted(source.glob("*.tar"))]
        dataset = (
            webdataset.WebDataset(shards, shardshuffle=len(shards))
            .shuffle(2 * task.batch_size)
            .decode()
            .to_tuple("image.npy", "speed.npy")
            .batched(task.batch_size, partial=True)
        )
        loader: Loader = webdataset.WebLoader(dataset, **{**task.loading, "batch_size": None})
        return loader


# Geospatial packages


class TorchGeo(Peer):
    """The intersection of imagery and masks, as in TorchGeo's tutorials: float32 and int64.

    The fastest setup for tiles: one CRS and resolution, uncompressed files with a gap between them,
    so that a query never covers two, cached file handles, the sampler for chips.
    """

    packages = ("torchgeo",)

    @staticmethod
    def prepare(task: Task, out: Path) -> None:
        import rasterio

        gap = 100.0
        for kind in ("image", "speed"):
            (out / kind).mkdir()
            for number, path in enumerate(task.tiffs(kind)):
                with rasterio.open(path) as file:
                    pixels, profile = file.read(), file.profile
                left = 500_000.0 + number * (pixels.shape[-1] + gap)
                place = rasterio.Affine(1, 0, left, 0, -1, 6_000_000)
                profile.update(crs=EPSG, transform=place, compress=None)
                with rasterio.open(out / kind / path.name, "w", **profile) as file:
                    file.write(pixels)

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        from torchgeo.datasets import RasterDataset, stack_samples
        from torchgeo.samplers import PreChippedGeoSampler

        class Images(RasterDataset):  # type: ignore[misc] # no types if it is not installed
            filename_glob = "*.tif"
            is_image = True

        class Masks(Images):
            is_image = False

        dataset = Images(source / "image") & Masks(source / "speed")
        sampler = PreChippedGeoSampler(dataset, shuffle=True)
        loader: Any = DataLoader(dataset, sampler=sampler, collate_fn=stack_samples, **task.loading)
        return Pairs(loader, itemgetter("image", "mask"))


PEERS: dict[str, type[Peer]] = {
    "ours": Ours,
    "ours_dataset": OursDataset,
    "uint8": Uint8,
    "classic": Classic,
    "normalised": Normalised,
    "files": TiffFiles,
    "ffcv": Ffcv,
    "litdata": LitData,
    "streaming": Streaming,
    "webdataset": WebDataset,
    "torchgeo": TorchGeo,
}
