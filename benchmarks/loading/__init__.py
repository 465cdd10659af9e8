"""Parts of `python -m benchmarks.loaders`.

=============== ================================================================================
data            the measured tiles: a store, arrays in memory, files for other loaders
throughput      batches per second against copying the same bytes; storage of tiles; share of
                loading in a training step
batches         crops per number of bands, cost of augmentations and of a batch, rates beside a loop
                that holds the GIL
load_rate       rate of loading a store into memory, against zarrs alone
process_memory  memory held by processes, including batches in transit between them
worker_memory   memory per worker, against a common Dataset and the computed size of batches
other_loaders   other loaders on the same tiles (`peers`, run by `peer_server`)
report          the tables
=============== ================================================================================
"""
