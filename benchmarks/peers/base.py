"""What every peer is given, and how its results travel."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

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

    folder: Path
    batch_size: int
    workers: int
    store: str = ""
    crop: int | None = None

    @property
    def image(self) -> NDArray[np.uint8]:
        """The images, mapped from their file."""
        pixels: NDArray[np.uint8] = np.load(self.folder / "image.npy", mmap_mode="r")
        return pixels

    @property
    def speed(self) -> NDArray[np.uint8]:
        """The masks, mapped from their file."""
        pixels: NDArray[np.uint8] = np.load(self.folder / "speed.npy", mmap_mode="r")
        return pixels

    def tiffs(self) -> tuple[list[Path], list[Path]]:
        """Return the files of the images and of the masks, tile by tile."""
        image, speed = (
            sorted((self.folder / "tiff" / kind).iterdir()) for kind in ("image", "speed")
        )
        return image, speed

    def dump(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self) | {"folder": str(self.folder)})

    @classmethod
    def parse(cls, text: str) -> Task:
        """Return what `dump` wrote."""
        values: dict[str, Any] = json.loads(text)
        return cls(**values | {"folder": Path(values["folder"])})


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


class Peer(Protocol):
    """A module of this package."""

    PACKAGES: tuple[str, ...]
    GREY: float

    def prepare(self, task: Task, out: Path) -> None:
        """Write the peer's own format into a new folder."""

    def open_loader(self, task: Task, source: Path) -> Loader:
        """Return the loader over what `prepare` wrote."""
