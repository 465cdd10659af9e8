"""Roads drawn as areas, and roads whose width is told."""

import json

import numpy as np
import pytest
import shapely
from affine import Affine
from rasterio.features import rasterize

from geoprep.errors import LabelError
from geoprep.grid import Grid
from geoprep.labels import SpeedRule, burn, read_roads, speed_polygons
from geoprep.labels.road_files import open_road_file
from geoprep.labels.table import NAMELESS_AREA
from geoprep.plan.shared import judge_shared_roads

UTM = "EPSG:32637"
GRID = Grid(60, 80, Affine(0.5, 0, 412_000, 0, -0.5, 6_174_000), UTM)
SN3 = {"road_type": "5", "lane_numbe": "2", "paved": "1"}


def at(x, y):
    """Return the place of metres east and south of the upper left corner."""
    return 412_000 + x, 6_174_000 - y


def ring(*points):
    return [at(*point) for point in (*points, points[0])]


YARD = [ring((5, 5), (30, 5), (30, 25), (5, 25)), ring((12, 10), (20, 10), (20, 18), (12, 18))]
BOW_TIE = [ring((2, 2), (35, 25), (35, 2), (2, 25))]


@pytest.fixture
def label(tmp_path):
    """Return a function that writes (kind, coordinates, properties) as one GeoJSON file in UTM."""

    def write(*features, name="a.geojson"):
        made = [
            {
                "type": "Feature",
                "properties": SN3 | properties,
                "geometry": {"type": kind, "coordinates": coordinates},
            }
            for kind, coordinates, properties in features
        ]
        document = {
            "type": "FeatureCollection",
            "features": made,
            "crs": {"type": "name", "properties": {"name": UTM}},
        }
        path = tmp_path / name
        path.write_text(json.dumps(document))
        return path

    return write


def mask_of(roads, half_width=2.0):
    polygons = speed_polygons(roads, GRID, buffer_m=roads.half_widths(half_width))
    return burn(polygons, GRID.transform, (GRID.height, GRID.width))


def by_gdal(polygon, value=25):
    return rasterize([(polygon, value)], (GRID.height, GRID.width), transform=GRID.transform)


@pytest.mark.parametrize("suffix", [".geojson", ".gpkg", ".shp"])
@pytest.mark.parametrize("rings", [YARD, YARD[:1]])
def test_an_area_is_burned_as_it_is_and_its_holes_stay_open(label, rings, suffix):
    geopandas = pytest.importorskip("geopandas")
    path = label(("Polygon", rings, {}))
    if suffix != ".geojson":
        other = path.with_suffix(suffix)
        geopandas.read_file(path).to_file(other)
        path = other
    np.testing.assert_array_equal(
        mask_of(read_roads(path)), by_gdal(shapely.Polygon(rings[0], rings[1:]))
    )


def test_lines_and_areas_of_one_file_are_burned_together_the_faster_on_top(label):
    line = ("LineString", [at(0, 15), at(40, 15)], {"road_type": "1"})
    areas = ("MultiPolygon", [YARD], {"road_type": "3"})
    mask = mask_of(read_roads(label(areas, line)))
    alone = mask_of(read_roads(label(line)))
    assert set(np.unique(alone)) == {0, 55}
    expected = np.maximum(alone, by_gdal(shapely.Polygon(YARD[0], YARD[1:]), 35))
    np.testing.assert_array_equal(mask, expected)


def test_an_area_whose_edge_crosses_itself_has_the_pixels_within(label):
    mask = mask_of(read_roads(label(("Polygon", BOW_TIE, {}))))
    np.testing.assert_array_equal(mask > 0, by_gdal(shapely.Polygon(BOW_TIE[0])) > 0)


def road(y, **properties):
    return ("LineString", [at(-5, y), at(45, y)], properties)


def widths(mask, column=40):
    """Return the pixels of every run of road down a column."""
    edges = np.flatnonzero(np.diff(np.r_[0, mask[:, column] > 0, 0]))
    return (edges[1::2] - edges[::2]).tolist()


def test_a_road_is_as_wide_as_its_field_says(label):
    rule = SpeedRule(width_field="width")
    path = label(road(5.1, width=8), road(15.1, width="3.5 m"), road(24.1, width=None))
    roads = read_roads(path, rule=rule)
    assert widths(mask_of(roads, 1.0)) == [16, 7, 4]
    assert widths(mask_of(read_roads(path))) == [8, 8, 8]
    assert roads.notes == {"width missing": 1}


@pytest.mark.parametrize(
    ("value", "note"),
    [
        ("wide", "width unknown"),
        (0, "width out of range"),
        (-3, "width out of range"),
        (800, "width out of range"),
        ("nan", "width missing"),
        (True, "width unknown"),
    ],
)
def test_what_is_no_width_falls_back_to_the_buffer_and_is_counted(label, value, note):
    path = label(road(15.1, width=value))
    roads = read_roads(path, rule=SpeedRule(width_field="width"))
    assert roads.notes == {note: 1}
    assert widths(mask_of(roads)) == [8]


def test_a_width_field_that_no_road_has_is_an_error_that_lists_what_there_is(label):
    with pytest.raises(LabelError, match=r"a\.geojson: no width field wide; .*road_type"):
        read_roads(label(road(15)), rule=SpeedRule(width_field="wide"))


def test_a_wide_road_beside_the_scene_reaches_into_it(label):
    """Of one file for many scenes only what touches a scene is taken: its width counts."""
    path = label(road(-12, width=40))
    rule = SpeedRule(width_field="width")
    roads = read_roads(path, rule=rule, bounds=GRID.bounds, bounds_crs=UTM)
    assert widths(mask_of(roads)) == [16]


def test_areas_of_a_file_that_says_nothing_of_roads_are_taken_and_noted(tmp_path):
    """Footprints of buildings look the same: whoever gives them as labels reads this."""
    path = tmp_path / "a.geojson"
    shape = {"type": "Polygon", "coordinates": YARD}
    document = {
        "type": "FeatureCollection",
        "features": [
            {"type": "Feature", "properties": {"osm_id": "1", "type": "house"}, "geometry": shape}
        ],
        "crs": {"type": "name", "properties": {"name": UTM}},
    }
    path.write_text(json.dumps(document))
    roads = read_roads(path)
    assert roads.mph.tolist() == [20.0]
    assert roads.notes == {NAMELESS_AREA: 1}


def test_layers_of_roads_that_are_not_read_are_named(tmp_path, label):
    geopandas = pytest.importorskip("geopandas")
    path = tmp_path / "roads.gpkg"
    for layer, feature in (
        ("areas", ("Polygon", YARD, {})),
        ("lines", road(15)),
        ("paths", road(20)),
    ):
        geopandas.read_file(label(feature)).to_file(path, layer=layer)
    note = (
        "layer lines (LineString) taken as roads, others not read: paths (LineString), "
        "areas (Polygon)"
    )
    assert read_roads(path).notes == {note: 1}
    file = open_road_file(path, SpeedRule())
    assert file.roads_within(GRID.bounds, UTM, 2.0).notes == {}
    assert judge_shared_roads(file, [GRID]) == ([""], (f"{path}: {note}",))
