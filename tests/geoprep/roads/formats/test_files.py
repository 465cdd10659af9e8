"""Road networks written, read back, saved again by other programs, or damaged."""

import json
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import geopandas as gpd
import numpy as np
import pyogrio
import pytest
import shapely
import shapely.affinity
from helpers.roads import degree_counts, mixed_network, network

from geoprep.errors import SourceError, UsageError
from geoprep.labels.label_shapes import read_shapes
from geoprep.roads.formats.files import read_if_network, read_network, write_network
from geoprep.roads.network import RoadGraph
from geoprep.sources.own_images import images_and_labels

SUFFIXES = [".gpkg", ".geojson", ".parquet"]


def some(crs="EPSG:32737") -> RoadGraph:
    return mixed_network(crs) if crs else mixed_network(None, (0, -100))


@pytest.mark.parametrize(
    ("suffix", "crs"),
    [*((suffix, "EPSG:32737") for suffix in SUFFIXES), (".gpkg", None), (".parquet", None)],
)
def test_a_network_is_read_back(tmp_path, suffix, crs):
    shares = np.array([[0.9, 0.5], [0.8, 0.123], [0.7, 0], [0.1234, 0.1]])
    made, path = some(crs), tmp_path / f"roads{suffix}"
    write_network(replace(made, confidence=shares), path)
    assert read_network(path).confidence == pytest.approx(shares, abs=5e-4)
    write_network(made, path)
    back = read_network(path)
    assert back.confidence is None
    assert back.crs == made.crs
    assert np.allclose(back.nodes, made.nodes, rtol=0, atol=2e-3)
    assert np.array_equal(back.ends, made.ends)
    assert shapely.equals_exact(back.lines, made.lines, tolerance=2e-3).all()
    assert np.allclose(back.speed_mph, made.speed_mph, equal_nan=True)
    assert {p.name for p in tmp_path.iterdir()} == {path.name}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_network_without_roads_is_read_back(tmp_path, suffix):
    write_network(network(crs="EPSG:32737"), tmp_path / f"no{suffix}")
    back = read_network(tmp_path / f"no{suffix}")
    assert (back.nodes.shape, back.ends.shape, len(back.lines)) == ((0, 2), (0, 2), 0)


def test_a_geopackage_has_layers_columns_and_a_style(tmp_path):
    path = tmp_path / "roads.gpkg"
    write_network(some(), path)
    layers = dict(pyogrio.list_layers(path).tolist())
    assert layers == {"edges": "LineString", "nodes": "Point", "layer_styles": None}
    info = pyogrio.read_info(path, layer="edges")
    columns = ["from_node", "to_node", "length_m", "speed_mph", "travel_time_s"]
    assert info["fields"].tolist() == columns
    assert info["crs"] == "EPSG:32737"
    with sqlite3.connect(path) as database:
        times = [t for (t,) in database.execute("SELECT travel_time_s FROM edges")]
        (table, column, qml, default) = database.execute(
            "SELECT f_table_name, f_geometry_column, styleQML, useAsDefault FROM layer_styles"
        ).fetchone()
        geometry = database.execute(
            "SELECT column_name FROM gpkg_geometry_columns WHERE table_name = 'edges'"
        ).fetchone()
    assert times[2] is None
    assert times[0] == pytest.approx(some().length_m[0] / (25 * 0.44704))
    assert (table, default) == ("edges", 1)
    assert (column,) == geometry
    assert qml.count("<rule ") == qml.count("<symbol ") == 8
    assert "speed_mph IS NULL" in qml


@pytest.mark.parametrize("name", ["roads.geojson", "X.GEOJSON"])
def test_geojson_is_in_degrees_and_has_no_nan(tmp_path, name):
    path = tmp_path / name
    write_network(some(), path)
    document = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert set(document) == {"type", "features"}
    lon, lat = document["features"][0]["geometry"]["coordinates"][0]
    assert (lon, lat) == pytest.approx((39, -9.047), abs=1e-3)
    assert document["features"][2]["properties"]["speed_mph"] is None


def read_items(path):
    return images_and_labels([str(path)], asset="visual")


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    missing = r"pip install 'geoprep\[parquet\]'"
    with pytest.raises(UsageError, match=missing):
        write_network(some(), path)
    assert not list(tmp_path.iterdir())
    path.write_bytes(b"PAR1")
    for read in (read_network, read_if_network, read_shapes, read_items):
        with pytest.raises(UsageError, match=missing):
            read(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_is_not_a_network_is_refused_with_its_name(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_text("no")
    with pytest.raises(SourceError, match=rf"x\{suffix}"):
        read_network(path)


def changed(path, change):
    """Write a network as GeoJSON with a change to its first feature, and return the path."""
    write_network(some(), path)
    document = json.loads(path.read_text())
    change(document["features"][0])
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(geometry={"type": "Point", "coordinates": [0, 0]}), "not a line"),
        (lambda f: f.update(geometry=None), "feature 0 is not a line"),
        (lambda f: f["properties"].update(speed_mph="fast"), "speed_mph is not a number"),
        (
            lambda f: f["geometry"]["coordinates"][0].__setitem__(0, 400.0),
            "outside the domain of its CRS",
        ),
        (lambda f: f["geometry"]["coordinates"][0].__setitem__(0, float("nan")), "not finite"),
    ],
)
def test_a_damaged_network_is_refused_with_its_name(tmp_path, change, message):
    with pytest.raises(SourceError, match=f"roads.geojson.*({message})"):
        read_network(changed(tmp_path / "roads.geojson", change))


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f["properties"].pop("from_node"),
        lambda f: f["properties"].update(from_node=None),
        lambda f: f["properties"].update(to_node=99),
        lambda f: f["properties"].update(to_node=0),
    ],
    ids=["missing", "null", "unknown", "wrong"],
)
def test_node_numbers_that_cannot_be_used_are_rebuilt_from_coordinates(tmp_path, change):
    back = read_network(changed(tmp_path / "roads.geojson", change))
    assert same_topology(back, some())
    assert np.allclose(back.speed_mph, some().speed_mph, equal_nan=True)


def same_topology(one, other):
    """Return whether edges of two networks join at the same places, whatever their numbers."""
    at = [made.nodes[made.ends].round(1) for made in (one, other)]
    return at[0].shape == at[1].shape and np.allclose(*at, rtol=0, atol=0.2)


def saved_by_qgis(path, network, *, crs="EPSG:4326", layer="my roads", **columns):
    """Save a network as QGIS does: multi-part lines, any CRS, one layer of any name."""
    ends = {"from_node": network.ends[:, 0], "to_node": network.ends[:, 1]}
    table = gpd.GeoDataFrame(
        {**ends, "speed_mph": network.speed_mph, **columns},
        geometry=[shapely.MultiLineString([line]) for line in network.lines],
        crs=network.crs,
    )
    options = {} if path.suffix in (".shp", ".fgb") else {"layer": layer}
    table.to_crs(crs).to_file(path, engine="pyogrio", **options)
    return path


@pytest.mark.parametrize("suffix", [".gpkg", ".geojson", ".shp", ".fgb"])
@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:32737", "EPSG:3857", "EPSG:2263"])
def test_edges_saved_by_qgis_keep_speeds_lengths_and_topology(tmp_path, suffix, crs):
    made = some()
    back = read_network(saved_by_qgis(tmp_path / f"saved{suffix}", made, crs=crs))
    assert back.crs == made.crs
    order, was = np.argsort(back.length_m), np.argsort(made.length_m)  # FlatGeobuf sorts features
    assert np.allclose(back.length_m[order], made.length_m[was], rtol=1e-4)
    assert np.allclose(back.speed_mph[order], made.speed_mph[was], equal_nan=True)
    back, made = (replace(one, ends=one.ends[by]) for one, by in ((back, order), (made, was)))
    assert same_topology(back, made)


def test_a_road_moved_in_qgis_no_longer_joins_its_old_nodes(tmp_path):
    made = network([(0, 0), (100, 0)], [(100, 0), (200, 0)], speeds=[30, 30], crs="EPSG:32637")
    moved = replace(made, lines=np.array([made.lines[0], shapely.affinity.translate(
        made.lines[1], 0, 500)], object))  # fmt: skip
    back = read_network(saved_by_qgis(tmp_path / "a.gpkg", moved, crs="EPSG:32637"))
    assert len(back.nodes) == 4


def test_roads_drawn_in_qgis_without_node_numbers_are_joined(tmp_path):
    """One new road from the end of a road to the middle of another; one dead end snapped."""
    lines = [(5e5, 0), (500_100, 0)], [(5e5, 80), (500_100, 80)], [(500_100, 0), (500_050, 80)]
    made = network(*lines, speeds=[30, 20, 10], crs="EPSG:32637")
    numbers = np.array([[0, 1], [2, 3], [np.nan, np.nan]])
    path = saved_by_qgis(tmp_path / "a.gpkg", made, from_node=numbers[:, 0], to_node=numbers[:, 1])
    back = read_network(path)
    assert sorted(back.length_m.round(2)) == pytest.approx([50, 50, np.hypot(50, 80), 100], abs=0.1)
    assert len(back.nodes) == 5
    assert sorted(back.speed_mph) == [10, 20, 20, 30]


def test_a_network_that_josm_saved_is_read_with_its_edits(tmp_path):
    """JOSM writes tags as text, and drops those that are null; here with a type and a new road."""
    path = tmp_path / "roads.geojson"
    write_network(replace(some(), confidence=np.full((4, 2), 0.75)), path)
    document = json.loads(path.read_text())
    for feature in document["features"]:
        given = feature["properties"].items()
        feature["properties"] = {key: str(value) for key, value in given if value is not None}
    first = document["features"][0]
    first["properties"]["highway"] = "residential"
    (lon, lat), _ = first["geometry"]["coordinates"]
    line = {"type": "LineString", "coordinates": [[lon, lat], [lon, lat + 0.001]]}
    drawn = {"type": "Feature", "properties": {"highway": "track"}, "geometry": line}
    document["features"].append(drawn)
    path.write_text(json.dumps(document))
    back, made = read_network(path), some()
    assert len(back.lines) == len(made.lines) + 1
    assert np.allclose(back.speed_mph, [*made.speed_mph, np.nan], equal_nan=True)
    assert back.confidence[:4] == pytest.approx(np.full((4, 2), 0.75))
    assert back.attributes["highway"].tolist() == ["residential", None, None, None, "track"]
    assert degree_counts(back) == {1: 1, 2: 1, 3: 1, 4: 1}


def test_a_gap_closed_by_moving_an_end_onto_another_is_closed(tmp_path):
    apart = network([(0, 0), (100, 0)], [(110, 0), (200, 0)], speeds=[30, 30], crs="EPSG:32637")
    lines = np.array([shapely.LineString([(0, 0), (110, 0)]), apart.lines[1]], object)
    back = read_network(
        saved_by_qgis(tmp_path / "a.gpkg", replace(apart, lines=lines), crs="EPSG:32637")
    )
    assert len(back.nodes) == 2


def test_a_line_of_several_parts_is_several_edges(tmp_path):
    parts = shapely.MultiLineString([[(0, 0), (50, 0)], [(60, 0), (60, 70)]])
    table = gpd.GeoDataFrame({"speed_mph": [25.0]}, geometry=[parts], crs="EPSG:32637")
    table.to_file(tmp_path / "a.gpkg", engine="pyogrio")
    back = read_network(tmp_path / "a.gpkg")
    assert (len(back.nodes), back.speed_mph.tolist()) == (4, [25, 25])


def test_roads_that_cross_stay_separate(tmp_path):
    bridge = network([(0, 0), (100, 0)], [(50, -50), (50, 50)], speeds=[30, 20], crs="EPSG:32637")
    path = saved_by_qgis(tmp_path / "a.gpkg", bridge, from_node=[None, None])
    assert len(read_network(path).nodes) == 4


def test_several_layers_of_roads_need_a_choice(tmp_path):
    path = tmp_path / "a.gpkg"
    for layer in ("north", "south"):
        saved_by_qgis(path, some(), layer=layer)
    with pytest.raises(UsageError, match=r"north, south\. Choose one with `layer`"):
        read_network(path)
    assert len(read_network(path, layer="south").ends) == 4


def test_labels_are_not_taken_for_a_network(tmp_path):
    table = gpd.GeoDataFrame(
        {"highway": ["residential"], "speed_mph": ["25"]},
        geometry=[shapely.LineString([(39, -9), (39.001, -9)])],
        crs="EPSG:4326",
    )
    for name in ("labels.geojson", "labels.gpkg"):
        table.to_file(tmp_path / name, engine="pyogrio")
        assert None is read_if_network(tmp_path / name)
        write_network(some(), tmp_path / f"roads{Path(name).suffix}")
        assert read_if_network(tmp_path / f"roads{Path(name).suffix}")


def test_coordinates_that_are_not_finite_are_not_written(tmp_path):
    made, path = some(), tmp_path / "roads.gpkg"
    made.nodes[1, 0] = np.nan
    with pytest.raises(UsageError, match=r"roads.* node 1 has coordinates that are not finite"):
        write_network(made, path)
    line = shapely.LineString([(0, 0), (np.inf, 9)])
    with pytest.raises(UsageError, match="edge 0 has coordinates that are not finite"):
        write_network(replace(some(), lines=np.array([line, *some().lines[1:]])), path)
    assert not list(tmp_path.iterdir())


def test_averaged_speeds_are_rounded(tmp_path):
    made = network([(0, 0), (100, 0)], speeds=[54.99999999999999], crs="EPSG:32637")
    path = tmp_path / "roads.gpkg"
    write_network(made, path)
    assert read_network(path).speed_mph.tolist() == [55.0]
