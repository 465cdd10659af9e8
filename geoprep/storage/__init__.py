"""Bytes on a disk or in a bucket: an address in, bytes or an open image out.

Files are written whole or not at all. Face: :func:`open_image`, :func:`read_bytes`,
:func:`fetch_object`, :func:`is_remote`, :class:`StoreFiles`, :func:`replaced`,
:func:`make_folder`, :func:`local_path`, :func:`flush`. Knows no Zarr.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
