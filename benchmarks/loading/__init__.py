"""The parts of `python -m benchmarks.loaders`.

========== =====================================================================================
data       the tiles everything is measured on: a store, bytes in memory, files for the peers
throughput batches per second, next to copying the same bytes; where tiles live; what loading
           costs a training step
load       from the store into memory, next to what zarrs alone delivers
held       what processes hold, down to batches that are between two of them
memory     memory per worker, next to the usual Dataset and to arithmetic
others     other loaders on the same tiles (see `benchmarks.peers`)
========== =====================================================================================
"""
