"""Roads drawn as areas, layers and conditions."""

import geopandas
import numpy as np
import pytest
import shapely
from affine import Affine
from helpers.geojson import feature, write_features
from rasterio.features import rasterize

from geoprep.building.label_checks import check_shared_roads
from geoprep.errors import LabelError
from geoprep.grid import Grid
from geoprep.labels.burning import LabelOutlines, burn
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.label_shapes import open_label_file, read_shapes
from geoprep.labels.vector_files import UNSELECTED
from geoprep.labels.vector_labels import read_label_table
from geoprep.speed import UNKNOWN_SPEED

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

    def write(*features):
        made = [feature(points, kind, **SN3 | own) for kind, points, own in features]
        crs = {"type": "name", "properties": {"name": UTM}}
        return write_features(tmp_path / "a.geojson", made, crs=crs)

    return write


def mask_of(roads, half_width=2.0):
    return burn(LabelOutlines.of(roads, GRID, half_width).within(GRID), GRID)


def by_gdal(polygon, value=25):
    return rasterize([(polygon, value)], (GRID.height, GRID.width), transform=GRID.transform)


@pytest.mark.parametrize("suffix", [".geojson", ".shp"])
@pytest.mark.parametrize("rings", [YARD, YARD[:1]])
def test_an_area_is_burned_as_it_is_and_its_holes_stay_open(label, rings, suffix):
    path = label(("Polygon", rings, {}))
    if suffix != ".geojson":
        other = path.with_suffix(suffix)
        geopandas.read_file(path).to_file(other)
        path = other
    np.testing.assert_array_equal(
        mask_of(read_shapes(path)), by_gdal(shapely.Polygon(rings[0], rings[1:]))
    )


def test_lines_and_areas_of_one_file_are_burned_together_the_faster_on_top(label):
    line = ("LineString", [at(0, 15), at(40, 15)], {"road_type": "1"})
    areas = ("MultiPolygon", [YARD], {"road_type": "3"})
    mask = mask_of(read_shapes(label(areas, line)))
    alone = mask_of(read_shapes(label(line)))
    assert set(np.unique(alone)) == {0, 55}
    expected = np.maximum(alone, by_gdal(shapely.Polygon(YARD[0], YARD[1:]), 35))
    np.testing.assert_array_equal(mask, expected)


def test_a_ring_that_is_not_closed_is_closed(label):
    mask = mask_of(read_shapes(label(("Polygon", [YARD[0][:-1]], {}))))
    np.testing.assert_array_equal(mask, by_gdal(shapely.Polygon(YARD[0])))


def test_an_area_whose_edge_crosses_itself_has_the_pixels_within(label):
    mask = mask_of(read_shapes(label(("Polygon", BOW_TIE, {}))))
    np.testing.assert_array_equal(mask > 0, by_gdal(shapely.Polygon(BOW_TIE[0])) > 0)


def road(y, **properties):
    return ("LineString", [at(-5, y), at(45, y)], properties)


@pytest.fixture
def houses(tmp_path):
    """Return a file of areas without road attributes, as buildings and land cover are."""
    path = tmp_path / "houses.geojson"
    columns = {"osm_id": ["1", "1"], "type": ["house", "road"], "surface": ["grass"] * 2}
    area = shapely.Polygon(YARD[0], YARD[1:])
    geopandas.GeoDataFrame(columns, geometry=[area, area], crs=UTM).to_file(path)
    return path


@pytest.mark.parametrize(
    ("rule", "count", "notes"),
    [
        ({"where": "1 = 1"}, 2, {"area of unknown speed": 2}),
        ({"where": "type = 'road'"}, 1, {"area of unknown speed": 1}),
        ({"lines_only": True}, 0, {"area ignored": 2}),
    ],
)
def test_areas_that_are_asked_for_are_roads_of_unknown_speed(houses, rule, count, notes):
    roads = read_shapes(houses, rule=SpeedRule(**rule))
    assert (len(roads.lines), roads.notes) == (count, notes)
    expected = by_gdal(shapely.Polygon(YARD[0], YARD[1:]), UNKNOWN_SPEED if count else 0)
    np.testing.assert_array_equal(mask_of(roads), expected)


def test_known_speeds_are_drawn_over_an_area_of_unknown_speed(label):
    area = ("Polygon", YARD[:1], {"road_type": None})
    mask = mask_of(read_shapes(label(area, road(15.1))))
    assert set(np.unique(mask)) == {0, 25, UNKNOWN_SPEED}
    assert mask[30, 40] == 25


LAYERS = {
    "rivers": ("LineString", {"fclass": "river", "name": "Neva"}),
    "roads": ("LineString", {"fclass": "residential"}),
    "railways": ("LineString", {"fclass": "rail"}),
    "landuse": ("Polygon", {"fclass": "forest"}),
}
"""Layers of Geofabrik's extracts: all have a field fclass."""


def layered(path, layers):
    shapes = {"Polygon": shapely.Polygon(YARD[0]), "LineString": shapely.LineString(YARD[0])}
    for layer, (kind, properties) in layers.items():
        shape = shapes[kind]
        geopandas.GeoDataFrame([properties], geometry=[shape], crs=UTM).to_file(path, layer=layer)
    return path


def test_the_layer_with_road_attributes_is_read_and_the_others_are_named(tmp_path):
    path = layered(tmp_path / "extract.gpkg", LAYERS)
    note = (
        "layer roads (LineString) read as roads, layers not read: rivers (LineString), "
        "railways (LineString), landuse (Polygon)"
    )
    assert read_shapes(path).notes == {"lanes missing": 1, "surface missing": 1, note: 1}
    file = open_label_file(path, SpeedRule())
    assert check_shared_roads(file, [GRID]) == ([""], [f"{path}: {note}"])


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        (["rivers", "railways"], "no layer has road attributes"),
        (["roads", "north"], "more than one layer has road attributes"),
        (["houses", "landuse"], "(?=.*For a class give `classes`, such as building. )no layer has"),
    ],
)
def test_layers_that_do_not_tell_are_refused_by_name(tmp_path, layers, says):
    known = LAYERS | {
        "north": ("LineString", {"highway": "primary"}),
        "houses": ("Polygon", {"a": 1}),
    }
    path = layered(tmp_path / "a.gpkg", {name: known[name] for name in layers})
    with pytest.raises(LabelError, match=rf"a\.gpkg: {says}.*{layers[0]}.*{layers[1]}.*`layer`"):
        read_shapes(path)
    assert len(read_shapes(path, rule=SpeedRule(layer=layers[1])).notes) > 0


def test_a_layer_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    path = layered(tmp_path / "a.gpkg", LAYERS)
    with pytest.raises(LabelError, match=r"no layer 'streets'.*rivers.*roads"):
        read_shapes(path, rule=SpeedRule(layer="streets"))


def test_a_condition_selects_features_of_any_format(tmp_path, label):
    path = label(road(5, name="a"), road(15, name="b"))
    assert len(read_shapes(path, rule=SpeedRule(where="name = 'a'")).lines) == 1
    frame = geopandas.read_file(path)
    for suffix in (".gpkg", ".shp", ".parquet", ".geojson", ".fgb", ".gdb", ".kml"):
        other = path.with_name(f"other{suffix}")
        if suffix == ".parquet":
            frame.to_parquet(other)
        else:
            frame.to_file(other, driver="OpenFileGDB" if suffix == ".gdb" else None)
        # SQLite's dialect: a converted file gives the same labels.
        for where, count in {
            **{"name = 'a'": 1, "name = 'A'": 0, "name LIKE 'A'": 1, "name IN ('A', 'b')": 1},
            **{"name <> 'a' OR name = 'a'": 2, "name = 'a' -- or b": 1},
        }.items():
            roads = read_shapes(other, rule=SpeedRule(where=where))
            assert len(roads.lines) == count, (suffix, where)
            assert (UNSELECTED in roads.notes) == (count == 0)


def test_a_condition_selects_features_of_contents_in_memory(tmp_path, label):
    path = label(road(5, name="a"), road(15, name="b"))
    table = read_label_table(path.read_bytes(), SpeedRule(where="name = 'a'"), "x/roads.geojson")
    assert len(table.lines) == 1


def test_one_file_whose_condition_selects_nothing_is_refused(label):
    file = open_label_file(label(road(5, name="a")), SpeedRule(where="name = 'c'"))
    with pytest.raises(LabelError, match="no feature is selected by `where`"):
        check_shared_roads(file, [])


@pytest.mark.parametrize("stated", ["cpg", "nothing"])
def test_text_of_a_shapefile_is_read_in_its_encoding(tmp_path, label, stated):
    path = tmp_path / "roads.shp"
    frame = geopandas.read_file(label(road(5, name="a"), road(15, name="b")))
    frame.assign(highway=["дорога", "primary"]).to_file(path, encoding="cp1251")
    table = path.with_suffix(".dbf")
    content = bytearray(table.read_bytes())
    assert "дорога".encode("cp1251") in content
    content[29] = 0  # the code page, which GDAL writes
    table.write_bytes(content)
    if stated != "cpg":
        path.with_suffix(".cpg").unlink()
    where = SpeedRule(where="highway = 'дорога'")
    if stated == "nothing":
        with pytest.raises(LabelError, match=r"roads\.shp: text read as ISO-8859-1.*\.cpg"):
            read_shapes(path, rule=where)
        assert any("ISO-8859-1" in note for note in read_shapes(path).notes)
    else:
        assert len(read_shapes(path, rule=where).lines) == 1
        assert not any("ISO-8859-1" in note for note in read_shapes(path).notes)


def test_a_condition_that_is_wrong_is_an_error_that_lists_the_fields(tmp_path, label):
    path = label(road(5, name="a"))
    for where in ("colour = 'red'", "name ="):
        with pytest.raises(LabelError, match=r"a\.geojson: .*`where`.*road_type"):
            read_shapes(path, rule=SpeedRule(where=where))
