"""The contract: shards and tables in, a store that any Zarr reader opens out.

Face: what is in a store, how it is opened, and where the bytes of its pixels lie
(:mod:`geoprep.store.layout`). :mod:`geoprep.store.writer` makes a store,
:mod:`geoprep.store.shards` writes its pixels, :mod:`geoprep.store.scenes` puts scenes together.
"""

from geoprep.store.layout import MISSING, PixelLayout, pixel_layouts, without_checksum
from geoprep.store.reader import REPAIR, Store
from geoprep.store.schema import (
    CODECS,
    PIXEL_ARRAYS,
    SCHEMA,
    SHARD_TILES,
    SPLITS,
    STATUSES,
    Codec,
    SceneTable,
    StoreMeta,
    TileTable,
)

__all__ = [
    "CODECS",
    "MISSING",
    "PIXEL_ARRAYS",
    "REPAIR",
    "SCHEMA",
    "SHARD_TILES",
    "SPLITS",
    "STATUSES",
    "Codec",
    "PixelLayout",
    "SceneTable",
    "Store",
    "StoreMeta",
    "TileTable",
    "pixel_layouts",
    "without_checksum",
]
