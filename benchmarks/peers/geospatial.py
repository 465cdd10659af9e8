"""Loaders of geospatial packages; each package is imported only when used."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.peers.task import Loader, Pairs, Peer, Task, import_torchvision

EPSG = "EPSG:32637"
"""Of all tiles: no loader has to warp one."""

Sample = dict[str, Any]


def _write_torchgeo(task: Task, out: Path) -> None:
    """Write each tile uncompressed, with a gap between tiles: a query never covers two tiles."""
    import rasterio

    gap = 100.0
    for kind in ("image", "speed"):
        (out / kind).mkdir()
        for number, path in enumerate(task.tiffs(kind)):
            with rasterio.open(path) as file:
                pixels, profile = file.read(), file.profile
            left = 500_000.0 + number * (pixels.shape[-1] + gap)
            place = rasterio.Affine(1, 0, left, 0, -1, 6_000_000)
            profile.update(crs=EPSG, transform=place, compress=None)
            with rasterio.open(out / kind / path.name, "w", **profile) as file:
                file.write(pixels)


def _open_torchgeo(task: Task, source: Path) -> Loader:
    """Return a DataLoader of the intersection of imagery and masks, as in TorchGeo's tutorials.

    The fastest setup for tiles: one CRS and resolution, uncompressed files, cached file handles,
    the sampler for chips. TorchGeo returns float32 images and int64 masks.
    """
    import_torchvision()
    from torchgeo.datasets import RasterDataset, stack_samples
    from torchgeo.samplers import PreChippedGeoSampler

    class Images(RasterDataset):  # type: ignore[misc] # no types if it is not installed
        filename_glob = "*.tif"
        is_image = True

    class Masks(Images):
        is_image = False

    dataset = Images(source / "image") & Masks(source / "speed")
    sampler = PreChippedGeoSampler(dataset, shuffle=True)
    loader: Any = DataLoader(dataset, sampler=sampler, collate_fn=stack_samples, **task.loading)
    return Pairs(loader, itemgetter("image", "mask"))


def _write_rslearn(task: Task, out: Path) -> None:
    """Write a window per tile, with the image and the label as GeoTIFFs, rslearn's own format."""
    from rasterio.crs import CRS
    from rslearn.dataset import Dataset, Window
    from rslearn.utils import Projection
    from rslearn.utils.raster_array import RasterArray
    from rslearn.utils.raster_format import GeotiffRasterFormat
    from upath import UPath

    bands = {"image": _band_names(task), "speed": ["speed"]}
    layers = {
        kind: {"type": "raster", "band_sets": [{"dtype": "uint8", "bands": names}]}
        for kind, names in bands.items()
    }
    (out / "config.json").write_text(json.dumps({"layers": layers}), encoding="utf-8")
    dataset = Dataset(UPath(out))
    place = Projection(CRS.from_string(EPSG), 1, -1)
    side = task.image.shape[1]
    for tile in range(len(task.image)):
        left, top = 500_000 + tile * 2 * side, -6_000_000
        bounds = (left, top, left + side, top + side)
        window = Window(
            storage=dataset.storage,
            group="train",
            name=f"{tile:06d}",
            projection=place,
            bounds=bounds,
            time_range=None,
            data_factory=dataset.window_data_storage_factory,
        )
        window.save()
        pixels = {"image": task.image[tile], "speed": task.speed[tile][..., None]}
        for kind, names in bands.items():
            raster = RasterArray(chw_array=pixels[kind].transpose(2, 0, 1))
            with window.data.open_layer_writer(kind) as writer:
                writer.write_raster(names, GeotiffRasterFormat(), place, bounds, raster)
            window.mark_layer_completed(kind)


def _band_names(task: Task) -> list[str]:
    return [f"B{band}" for band in range(task.image.shape[-1])]


def _open_rslearn(task: Task, source: Path) -> Loader:
    """Return rslearn's loader for training, with windows kept in memory.

    ``use_in_memory_dataset`` is meant for data that fit into memory: each worker process keeps the
    windows that it has read. Images are float32 and labels int32 there, as rslearn has no narrower
    types; it has flips but no rotations. Its samples are stacked as its models do.
    """
    import_torchvision()
    from rslearn.config import DType
    from rslearn.train.data_module import RslearnDataModule
    from rslearn.train.dataset import DataInput, SplitConfig
    from rslearn.train.tasks.segmentation import SegmentationTask
    from rslearn.train.transforms.flip import Flip

    label: Any = {"bands": ["speed"], "is_target": True, "dtype": DType.INT32}
    inputs = {
        "image": DataInput("raster", ["image"], bands=_band_names(task), passthrough=True),
        "targets": DataInput("raster", ["speed"], **label),
    }
    flip = Flip(image_selectors=["image", "target/classes", "target/valid"])
    module = RslearnDataModule(
        inputs,
        SegmentationTask(num_classes=256),
        str(source),
        batch_size=task.batch_size,
        num_workers=task.workers,
        use_in_memory_dataset=True,
        train_config=SplitConfig(
            groups=["train"],
            crop_size=task.crop,
            transforms=None if task.crop is None else [flip],
        ),
        val_config=SplitConfig(groups=["none"]),
    )
    module.setup("fit")
    return Pairs(module.train_dataloader(), _stacked)


def _stacked(
    batch: tuple[list[dict[str, Any]], list[dict[str, Any]], Any],
) -> tuple[Tensor, Tensor]:
    """Return images float32 (n, band, y, x), classes int64 (n, y, x) of rslearn's samples."""
    inputs, targets, _ = batch
    image = torch.stack([sample["image"].single_ts_to_chw_tensor() for sample in inputs])
    return image, torch.stack([sample["classes"].get_hw_tensor() for sample in targets])


def _write_rastervision(task: Task, out: Path) -> None:
    """Write chips as arrays, as Raster Vision does for images of any number of bands."""
    for kind, tiles in (("image", task.image), ("speed", task.speed)):
        (out / kind).mkdir()
        for tile, pixels in enumerate(tiles):
            np.save(out / kind / f"{tile:06d}.npy", pixels)


def _open_rastervision(task: Task, source: Path) -> Loader:
    """Return a DataLoader of chips on a disk, which Raster Vision trains from by default.

    Its dataset returns float32 images; they are not divided by 255, which is faster.
    """
    import_torchvision()
    import albumentations
    from rastervision.pytorch_learner import SemanticSegmentationImageDataset

    transform = None
    if task.crop is not None:
        steps = [albumentations.RandomCrop(task.crop, task.crop), albumentations.D4(p=1)]
        transform = albumentations.Compose(steps)
    dataset = SemanticSegmentationImageDataset(
        str(source / "image"), str(source / "speed"), transform=transform, normalize=False
    )
    return DataLoader(dataset, shuffle=True, **task.loading)


PEERS = {
    "torchgeo": Peer(_open_torchgeo, ("torchgeo",), _write_torchgeo),
    "rslearn": Peer(_open_rslearn, ("rslearn",), _write_rslearn),
    "rastervision": Peer(
        _open_rastervision, ("rastervision-pytorch-learner",), _write_rastervision
    ),
}
