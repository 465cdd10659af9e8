"""Common uses of torch's DataLoader, and our loaders, on the same task."""

from __future__ import annotations

from operator import attrgetter, itemgetter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.peers.task import Loader, Pairs, Peer, Task


class ByteTiles(Dataset[tuple[Tensor, Tensor]]):
    """A Dataset of tiles in memory: images uint8 (y, x, band), masks uint8 (y, x), not copied.

    A careful implementation: all workers share one array by fork, dtypes stay uint8, and batches go
    through ``/dev/shm``.
    """

    def __init__(self, task: Task) -> None:
        self.image = torch.from_numpy(np.array(task.image))
        self.speed = torch.from_numpy(np.array(task.speed))

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, tile: int) -> tuple[Tensor, Tensor]:
        return self.image[tile], self.speed[tile]


class FloatTiles(ByteTiles):
    """A Dataset with the usual dtypes: images float32 (band, y, x), 0 to 1; masks int64 (y, x).

    Four and eight times the bytes go through collation and ``/dev/shm``.
    """

    def __getitem__(self, tile: int) -> tuple[Tensor, Tensor]:
        return widened(*super().__getitem__(tile))


def widened(image: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
    """Return uint8 (y, x, band) as float32 (band, y, x) of 0..1, and a mask as int64."""
    return image.permute(2, 0, 1).to(torch.float32).div_(255.0), speed.to(torch.int64)


class TiffTiles(Dataset[tuple[Tensor, Tensor]]):
    """A Dataset that reads images uint8 (band, y, x) and masks uint8 (y, x) from TIFF files."""

    def __init__(self, task: Task) -> None:
        # Arrays of strings: reference counts make every worker copy a list of paths.
        self.images = np.array([str(path) for path in task.tiffs("image")])
        self.speeds = np.array([str(path) for path in task.tiffs("speed")])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, tile: int) -> tuple[Tensor, Tensor]:
        import rasterio

        with rasterio.open(self.images[tile]) as file:
            image = file.read()
        with rasterio.open(self.speeds[tile]) as file:
            speed = file.read(1)
        return torch.from_numpy(image), torch.from_numpy(speed)


class ByteCrops(Dataset[tuple[Tensor, Tensor]]):
    """A Dataset of random crops of tiles in memory, with one of the eight symmetries (D4)."""

    def __init__(self, task: Task, crop: int) -> None:
        self.image, self.speed = np.array(task.image), np.array(task.speed)
        self.crop = crop

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, tile: int) -> tuple[Tensor, Tensor]:
        top, left = torch.randint(self.image.shape[1] - self.crop + 1, (2,)).tolist()
        turns, mirrored = int(torch.randint(4, (1,))), bool(torch.rand(1) < 0.5)
        image, speed = (
            np.rot90(pixels[tile, top : top + self.crop, left : left + self.crop], turns)
            for pixels in (self.image, self.speed)
        )
        if mirrored:
            image, speed = image[:, ::-1], speed[:, ::-1]
        return torch.from_numpy(image.copy()), torch.from_numpy(speed.copy())


def _uint8(task: Task, source: Path) -> Loader:
    dataset: Dataset[tuple[Tensor, Tensor]] = (
        ByteTiles(task) if task.crop is None else ByteCrops(task, task.crop)
    )
    return DataLoader(dataset, shuffle=True, **task.loading)


def _classic(task: Task, source: Path) -> Loader:
    return DataLoader(FloatTiles(task), shuffle=True, **task.loading)


def _files(task: Task, source: Path) -> Loader:
    return DataLoader(TiffTiles(task), shuffle=True, **task.loading)


def _ours(task: Task, source: Path) -> Loader:
    """Return batches of whole tiles or of crops; both have the same bytes per epoch."""
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


def _ours_dataset(task: Task, source: Path) -> Loader:
    from loaders import RamTiles, TileDataset

    tiles = RamTiles.load(task.store, split="all", progress=False)
    loader = DataLoader(TileDataset(tiles), shuffle=True, **task.loading)
    return Pairs(loader, itemgetter("image", "speed"))


PEERS = {
    "ours": Peer(_ours, ("geoprep",)),
    "ours_dataset": Peer(_ours_dataset, ("geoprep",)),
    "uint8": Peer(_uint8),
    "classic": Peer(_classic, grey=255.0),
    "files": Peer(_files, ("rasterio",)),
}
