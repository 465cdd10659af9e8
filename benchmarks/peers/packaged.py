"""Loaders of general packages; each package is imported only when used."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.task import Loader, Pairs, Peer, Task, import_torchvision

WEBDATASET_SHARDS = 8
"""At least one shard per worker: workers read complete shards."""

SPDL_PREFETCH = 3
"""Batches in SPDL's buffer, as with FFCV."""


class _Rows:
    """A map-style dataset of arrays, for FFCV's writer."""

    def __init__(self, task: Task) -> None:
        self.image, self.speed = task.image, task.speed

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, tile: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        return np.array(self.image[tile]), np.array(self.speed[tile])


def _write_ffcv(task: Task, out: Path) -> None:
    """Write a .beton file; a page of 16 MiB holds several tiles of any measured size.

    FFCV's image field has three bands and JPEG; its array field has any shape.
    """
    from ffcv.fields import NDArrayField
    from ffcv.writer import DatasetWriter

    arrays = {"image": task.image, "speed": task.speed}
    fields = {n: NDArrayField(np.dtype("uint8"), a.shape[1:]) for n, a in arrays.items()}
    writer = DatasetWriter(str(out / "tiles.beton"), fields, page_size=16 << 20, num_workers=1)
    writer.from_indexed_dataset(_Rows(task))


def _open_ffcv(task: Task, source: Path) -> Loader:
    """Return FFCV's loader, with its default of three prefetched batches.

    For data that fit into memory its tuning guide recommends ``os_cache=True``, order ``RANDOM``.
    """
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


def _row(task: Task, tile: int) -> dict[str, Tensor]:
    image, speed = (torch.from_numpy(array[tile].copy()) for array in (task.image, task.speed))
    return {"image": image, "speed": speed}


def _write_litdata(task: Task, out: Path) -> None:
    """Write chunks of 64 MB, the size in LitData's documentation; local chunks are mapped."""
    import_torchvision()
    import litdata

    tiles = list(range(len(task.image)))
    how = {"chunk_bytes": "64MB", "num_workers": 1, "verbose": False}
    litdata.optimize(partial(_row, task), tiles, output_dir=str(out), **how)


def _open_litdata(task: Task, source: Path) -> Loader:
    import_torchvision()
    import litdata

    dataset = litdata.StreamingDataset(str(source), shuffle=True, drop_last=False)
    loader = litdata.StreamingDataLoader(dataset, **task.loading)
    return Pairs(loader, itemgetter("image", "speed"))


def _write_streaming(task: Task, out: Path) -> None:
    """Write uncompressed MDS shards of arrays of fixed shape, the fastest encoding."""
    import_torchvision()
    from streaming import MDSWriter

    arrays = {"image": task.image, "speed": task.speed}
    columns = {n: "ndarray:uint8:" + ",".join(map(str, a.shape[1:])) for n, a in arrays.items()}
    with MDSWriter(out=str(out), columns=columns, exist_ok=True) as writer:
        for tile in range(len(task.image)):
            writer.write({name: array[tile].copy() for name, array in arrays.items()})


def _open_streaming(task: Task, source: Path) -> Loader:
    """Return the loader of a shuffled StreamingDataset, which needs the batch size too."""
    import_torchvision()
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=str(source), shuffle=True, batch_size=task.batch_size)
    return Pairs(StreamingDataLoader(dataset, **task.loading), itemgetter("image", "speed"))


def _write_webdataset(task: Task, out: Path) -> None:
    import webdataset

    image, speed = task.image, task.speed
    rows = -(-len(image) // WEBDATASET_SHARDS)
    with webdataset.ShardWriter(str(out / "%04d.tar"), maxcount=rows, verbose=0) as sink:
        for tile in range(len(image)):
            row = {"image.npy": image[tile], "speed.npy": speed[tile]}
            sink.write({"__key__": f"{tile:06d}", **row})


def _open_webdataset(task: Task, source: Path) -> Loader:
    """Return a WebLoader whose workers make complete batches, as its documentation recommends.

    Tar shards are read in order and shuffled in a buffer.
    """
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


def _write_spdl(task: Task, out: Path) -> None:
    """Write two uncompressed arrays per tile."""
    for kind, pixels in (("image", task.image), ("speed", task.speed)):
        for tile, values in enumerate(pixels):
            np.save(out / f"{tile:06d}.{kind}.npy", values)


def _load_spdl(stem: str) -> tuple[Any, ...]:
    """Return the arrays of one tile; SPDL's parser does not copy the bytes."""
    import spdl.io

    files = (Path(f"{stem}.{kind}.npy") for kind in ("image", "speed"))
    return tuple(spdl.io.load_npy(file.read_bytes()) for file in files)


def _collate_spdl(rows: list[tuple[Any, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True))


class _Pipelines:
    """A new threaded pipeline per epoch over shuffled file names, as SPDL recommends."""

    def __init__(self, task: Task, source: Path) -> None:
        self.task = task
        self.stems = [str(p).removesuffix(".image.npy") for p in sorted(source.glob("*.image.npy"))]
        self.random = np.random.default_rng(0)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        from spdl.pipeline import PipelineBuilder

        workers = max(1, self.task.workers)
        order = self.random.permutation(len(self.stems))
        pipeline = (
            PipelineBuilder()
            .add_source([self.stems[i] for i in order])
            .pipe(_load_spdl, concurrency=workers)
            .aggregate(self.task.batch_size)
            .pipe(_collate_spdl, concurrency=workers)
            .add_sink(SPDL_PREFETCH)
            .build(num_threads=workers)
        )
        with pipeline.auto_stop():
            yield from pipeline


PEERS = {
    "ffcv": Peer(_open_ffcv, ("ffcv",), _write_ffcv),
    "litdata": Peer(_open_litdata, ("litdata",), _write_litdata),
    "streaming": Peer(_open_streaming, ("mosaicml-streaming",), _write_streaming),
    "webdataset": Peer(_open_webdataset, ("webdataset",), _write_webdataset),
    "spdl": Peer(_Pipelines, ("spdl",), _write_spdl),
}
