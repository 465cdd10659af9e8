"""What every peer is given, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Loader = Iterable["tuple[Tensor, Tensor]"]
"""Batches of images and masks, in an order of the peer's own; iterated once per epoch."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to read, and how.

    Attributes
    ----------
    folder
        Holds ``image.npy`` uint8 (tile, y, x, band), ``speed.npy`` uint8 (tile, y, x), and the
        same as GeoTIFFs ``tiff/image/00000.tif`` and ``tiff/speed/00000.tif``.
    batch_size
        Tiles per batch.
    workers
        Processes or threads that may read; 0 reads in the loop itself.
    store
        The same tiles as a store of this project.
    crop
        Side of random windows with random symmetries; None for whole tiles. No peer but this
        project's own loaders has them.
    """

    folder: str
    batch_size: int
    workers: int
    store: str = ""
    crop: int | None = None

    @property
    def image(self) -> NDArray[np.uint8]:
        """The images, mapped from their file."""
        pixels: NDArray[np.uint8] = np.load(f"{self.folder}/image.npy", mmap_mode="r")
        return pixels

    @property
    def speed(self) -> NDArray[np.uint8]:
        """The masks, mapped from their file."""
        pixels: NDArray[np.uint8] = np.load(f"{self.folder}/speed.npy", mmap_mode="r")
        return pixels

    def tiffs(self, kind: str) -> list[Path]:
        """Return the files of the images or of the masks, tile by tile."""
        return sorted(Path(self.folder, "tiff", kind).iterdir())

    @property
    def loading(self) -> dict[str, Any]:
        """Arguments of a DataLoader whose workers live on between epochs, as torch advises."""
        processes = {"num_workers": self.workers, "persistent_workers": self.workers > 0}
        return {"batch_size": self.batch_size, **processes}


def nothing(task: Task, out: Path) -> None:
    """Prepare nothing: the peer reads the arrays, the TIFFs or the store as they are."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A way of loading.

    Attributes
    ----------
    open
        Returns the loader over what ``prepare`` wrote into a folder: what can be iterated epoch
        after epoch, shuffled.
    packages
        What it needs beyond NumPy and torch.
    prepare
        Writes the tiles in the peer's own format into a new folder, once and untimed.
    grey
        What an image has to be multiplied with to get its bytes back.
    """

    open: Callable[[Task, Path], Loader]
    packages: tuple[str, ...] = ()
    prepare: Callable[[Task, Path], object] = nothing
    grey: float = 1.0


class Pairs:
    """Pairs out of a loader's own kind of batches, which it does not hold on to.

    Parameters
    ----------
    loader
        Iterated once per epoch.
    pair
        Batch to image and mask, such as ``itemgetter("image", "speed")``.
    """

    def __init__(self, loader: Iterable[Any], pair: Callable[[Any], tuple[Tensor, Tensor]]) -> None:
        self.loader = loader
        self.pair = pair

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return map(self.pair, self.loader)
