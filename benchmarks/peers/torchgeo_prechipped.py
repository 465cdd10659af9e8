"""TorchGeo: georeferenced chips, looked up by place, read by rasterio.

Its fastest way for tiles cut beforehand: one CRS and resolution, uncompressed files, cached file
handles, and the sampler for chips. The chips lie apart, so that no query meets a neighbour.
"""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path

from torch.utils.data import DataLoader

from benchmarks.peers.base import Loader, Pairs, Task
from benchmarks.peers.vision import import_torchvision

PACKAGES = ("torchgeo",)
GREY = 1.0

import_torchvision()
import rasterio  # noqa: E402 - all of them after the declaration above
from torchgeo.datasets import RasterDataset, stack_samples  # noqa: E402
from torchgeo.samplers import PreChippedGeoSampler  # noqa: E402


class Images(RasterDataset):  # type: ignore[misc] # it has no types where it is not installed
    """Imagery: float32 (band, y, x), which is TorchGeo's own choice."""

    filename_glob = "*.tif"
    is_image = True


class Masks(Images):
    """Masks: int64 (y, x), which is its choice too."""

    is_image = False


def prepare(task: Task, out: Path) -> None:
    """Write each tile again, uncompressed, a gap away from its neighbours."""
    gap = 100.0
    for kind, files in zip(("image", "speed"), task.tiffs(), strict=True):
        (out / kind).mkdir()
        for number, path in enumerate(files):
            with rasterio.open(path) as file:
                pixels, profile = file.read(), file.profile
            left = 500_000.0 + number * (pixels.shape[-1] + gap)
            place = rasterio.Affine(1, 0, left, 0, -1, 6_000_000)
            profile.update(crs="EPSG:32637", transform=place, compress=None)
            with rasterio.open(out / kind / path.name, "w", **profile) as file:
                file.write(pixels)


def open_loader(task: Task, source: Path) -> Loader:
    """Return a DataLoader over the intersection of imagery and masks, as its tutorials do."""
    dataset = Images(source / "image") & Masks(source / "speed")
    loader = DataLoader(
        dataset,
        batch_size=task.batch_size,
        sampler=PreChippedGeoSampler(dataset, shuffle=True),
        collate_fn=stack_samples,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
    )
    return Pairs(loader, itemgetter("image", "mask"))
