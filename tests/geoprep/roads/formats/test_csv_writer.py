"""Networks written as SpaceNet's table, in pixels."""

import csv

import numpy as np
import pytest
import shapely
from affine import Affine
from helpers.roads import network, traced

from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.roads.centrelines import RoadRaster
from geoprep.roads.centrelines.bands import ArrayBands
from geoprep.roads.formats import ImageRoads, write_csv
from geoprep.roads.tracing import trace


def rows(path):
    with path.open() as file:
        return list(csv.reader(file))


def test_a_georeferenced_network_is_written_in_pixels(tmp_path):
    mask = np.zeros((200, 300), np.uint8)
    mask[90:110] = 30
    grid = Grid(200, 300, Affine(2.7e-6, 0, -115.17, 0, -2.7e-6, 36.24), "EPSG:4326")
    pixels = ArrayBands(mask[None])
    raster = RoadRaster("x", pixels, grid.gsd_m(), grid, "speed", (1,), speed_band=1)
    made = trace(raster)
    path = tmp_path / "roads.csv"
    assert write_csv([ImageRoads("AOI_2_Vegas_img0", made, raster.gsd_m, grid)], path) == 1
    head, (image, wkt, length, time) = rows(path)
    assert head == ["ImageId", "WKT_Pix", "length_m", "travel_time_s"]
    line = shapely.from_wkt(wkt)
    assert image == "AOI_2_Vegas_img0"
    assert np.allclose(sorted(x for x, _ in line.coords), (0, 300), atol=0.01)
    assert np.allclose([y for _, y in line.coords], 100, atol=1)
    assert float(length) == pytest.approx(300 * 0.2427, rel=1e-3)
    assert float(time) == pytest.approx(float(length) / (30 * 0.44704), abs=1e-3)


def test_an_image_without_roads_has_a_row(tmp_path):
    made = traced([[(20, -50), (180, -50)]], pixel=1.0)
    none = traced([[(20, -50), (20, -51)]], min_length_m=100)
    images = [ImageRoads("b", none, (1.0, 1.0), None), ImageRoads("a", made, (1.0, 1.0), None)]
    assert write_csv(images, tmp_path / "roads.csv") == 1
    _, empty, full = rows(tmp_path / "roads.csv")
    assert empty == ["b", "LINESTRING EMPTY", "0", "0"]
    assert full[3] == ""
    assert np.allclose([y for _, y in shapely.from_wkt(full[1]).coords], 50, atol=1)


def test_two_images_with_one_name_are_refused(tmp_path):
    image = ImageRoads("a", network([(0, 0), (9, 0)]), (1.0, 1.0), None)
    with pytest.raises(UsageError, match="two images have the ImageId a"):
        write_csv([image, image], tmp_path / "roads.csv")
    assert not list(tmp_path.iterdir())
