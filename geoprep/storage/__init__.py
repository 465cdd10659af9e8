"""Bytes on a disk or in a bucket: an address in, bytes or an open image out.

Files are written whole or not at all. Face: :func:`open_image`, :func:`read_bytes`,
:func:`fetch_object`, :func:`is_remote`, :class:`StoreFiles`, :func:`replaced`, :func:`flush`.
Knows no Zarr.
"""

from geoprep.storage.addresses import open_image, read_bytes
from geoprep.storage.disk import flush
from geoprep.storage.files import StoreFiles, replaced
from geoprep.storage.objects import fetch_object, is_remote, object_version

__all__ = [
    "StoreFiles",
    "fetch_object",
    "flush",
    "is_remote",
    "object_version",
    "open_image",
    "read_bytes",
    "replaced",
]
