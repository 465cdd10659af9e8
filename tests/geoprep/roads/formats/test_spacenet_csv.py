"""SpaceNet's table of roads, read and written."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import shapely
from affine import Affine
from helpers.roads import array_raster, network, traced

from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid
from geoprep.roads.formats.spacenet_csv import ImageRoads, read_csv, write_csv
from geoprep.roads.tracing.steps import trace

HEAD = "ImageId,WKT_Pix\n"
TIMES = "ImageId,WKT_Pix,length_m,travel_time_s\n"


@pytest.fixture
def table(tmp_path):
    def write(text):
        path = tmp_path / "roads.csv"
        path.write_text(text)
        return path

    return write


def test_pixels_become_metres_with_y_upwards(table):
    path = table(HEAD + 'chip1,"LINESTRING (0 0, 100.5 0, 100.5 40)"\n')
    found = read_csv(path, pixel_size_m=0.5)["chip1"]
    assert found.crs is None
    assert list(found.lines[0].coords) == [(0, 0), (50.25, 0), (50.25, -20)]
    assert np.isnan(found.speed_mph).all()


def test_both_conventions_and_images_without_roads(table):
    path = table(
        f"{HEAD}AOI_7_Moscow_chip996,LINESTRING EMPTY\n"
        'SN5_roads_test_public_AOI_9_San_Juan_chip98,"LINESTRING (0 0, 90 0)"\n'
        'AOI_9_San_Juan_chip98,"LINESTRING (90 0, 90 90)"\n'
    )
    found = read_csv(path, pixel_size_m=1)
    assert set(found) == {"aoi_7_moscow_chip996", "aoi_9_san_juan_chip98"}
    assert len(found["aoi_7_moscow_chip996"].ends) == 0
    assert found["aoi_9_san_juan_chip98"].length_m.tolist() == [180]


def test_speeds_follow_from_length_and_time(table):
    slow, unknown = '"LINESTRING (0 0, 100 0)",44.704,4', '"LINESTRING (0 50, 100 50)",44.704,'
    path = table(f"{TIMES}a,{slow}\na,{unknown}\nb,LINESTRING EMPTY,0,0\n")
    found = read_csv(path, pixel_size_m=0.3)
    assert found["a"].speed_mph.tolist() == [pytest.approx(25), pytest.approx(np.nan, nan_ok=True)]


def test_components_shorter_than_ten_pixels_are_left_out(table):
    path = table(HEAD + 'a,"LINESTRING (0 0, 9.9 0)"\na,"LINESTRING (0 50, 10.1 50)"\n')
    assert read_csv(path, pixel_size_m=100)["a"].length_m.tolist() == [pytest.approx(1010)]


def test_heights_are_ignored_and_multi_part_lines_split(table):
    text = '"MULTILINESTRING Z ((0 0 1, 50 0 1), (50 0 2, 50 50 2))"'
    found = read_csv(table(HEAD + f"a,{text}\n"), pixel_size_m=1)["a"]
    assert found.length_m.tolist() == [100]


def test_a_grid_georeferences_the_roads(table):
    path = table(HEAD + 'a,"LINESTRING (0 0, 0 1000)"\n')
    # Degrees of a chip in Khartoum and its mirror south of the equator.
    for lat, crs in ((15.5, "EPSG:32636"), (-15.5, "EPSG:32736")):
        grid = Grid(1300, 1300, Affine(2.7e-6, 0, 32.5, 0, -2.7e-6, lat), "EPSG:4326")
        found = read_csv(path, grids={"a": grid})["a"]
        assert found.crs == crs
        assert found.length_m[0] == pytest.approx(2.7e-3 * 110_650, rel=1e-3)
        assert found.nodes[:, 1].min() > 1e6


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1,2\n", "does not name the columns ImageId and WKT_Pix"),
        (HEAD + "a,LINESTRONG (0 0)\n", "not a geometry"),
        (HEAD + "a,POINT (1 2)\n", "not a LINESTRING"),
        (HEAD + 'a,"LINESTRING (0 0, nan 5)"\n', "not finite|not a geometry"),
        (TIMES + 'a,"LINESTRING (0 0, 9 9)",x,1\n', "line 2: length_m and travel_time_s"),
    ],
)
def test_tables_that_cannot_be_read_are_refused_with_a_reason(table, text, why):
    with pytest.raises(LabelError, match=why):
        read_csv(table(text), pixel_size_m=1)


def test_roads_in_pixels_need_a_pixel_size_or_an_image(table):
    path = table(HEAD + 'a,"LINESTRING (0 0, 90 0)"\n')
    with pytest.raises(UsageError, match="roads of a are in pixels"):
        read_csv(path)
    with pytest.raises(LabelError, match="not readable as CSV"):
        read_csv(path.with_name("gone.csv"))


def rows(path):
    with path.open() as file:
        return list(csv.reader(file))


def test_a_georeferenced_network_is_written_in_pixels(tmp_path):
    mask = np.zeros((200, 300), np.uint8)
    mask[90:110] = 30
    grid = Grid(200, 300, Affine(2.7e-6, 0, -115.17, 0, -2.7e-6, 36.24), "EPSG:4326")
    raster = replace(array_raster(mask, pixel_size_m=grid.gsd_m(), kind="speed"), grid=grid)
    made = trace(raster)
    path = tmp_path / "roads.csv"
    assert write_csv([ImageRoads("AOI_2_Vegas_img0", made, raster.gsd_m, grid)], path)["edges"] == 1
    head, (image, wkt, length, time) = rows(path)
    assert head == ["ImageId", "WKT_Pix", "length_m", "travel_time_s"]
    line = shapely.from_wkt(wkt)
    assert image == "AOI_2_Vegas_img0"
    assert np.allclose(sorted(x for x, _ in line.coords), (0.5, 299.5), atol=0.01)
    assert np.allclose([y for _, y in line.coords], 100, atol=1)
    assert float(length) == pytest.approx(299 * 0.2427, rel=1e-3)
    assert float(time) == pytest.approx(float(length) / (30 * 0.44704), abs=1e-3)


def test_an_image_without_roads_has_a_row(tmp_path):
    made = traced([[(20, -50), (180, -50)]], pixel=1.0)
    none = traced([[(20, -50), (20, -51)]], min_length_m=100)
    images = [ImageRoads("b", none, (1.0, 1.0), None), ImageRoads("a", made, (1.0, 1.0), None)]
    assert write_csv(images, tmp_path / "roads.csv")["edges"] == 1
    _, empty, full = rows(tmp_path / "roads.csv")
    assert empty == ["b", "LINESTRING EMPTY", "0", "0"]
    assert full[3] == ""
    assert np.allclose([y for _, y in shapely.from_wkt(full[1]).coords], 50, atol=1)


def test_two_images_with_one_name_are_refused(tmp_path):
    image = ImageRoads("a", network([(0, 0), (9, 0)]), (1.0, 1.0), None)
    with pytest.raises(UsageError, match="two images have the ImageId a"):
        write_csv([image, image], tmp_path / "roads.csv")
    assert not list(tmp_path.iterdir())
