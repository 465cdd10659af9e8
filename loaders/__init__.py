"""Loads the uint8 tiles of a store into batches on a device: one copy in memory, several threads.

tiles  = RamTiles.load("moscow.zarr", split="train")
loader = BatchLoader(tiles, batch_size=32, crop=256, augment="d4", seed=0)
prep   = DevicePrep.from_store(tiles.store, targets="bins").to(device)
for batch in loader:
    image, target, valid = prep(batch.to(device, non_blocking=True))
"""

from geoprep.cpus import usable_cpus
from loaders.augmentation import DeviceAugmentation
from loaders.batch import Batch
from loaders.dataset import TileDataset, collate
from loaders.loader import BatchLoader, this_rank
from loaders.memory import (
    MemorySampler,
    SharedArrays,
    Usage,
    available_memory,
    is_distributed,
    process_usage,
    touched_nodes,
)
from loaders.prep import (
    PAD_TO,
    Augmentation,
    ClassTarget,
    DevicePrep,
    Jitter,
    Normalize,
    Prepared,
    SpeedTarget,
    Targets,
    band_statistics,
)
from loaders.selection import Folds, Split, common_classes, open_stores, select
from loaders.tiles.device import DeviceTiles
from loaders.tiles.ram import RamTiles
from loaders.tiles.stream import StreamTiles

__all__ = [
    "PAD_TO",
    "Augmentation",
    "Batch",
    "BatchLoader",
    "ClassTarget",
    "DeviceAugmentation",
    "DevicePrep",
    "DeviceTiles",
    "Folds",
    "Jitter",
    "MemorySampler",
    "Normalize",
    "Prepared",
    "RamTiles",
    "SharedArrays",
    "SpeedTarget",
    "Split",
    "StreamTiles",
    "Targets",
    "TileDataset",
    "Usage",
    "available_memory",
    "band_statistics",
    "collate",
    "common_classes",
    "is_distributed",
    "open_stores",
    "process_usage",
    "select",
    "this_rank",
    "touched_nodes",
    "usable_cpus",
]
