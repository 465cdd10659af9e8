"""A town of three scenes: labels, images, and one road network of all of them."""

from pathlib import Path

import numpy as np
from affine import Affine

from geoprep.crs import LONLAT, transformer
from geoprep.roads.formats.files import read_labels, write_network
from helpers.geojson import feature, write_features
from helpers.rasters import write_raster

CRS = "EPSG:32637"
CORNER = 400_000, 6_178_000
SIDE = 300


def write_labels(path: Path, *lines, **properties) -> Path:
    """Write roads, given in metres from the corner, as a label file."""
    to_degrees, (left, bottom) = transformer(CRS, LONLAT), CORNER
    own = {"highway": "residential", "lanes": "1", "surface": "paved", **properties}
    degrees = [[to_degrees.transform(left + x, bottom + y) for x, y in line] for line in lines]
    return write_features(path, [feature(line, **own) for line in degrees])


def make_town(folder: Path) -> Path:
    """Write three scenes side by side, the last without roads, and their road network."""
    main = [(10, 150), (150, 150), (290, 150)], [(150, 150), (150, 280)]
    east = [[(x + SIDE, y) for x, y in line] for line in main]
    write_labels(folder / "labels" / "AOI_7_Moscow_chip2.geojson", *main)
    write_labels(folder / "labels" / "AOI_7_Moscow_chip10.geojson", *east)
    write_labels(folder / "labels" / "AOI_7_Moscow_chip11.geojson")
    for column, number in ((0, 2), (1, 10), (2, 11)):
        name = f"SN5_roads_train_AOI_7_Moscow_PS-RGB_chip{number}.tif"
        place = Affine(1, 0, CORNER[0] + SIDE * column, 0, -1, CORNER[1] + SIDE)
        ones = np.ones((SIDE, SIDE), np.uint8)
        write_raster(folder / "images" / name, ones, crs=CRS, transform=place)
    # All roads, and an unlabelled one along the border of the first scene.
    city = write_labels(
        folder / "all.geojson",
        [(10, 150), (150, 150), (450, 150), (590, 150)],
        [(150, 150), (150, 280)],
        [(450, 150), (450, 280)],
        [(5, 5), (295, 5)],
    )
    write_network(read_labels(city)[0], folder / "city.gpkg")
    return folder
