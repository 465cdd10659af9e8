"""The task of every loader, what a loader is, and usual torch Datasets of a task's tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

Pair = tuple[Tensor, Tensor]
Pixels = NDArray[np.uint8]
Loader = Iterable[Pair]
"""Batches of images and masks in any order; iterated once per epoch, shuffled."""


MEAN, STD = (110.0, 115.0, 105.0), (60.0, 58.0, 57.0)
"""Statistics of bands that images are normalised with, in grey values; others take as long."""


@dataclass(frozen=True, slots=True)
class Task:
    """The data to load, and the settings.

    ``folder`` has ``image.npy`` uint8 (tile, y, x, band), ``speed.npy`` uint8 (tile, y, x) and the
    same as GeoTIFFs ``tiff/image/00000.tif``; ``store`` has the same tiles. ``workers`` are
    processes or threads, 0 to load in the loop; ``crop`` is the side of random crops with random
    symmetries, one per tile and epoch, None for whole tiles.
    """

    folder: str
    batch_size: int
    workers: int
    store: str = ""
    crop: int | None = None

    @property
    def image(self) -> Pixels:
        """The images, memory-mapped."""
        pixels: Pixels = np.load(f"{self.folder}/image.npy", mmap_mode="r")
        return pixels

    @property
    def speed(self) -> Pixels:
        """The masks, memory-mapped."""
        pixels: Pixels = np.load(f"{self.folder}/speed.npy", mmap_mode="r")
        return pixels

    def in_memory(self) -> tuple[Pixels, Pixels]:
        """Return images and masks in memory, which workers share by fork."""
        return np.array(self.image), np.array(self.speed)

    def tiffs(self, kind: str) -> list[Path]:
        """Return the TIFF files of kind ``image`` or ``speed``, in order of tiles."""
        return sorted(Path(self.folder, "tiff", kind).iterdir())

    def rows(self) -> Iterator[tuple[Pixels, Pixels]]:
        """Yield image and mask of every tile."""
        return zip(self.image, self.speed, strict=True)

    @property
    def loading(self) -> dict[str, Any]:
        """Arguments of a DataLoader whose workers persist between epochs, as torch recommends."""
        processes = {"num_workers": self.workers, "persistent_workers": self.workers > 0}
        return {"batch_size": self.batch_size, **processes}


class Peer:
    """A loader: packages that it needs beside NumPy and torch, and grey values per image value.

    A ``normalised`` one returns (grey value - `MEAN`) / `STD` in their place.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    grey: ClassVar[float] = 1.0
    normalised: ClassVar[bool] = False

    @staticmethod
    def prepare(task: Task, out: Path) -> None:
        """Write the tiles in the loader's format to a new folder; not timed."""

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        """Return the loader of the folder that `prepare` wrote."""
        raise NotImplementedError


class Pairs:
    """(image, mask) pairs of batches of another type, which are not kept."""

    def __init__(self, loader: Iterable[Any], pair: Callable[[Any], Pair]) -> None:
        self.loader = loader
        self.pair = pair

    def __iter__(self) -> Iterator[Pair]:
        return map(self.pair, self.loader)


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


class NormalisedTiles(FloatTiles):
    """As `FloatTiles`, ready for a model."""

    def __init__(self, image: Pixels, speed: Pixels) -> None:
        super().__init__(image, speed)
        self.mean, self.std = torch.tensor([MEAN, STD])[..., None, None] / 255

    def __getitem__(self, tile: int) -> Pair:
        image, speed = super().__getitem__(tile)
        return image.sub_(self.mean).div_(self.std), speed


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
