"""Bytes on a disk or in a bucket: an address in, bytes or an open image out.

Files are written whole or not at all. Face: :func:`open_image`, :func:`read_bytes`,
:func:`fetch_object`, :func:`is_remote`, :class:`StoreFiles`, :func:`replaced`,
:func:`make_folder`, :func:`local_path`, :func:`flush`. Knows no Zarr.
"""

from geoprep.storage.addresses import open_image, read_bytes
from geoprep.storage.disk import flush
from geoprep.storage.files import local_path, make_folder, replaced
from geoprep.storage.folders import StoreFiles
from geoprep.storage.objects import fetch_object, object_version
from geoprep.storage.s3 import is_remote

__all__ = [
    "StoreFiles",
    "fetch_object",
    "flush",
    "is_remote",
    "local_path",
    "make_folder",
    "object_version",
    "open_image",
    "read_bytes",
    "replaced",
]
