"""Versions and schema addresses of the specifications that written files declare."""

from typing import Final

STAC_VERSION: Final = "1.1.0"
MLM_SCHEMA: Final = "https://stac-extensions.github.io/mlm/v1.5.1/schema.json"
FILE_SCHEMA: Final = "https://stac-extensions.github.io/file/v2.1.0/schema.json"
PROJECTION_SCHEMA: Final = "https://stac-extensions.github.io/projection/v2.0.0/schema.json"
STAC_GEOPARQUET_VERSION: Final = "1.1.0"
ZARR_SCHEMA: Final = (
    "https://raw.githubusercontent.com/zarr-conventions/{}/refs/tags/v0.1/schema.json"
)
ZARR_CONVENTIONS: Final = {
    "proj": "f17cb550-5864-4468-aeb7-f3180cfb622f",
    "spatial": "689b58e2-cf7b-45e0-9fff-9cfc0883d6b4",
    "multiscales": "d35379db-88df-4056-af3a-620245f8e347",
}
"""Conventions of GeoZarr: name -> UUID. Their schemas are at `ZARR_SCHEMA`."""
