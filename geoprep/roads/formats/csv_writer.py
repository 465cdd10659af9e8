"""Road networks written as SpaceNet's CSV table, which has lines in pixels of each image."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import reproject
from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.roads.network import RoadGraph
from geoprep.storage import replaced

HEADER: Final = ("ImageId", "WKT_Pix", "length_m", "travel_time_s")
_PRODUCT: Final = re.compile(r"(?:PS-RGB|PS-MS|MS|PAN|RGB-PanSharpen|MUL-PanSharpen)_")


@dataclass(frozen=True, slots=True)
class ImageRoads:
    """The roads of one image.

    Attributes
    ----------
    image_id
        ImageId of the image.
    network
        Its roads, in a CRS or in the plane of the raster.
    gsd_m
        Width and height of a pixel in metres: the scale of that plane.
    place
        Georeferenced grid of the image; None where the network is in the plane.
    """

    image_id: str
    network: RoadGraph
    gsd_m: tuple[float, float]
    place: Grid | None

    def pixel_lines(self) -> NDArray[np.object_]:
        """Return the lines in pixels: x to the right, y down, 0 at the upper left corner."""
        network = self.network
        if self.place is None or network.crs is None:
            scale = np.array([1, -1]) / self.gsd_m
            return shapely.transform(network.lines, lambda xy: xy * scale)
        lines = reproject(network.lines, network.crs, self.place.crs)
        x0, y0 = self.place.transform.c, self.place.transform.f
        a, b, _, d, e, _ = self.place.transform[:6]
        inverse = np.linalg.inv(np.array([[a, b], [d, e]]))
        # Subtract the origin first: in pixels it is ten million from zero, which costs precision.
        return shapely.transform(lines, lambda xy: (xy - [x0, y0]) @ inverse.T)


def image_id(name: str) -> str:
    """Return the ImageId of a file: its stem without the image product.

    Examples
    --------
    >>> image_id("SN5_roads_test_public_AOI_9_San_Juan_PS-RGB_chip98.tif")
    'SN5_roads_test_public_AOI_9_San_Juan_chip98'
    """
    return _PRODUCT.sub("", Path(name).stem)


def write_csv(images: Iterable[ImageRoads], path: Path) -> int:
    """Write one row per edge, and return the number of edges.

    An image without roads has one row, ``LINESTRING EMPTY``. Lengths are in metres and travel times
    in seconds; an unknown time is left empty.

    Parameters
    ----------
    images
        Roads of each image.
    path
        File to write; it appears complete or not at all.

    Raises
    ------
    UsageError
        Two images have the same ImageId, or the folder does not exist.
    """
    seen: set[str] = set()
    edges = 0
    with replaced(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(HEADER)
        for image in images:
            if image.image_id in seen:
                raise UsageError(
                    f"{path}: two images have the ImageId {image.image_id}: rename one"
                )
            seen.add(image.image_id)
            table.writerows(_rows(image))
            edges += len(image.network.lines)
    return edges


def _rows(image: ImageRoads) -> list[tuple[str, str, str, str]]:
    if not len(image.network.lines):
        return [(image.image_id, "LINESTRING EMPTY", "0", "0")]
    texts = shapely.to_wkt(image.pixel_lines(), rounding_precision=3)
    lengths, times = image.network.length_m.tolist(), image.network.travel_time_s.tolist()
    return [
        (image.image_id, text, f"{length:.3f}", "" if math.isnan(time) else f"{time:.3f}")
        for text, length, time in zip(texts, lengths, times, strict=True)
    ]
