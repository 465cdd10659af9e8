"""Loads the uint8 tiles of a store into batches on a device: one copy in memory, several threads.

tiles  = RamTiles.load("moscow.zarr", split="train")
loader = BatchLoader(tiles, batch_size=32, crop=256, augment="d4", seed=0)
prep   = DevicePrep.from_store(tiles.store, targets="bins").to(device)
for batch in loader:
    image, target, valid = prep(batch.to(device, non_blocking=True))
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
