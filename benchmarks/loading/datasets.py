"""Usual torch Datasets of a task's tiles."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.loading.peer_server import Pair, Task

Pixels = NDArray[np.uint8]


class ByteTiles(Dataset[Pair]):
    """Tiles in memory, each ``times`` per epoch: images uint8 (y, x, band), masks uint8 (y, x)."""

    def __init__(self, image: Pixels, speed: Pixels, times: int = 1) -> None:
        self.image, self.speed = image, speed
        self.times = times

    def __len__(self) -> int:
        return len(self.image) * self.times

    def __getitem__(self, item: int) -> Pair:
        tile = item % len(self.image)
        # Copied: torch does not support read-only arrays.
        return torch.from_numpy(self.image[tile].copy()), torch.from_numpy(self.speed[tile].copy())


class FloatTiles(ByteTiles):
    """The usual dtypes, four and eight times the bytes."""

    def __getitem__(self, tile: int) -> Pair:
        return widened(*super().__getitem__(tile))


def widened(image: Tensor, speed: Tensor) -> Pair:
    """Return uint8 (y, x, band) as float32 (band, y, x) of 0..1, and a mask as int64."""
    return image.permute(2, 0, 1).to(torch.float32).div_(255.0), speed.to(torch.int64)


class ByteCrops(ByteTiles):
    """Random crops of tiles in memory, with one of the eight symmetries (D4)."""

    def __init__(self, image: Pixels, speed: Pixels, crop: int) -> None:
        super().__init__(image, speed)
        self.crop = crop

    def __getitem__(self, tile: int) -> Pair:
        top, left = torch.randint(self.image.shape[1] - self.crop + 1, (2,)).tolist()
        turns, mirrored = int(torch.randint(4, (1,))), bool(torch.rand(1) < 0.5)
        image, speed = (
            np.rot90(pixels[tile, top : top + self.crop, left : left + self.crop], turns)
            for pixels in (self.image, self.speed)
        )
        if mirrored:
            image, speed = image[:, ::-1], speed[:, ::-1]
        return torch.from_numpy(image.copy()), torch.from_numpy(speed.copy())


class TiffTiles(Dataset[Pair]):
    """Tiles in files: images uint8 (band, y, x), masks uint8 (y, x)."""

    def __init__(self, task: Task) -> None:
        # Arrays of strings: reference counts make every worker copy a list of paths.
        self.images = np.array([str(path) for path in task.tiffs("image")])
        self.speeds = np.array([str(path) for path in task.tiffs("speed")])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, tile: int) -> Pair:
        import rasterio

        with rasterio.open(self.images[tile]) as file:
            image = file.read()
        with rasterio.open(self.speeds[tile]) as file:
            speed = file.read(1)
        return torch.from_numpy(image), torch.from_numpy(speed)
