"""Reads and writes bytes on a disk, in a bucket and on web servers; knows nothing of Zarr.

`places.Files` reads any of them, `sinks` writes, `inputs` opens images and labels, `transfer`
downloads. `clients` has the connections and the retries, `failures` names errors.
"""
