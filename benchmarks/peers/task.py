"""The task that every loader gets, and the interface of a loader."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Loader = Iterable["tuple[Tensor, Tensor]"]
"""Batches of images and masks in any order; iterated once per epoch."""


@dataclass(frozen=True, slots=True)
class Task:
    """The data to load, and the settings.

    Attributes
    ----------
    folder
        Folder with ``image.npy`` uint8 (tile, y, x, band), ``speed.npy`` uint8 (tile, y, x), and
        the same as GeoTIFFs ``tiff/image/00000.tif`` and ``tiff/speed/00000.tif``.
    batch_size
        Tiles per batch.
    workers
        Number of processes or threads; 0 to load in the loop.
    store
        Store with the same tiles.
    crop
        Side of random crops with random symmetries, one per tile and epoch; None for whole tiles.
        Only some loaders are measured with crops.
    """

    folder: str
    batch_size: int
    workers: int
    store: str = ""
    crop: int | None = None

    @property
    def image(self) -> NDArray[np.uint8]:
        """The images, memory-mapped."""
        pixels: NDArray[np.uint8] = np.load(f"{self.folder}/image.npy", mmap_mode="r")
        return pixels

    @property
    def speed(self) -> NDArray[np.uint8]:
        """The masks, memory-mapped."""
        pixels: NDArray[np.uint8] = np.load(f"{self.folder}/speed.npy", mmap_mode="r")
        return pixels

    def tiffs(self, kind: str) -> list[Path]:
        """Return the TIFF files of kind ``image`` or ``speed``, in order of tiles."""
        return sorted(Path(self.folder, "tiff", kind).iterdir())

    @property
    def loading(self) -> dict[str, Any]:
        """Arguments of a DataLoader whose workers persist between epochs, as torch recommends."""
        processes = {"num_workers": self.workers, "persistent_workers": self.workers > 0}
        return {"batch_size": self.batch_size, **processes}


def prepare_nothing(task: Task, out: Path) -> None:
    """Do nothing: the loader reads the arrays, the TIFFs or the store directly."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A loader to compare.

    Attributes
    ----------
    open
        Function that returns the loader of the folder that ``prepare`` wrote; it is iterated
        once per epoch, shuffled.
    packages
        Required packages except NumPy and torch.
    prepare
        Function that writes the tiles in the loader's format to a new folder; not timed.
    grey
        Factor that converts image values to 0 to 255.
    """

    open: Callable[[Task, Path], Loader]
    packages: tuple[str, ...] = ()
    prepare: Callable[[Task, Path], object] = prepare_nothing
    grey: float = 1.0


class Pairs:
    """(image, mask) pairs from batches of another type, which are not kept.

    Parameters
    ----------
    loader
        Loader, iterated once per epoch.
    pair
        Function of a batch that returns image and mask, such as ``itemgetter("image", "speed")``.
    """

    def __init__(self, loader: Iterable[Any], pair: Callable[[Any], tuple[Tensor, Tensor]]) -> None:
        self.loader = loader
        self.pair = pair

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return map(self.pair, self.loader)


def import_torchvision() -> None:
    """Import torchvision with a torch that it was not built for.

    Some loaders import it without using its compiled operators. The package index has a build for
    CUDA. With a CPU build of torch its import fails: "operator torchvision::nms does not exist",
    and declaring the missing operators is enough.
    """
    import torch

    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
