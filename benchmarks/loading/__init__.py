"""Parts of `python -m benchmarks.loaders`.

============== =================================================================================
data           the measured tiles: a store, arrays in memory, files for other loaders
rates          rates of loaders, and of the storage of tiles
worker_memory  memory per worker, against a common Dataset and the computed size of batches
device_loop    batches on a device with targets, from loaders of bytes and of float32
other_loaders  other loaders on the same tiles (`peers`, run by `peer_server`)
============== =================================================================================
"""
