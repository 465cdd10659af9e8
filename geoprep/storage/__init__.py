"""Reads and writes bytes on a disk, in a bucket and on web servers; knows nothing of Zarr.

`addresses` opens images and labels, `store_files` reads and `sinks` writes the files of a store,
`transfer` downloads, `local_files` writes files completely or not at all, `clients` holds the
connections that all of them share.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
