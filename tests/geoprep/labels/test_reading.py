import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import geopandas
import numpy as np
import pyproj
import pytest
import shapely
from helpers.archives import write_tar
from hypothesis import given
from hypothesis import strategies as st

from geoprep.crs import LONLAT
from geoprep.errors import LabelError
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.label_shapes import read_shapes
from geoprep.labels.vector_labels import read_label_table
from geoprep.sources.archives import index_tar
from geoprep.storage.addresses import member_address

ROAD = {"road_type": "5", "lane_number": "2", "paved": "1"}
LINE = [[37.6, 55.7], [37.601, 55.7], [37.602, 55.701]]


def shape(kind, *coordinates):
    return {"type": kind, "coordinates": coordinates}


def feature(coordinates=LINE, kind="LineString", **properties):
    geometry = shape(kind, *coordinates)
    return {"type": "Feature", "properties": ROAD | properties, "geometry": geometry}


def geojson(*features, **members):
    collection = {"type": "FeatureCollection", "features": list(features), **members}
    return json.dumps(collection).encode()


def read(data, **options):
    """Return the roads of a GeoJSON document, which is written to a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "chip7.geojson"
        path.write_bytes(data)
        return read_shapes(path, **options)


def coordinates(line):
    return shapely.get_coordinates(line).tolist()


# --- what is read -------------------------------------------------------------------------------


def test_lines_come_with_their_speed_and_crs():
    roads = read(geojson(feature(), feature(LINE[:2], road_type="2")))
    assert [coordinates(line) for line in roads.lines] == [LINE, LINE[:2]]
    assert roads.value.tolist() == [25, 45]
    assert roads.crs == "EPSG:4326"
    assert roads.notes == {}


@pytest.mark.parametrize("mixed", [False, True])
def test_z_is_dropped_even_where_some_lines_have_none(mixed):
    high = [[x, y, 0.0] for x, y in LINE]
    roads = read(geojson(feature(high), *[feature()] * mixed, feature(high)))
    assert all(coordinates(line) == LINE for line in roads.lines)
    assert not shapely.has_z(roads.lines).any()
    assert len(roads.lines) == 2 + mixed


def test_a_byte_order_mark_is_no_obstacle():
    assert len(read(b"\xef\xbb\xbf" + geojson(feature())).lines) == 1


def test_real_openstreetmap_roads_are_read_by_their_tags(shared_data):
    roads = read_shapes(shared_data / "apls" / "osm_img990.geojson")
    assert sorted(roads.value.tolist()) == [25, 25, 25, 25, 25, 35, 35]
    assert roads.notes["not driveable"] == 5


# --- coordinate systems -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "crs"),
    [
        (None, "EPSG:4326"),
        ({"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}, "EPSG:4326"),
        ({"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::3857"}}, "EPSG:3857"),
        ({"type": "EPSG", "properties": {"code": 32637}}, "EPSG:32637"),
    ],
)
def test_the_crs_member_of_the_first_geojson_is_honoured(member, crs):
    assert read(geojson(feature(), crs=member)).crs == crs


# --- geometry that is no road -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "note"),
    [
        (None, "geometry missing"),
        (shape("Point", 1, 2), "geometry Point"),
        ({"type": "GeometryCollection", "geometries": []}, "geometry GeometryCollection"),
        ({"type": "LineString"}, "geometry missing"),
        (shape("LineString", [1, 2], [1, None]), "geometry missing"),
        (shape("LineString"), "geometry empty"),
        (shape("Polygon", [["a", "b"]]), "geometry missing"),
        (shape("Polygon", [[0, 0], [1, 1], [0, 91], [0, 0]]), "geometry out of range"),
        (shape("LineString", [1, 2], [math.nan, 2]), "geometry not finite"),
        (shape("LineString", [5e5, 6e6], [5e5, 6e6]), "geometry out of range"),
    ],
)
def test_other_geometry_is_left_out_and_counted(geometry, note):
    bad = {"type": "Feature", "properties": {"road_type": "?"}, "geometry": geometry}
    roads = read(geojson(bad, feature()))
    assert [coordinates(line) for line in roads.lines] == [LINE]
    assert roads.value.tolist() == [25]
    assert roads.notes == {note: 1}


@pytest.mark.parametrize("junk", [None, 7, [], "road"])
def test_features_and_properties_that_are_none_do_no_harm(junk):
    roads = read(geojson(junk, {**feature(), "properties": junk}))
    assert roads.value.tolist() == [20]
    assert roads.notes["road_type missing"] == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
numbers = st.floats(width=32) | st.integers(-400, 400)
geometries = json_values | st.fixed_dictionaries(
    {
        "type": st.sampled_from(["LineString", "MultiLineString", "Polygon", "MultiPolygon"]),
        "coordinates": json_values
        | st.lists(st.lists(numbers, min_size=2, max_size=3), max_size=4)
        | st.lists(st.lists(st.lists(numbers, min_size=2, max_size=2), max_size=3), max_size=3),
    }
)
features = json_values | st.fixed_dictionaries({"properties": json_values, "geometry": geometries})


@given(st.lists(features, max_size=4))
def test_whatever_the_features_are_every_line_returned_has_a_place_and_a_speed(each):
    try:
        roads = read(geojson(*each))
    except LabelError:  # such as for a number beyond all floats
        return
    assert len(roads.lines) == len(roads.value)
    assert np.isfinite(shapely.get_coordinates(roads.lines)).all()
    assert (roads.value > 0).all()
    kinds = [shapely.GeometryType.LINESTRING, shapely.GeometryType.POLYGON]
    assert np.isin(shapely.get_type_id(roads.lines), kinds).all()


# --- documents that are no label ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not recognized"),
        (geojson(feature())[:-20], "Failed to read GeoJSON data"),
        (b"II*\x00\x08\x00\x00\x00", "not recognized"),
        (b"[" * 100_000, "not recognized"),
        (b'{"type": "FeatureCollection"}', "Missing 'features' member"),
    ],
)
def test_what_is_no_label_is_an_error_that_names_the_file(data, reason, tmp_path):
    path = tmp_path / "chip7.geojson"
    path.write_bytes(data)
    with pytest.raises(LabelError, match=reason) as error:
        read_shapes(path)
    assert str(path) in str(error.value)
    with pytest.raises(LabelError, match=f"^s3://bucket/chip7.geojson: .*{reason}"):
        read_label_table(data, SpeedRule(), "s3://bucket/chip7.geojson")


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path):
    for missing in (tmp_path / "no.geojson", tmp_path / "no.gpkg"):
        with pytest.raises(LabelError, match=missing.name):
            read_shapes(missing)
    folder = tmp_path / "folder.geojson"
    folder.mkdir()
    with pytest.raises(LabelError, match=r"folder\.geojson: not readable"):
        read_shapes(folder)


@pytest.mark.parametrize("margin", [0.0, 2.0])
def test_a_label_with_features_in_the_scene_or_none_at_all_is_one_of_it(margin):
    scene = {"scene": (37.59, 55.69, 37.61, 55.71), "bounds_crs": "EPSG:4326"}
    assert len(read(geojson(feature()), margin_m=margin, **scene).lines) == 1
    assert len(read(geojson(), margin_m=margin, **scene).lines) == 0


def test_roads_all_around_a_scene_are_not_in_it():
    around = feature([[37.5, 55.6], [37.7, 55.6], [37.7, 55.8], [37.5, 55.8], [37.5, 55.6]])
    with pytest.raises(
        LabelError, match=r"chip7\.geojson: none of its 1 feature intersects the scene"
    ):
        read(geojson(around), scene=(37.59, 55.69, 37.61, 55.71), bounds_crs=LONLAT)


@pytest.mark.parametrize("crs", ["EPSG:32637", "EPSG:3857", "EPSG:4326"])
def test_the_neighbours_road_that_ends_at_the_edge_is_not_in_the_scene(crs):
    """Also where north is not up: the box around a scene in degrees is larger than the scene."""
    to = pyproj.Transformer.from_crs(LONLAT, crs, always_xy=True)
    left, bottom = to.transform(34.1, 55.7)  # three degrees from the middle of the zone
    side = 400 if crs != "EPSG:4326" else 0.004
    right, top = left + side, bottom + side
    back = pyproj.Transformer.from_crs(crs, LONLAT, always_xy=True)
    beside = [list(back.transform(x, bottom + side / 2)) for x in (right, right + side)]
    scene = {"scene": (left, bottom, right, top), "bounds_crs": crs}
    with pytest.raises(LabelError, match="intersects the scene"):
        read(geojson(feature(beside)), **scene)
    reaching_in = [list(back.transform(x, bottom + side / 2)) for x in (right - side / 9, right)]
    assert len(read(geojson(feature(reaching_in)), **scene).lines) == 1


def test_a_label_of_any_format_is_read_out_of_an_archive(tmp_path):
    line = [shapely.LineString(LINE)]
    frame = geopandas.GeoDataFrame(ROAD, index=[0], geometry=line, crs="EPSG:4326")
    frame.to_file(tmp_path / "roads.gpkg")
    package = (tmp_path / "roads.gpkg").read_bytes()
    members = {"roads.gpkg": package, "roads.geojson": geojson(feature())}
    write_tar(tmp_path / "all.tar", members)
    for name, place in index_tar(tmp_path / "all.tar").items():
        roads = read_shapes(member_address(tmp_path / "all.tar", name, *place))
        assert [coordinates(line) for line in roads.lines] == [LINE]
        assert roads.value.tolist() == [25]
