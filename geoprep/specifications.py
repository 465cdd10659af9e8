"""Versions and schema addresses of the specifications that written files declare."""

from typing import Final

STAC_VERSION: Final = "1.1.0"
MLM_SCHEMA: Final = "https://stac-extensions.github.io/mlm/v1.5.1/schema.json"
FILE_SCHEMA: Final = "https://stac-extensions.github.io/file/v2.1.0/schema.json"
PROJECTION_SCHEMA: Final = "https://stac-extensions.github.io/projection/v2.0.0/schema.json"
STAC_GEOPARQUET_VERSION: Final = "1.1.0"
