"""MosaicML Streaming: MDS shards in a local folder, with its own dataset and loader."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path

from benchmarks.peers.base import Loader, Pairs, Task
from benchmarks.peers.vision import import_torchvision

PACKAGES = ("mosaicml-streaming",)
GREY = 1.0

import_torchvision()
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402 - see above


def prepare(task: Task, out: Path) -> None:
    """Write raw arrays of fixed shape, uncompressed: its fastest encoding."""
    image, speed = task.image, task.speed
    columns = {
        name: "ndarray:uint8:" + ",".join(map(str, array.shape[1:]))
        for name, array in (("image", image), ("speed", speed))
    }
    with MDSWriter(out=str(out), columns=columns, exist_ok=True) as writer:
        for tile in range(len(image)):
            writer.write({"image": image[tile].copy(), "speed": speed[tile].copy()})


def open_loader(task: Task, source: Path) -> Loader:
    """Return its loader over its shuffled dataset, which is told the batch size as it asks."""
    dataset = StreamingDataset(local=str(source), shuffle=True, batch_size=task.batch_size)
    loader = StreamingDataLoader(
        dataset,
        batch_size=task.batch_size,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
    )
    return Pairs(loader, itemgetter("image", "speed"))
