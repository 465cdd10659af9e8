"""The parts of `python -m benchmarks.loaders`.

========== =====================================================================================
data       the tiles everything is measured on: a store, bytes in memory, files for the peers
throughput batches per second, next to copying the same bytes
load       from the store into memory, next to what zarrs alone delivers
held       what processes hold, down to batches that are between two of them
memory     memory per worker, next to the usual Dataset and to arithmetic
peers      other loaders on the same tiles (see `benchmarks.peers`)
tax        what loading costs a training step
report     the tables and the picture
========== =====================================================================================
"""
