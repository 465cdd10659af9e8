"""WebDataset: tar shards read in order, shuffled in a buffer, batched inside the workers."""

from __future__ import annotations

from pathlib import Path

import webdataset

from benchmarks.peers.base import Loader, Task

PACKAGES = ("webdataset",)
GREY = 1.0
_SHARDS = 8
"""At least one for each worker; shards are dealt out whole."""


def prepare(task: Task, out: Path) -> None:
    """Write arrays into tar shards."""
    image, speed = task.image, task.speed
    rows = -(-len(image) // _SHARDS)
    with webdataset.ShardWriter(str(out / "%04d.tar"), maxcount=rows, verbose=0) as sink:
        for tile in range(len(image)):
            sink.write(
                {"__key__": f"{tile:06d}", "image.npy": image[tile], "speed.npy": speed[tile]}
            )


def open_loader(task: Task, source: Path) -> Loader:
    """Return a WebLoader that takes whole batches from its workers, as its documentation says."""
    shards = [str(path) for path in sorted(source.glob("*.tar"))]
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(2 * task.batch_size)
        .decode()
        .to_tuple("image.npy", "speed.npy")
        .batched(task.batch_size, partial=True)
    )
    loader: Loader = webdataset.WebLoader(
        dataset,
        batch_size=None,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
    )
    return loader
