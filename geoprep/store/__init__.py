"""The contract: shards and tables in, a store that any Zarr reader opens out.

Face: what is in a store and how it is opened; :mod:`geoprep.store.writer` makes one,
:mod:`geoprep.store.shards` writes its pixels.
"""

from geoprep.store.schema import (
    CODECS,
    PIXEL_ARRAYS,
    SCHEMA,
    SHARD_TILES,
    SPLITS,
    STATUSES,
    Codec,
    SceneTable,
    Store,
    StoreMeta,
    TileTable,
)

__all__ = [
    "CODECS",
    "PIXEL_ARRAYS",
    "SCHEMA",
    "SHARD_TILES",
    "SPLITS",
    "STATUSES",
    "Codec",
    "SceneTable",
    "Store",
    "StoreMeta",
    "TileTable",
]
