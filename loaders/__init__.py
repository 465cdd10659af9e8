"""Loads the uint8 tiles of a store into batches on a device: one copy in memory, several threads.

tiles  = RamTiles.load("moscow.zarr", split="train")
loader = BatchLoader(tiles, batch_size=32, crop=256, augment="d4", seed=0)
prep   = DevicePrep.from_store(tiles.store, targets="bins").to(device)
for batch in loader:
    image, target, valid = prep(batch.to(device, non_blocking=True))
"""

from loaders.augmentation import DeviceAugmentation as DeviceAugmentation
from loaders.batch import Batch as Batch
from loaders.batch import has_streams as has_streams
from loaders.dataset import TileDataset as TileDataset
from loaders.dataset import collate as collate
from loaders.loader import BatchLoader as BatchLoader
from loaders.loader import usable_cpus as usable_cpus
from loaders.memory import SharedArrays as SharedArrays
from loaders.memory import available_memory as available_memory
from loaders.memory import is_distributed as is_distributed
from loaders.memory import this_rank as this_rank
from loaders.prep import PAD_TO as PAD_TO
from loaders.prep import Augmentation as Augmentation
from loaders.prep import DevicePrep as DevicePrep
from loaders.prep import Jitter as Jitter
from loaders.prep import Normalize as Normalize
from loaders.prep import Prepared as Prepared
from loaders.prep import band_statistics as band_statistics
from loaders.selection import Folds as Folds
from loaders.selection import Split as Split
from loaders.selection import common_classes as common_classes
from loaders.selection import open_stores as open_stores
from loaders.selection import select as select
from loaders.targets import ClassTarget as ClassTarget
from loaders.targets import SpeedTarget as SpeedTarget
from loaders.targets import Targets as Targets
from loaders.tiles.device import DeviceTiles as DeviceTiles
from loaders.tiles.ram import RamTiles as RamTiles
from loaders.tiles.stream import StreamTiles as StreamTiles
