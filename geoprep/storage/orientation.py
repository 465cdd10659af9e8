"""Images that viewers rotate or invert and GDAL does not: EXIF of JPEG, white as 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rasterio.io import DatasetReader


def other_display(dataset: DatasetReader) -> str:
    """Return how viewers show an open image differently, and the correcting command, or ""."""
    inverted = dataset.tags(ns="IMAGE_STRUCTURE").get("MINISWHITE") == "YES"
    if inverted and dataset.colorinterp[0].name != "palette":  # of one bit, which GDAL turns over
        most = np.iinfo(dataset.dtypes[0]).max
        return (
            "shows its smallest value white: invert it with `gdal_translate -co "
            f"PHOTOMETRIC=MINISBLACK -scale 0 {most} {most} 0 IN OUT`"
        )
    if not dataset.transform.is_identity:
        return ""
    stated = dataset.tags().get("EXIF_Orientation", "")
    turned = int(stated) if stated.isdecimal() else 1
    if turned <= 1:
        return ""
    return (
        f"is stored turned (EXIF orientation {turned}), other files upright: turn its pixels with "
        "`mogrify -auto-orient FILE`"
    )
