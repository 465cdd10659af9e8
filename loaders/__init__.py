"""A store of uint8 tiles to batches on a device: one copy in memory, filled by threads.

tiles  = RamTiles.load("moscow.zarr", split="train")
loader = BatchLoader(tiles, batch_size=32, crop=256, augment="d4", seed=0)
prep   = DevicePrep.from_store(tiles.store, targets="bins").to(device)
for batch in loader:
    image, target, valid = prep(batch.to(device, non_blocking=True))
"""

from loaders.batch import Batch
from loaders.batches import BatchLoader
from loaders.dataset import TileDataset, collate
from loaders.device import DevicePrep, Normalize, Prepared, SpeedTarget, band_statistics
from loaders.jitter import Jitter
from loaders.ram import RamTiles
from loaders.residency import DeviceTiles
from loaders.stream import StreamTiles
from loaders.stream_batches import StreamLoader

__all__ = [
    "Batch",
    "BatchLoader",
    "DevicePrep",
    "DeviceTiles",
    "Jitter",
    "Normalize",
    "Prepared",
    "RamTiles",
    "SpeedTarget",
    "StreamLoader",
    "StreamTiles",
    "TileDataset",
    "band_statistics",
    "collate",
]
