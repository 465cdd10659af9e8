"""What is written is read back; what is no network is named."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import shapely
from helpers.roads import network

from geoprep.errors import SourceError, UsageError
from geoprep.roads.formats import read_network, write_network
from geoprep.roads.network import RoadNetwork

try:
    import pyarrow
except ImportError:
    pyarrow = None

LINES = [
    [(500_000, 9_000_000), (500_100, 9_000_010)],
    [(500_100, 9_000_010), (500_150, 9_000_060), (500_200, 9_000_010)],
    [(500_100, 9_000_010), (500_200, 9_000_010)],
    [(500_200, 9_000_010), (500_230, 9_000_040), (500_230, 8_999_980), (500_200, 9_000_010)],
]
SUFFIXES = [".gpkg", ".geojson", ".graphml"]
needs_arrow = pytest.mark.skipif(pyarrow is None, reason="GeoParquet needs pyarrow")
WITH_PARQUET = [*SUFFIXES, pytest.param(".parquet", marks=needs_arrow)]


def some(crs="EPSG:32737") -> RoadNetwork:
    """Return a line, two parallel edges and a loop; one speed unknown."""
    lines = LINES
    if crs is None:
        lines = [[(x - 500_000, y - 9_000_100) for x, y in line] for line in LINES]
    return network(*lines, speeds=[25, 18.75, np.nan, 65], crs=crs)


@pytest.mark.parametrize("crs", ["EPSG:32737", None])
@pytest.mark.parametrize("suffix", WITH_PARQUET)
def test_a_network_comes_back(tmp_path, suffix, crs):
    made, path = some(crs), tmp_path / f"roads{suffix}"
    write_network(made, path)
    back = read_network(path)
    assert back.crs == made.crs
    assert np.allclose(back.nodes, made.nodes, rtol=0, atol=2e-3)
    assert np.array_equal(back.ends, made.ends)
    assert shapely.equals_exact(back.lines, made.lines, tolerance=2e-3).all()
    assert np.allclose(back.speed_mph, made.speed_mph, equal_nan=True)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", WITH_PARQUET)
def test_a_network_without_roads_comes_back(tmp_path, suffix):
    none = RoadNetwork(
        np.empty((0, 2)), np.empty((0, 2), np.int64), np.empty(0, object), np.empty(0), None
    )
    write_network(none, tmp_path / f"no{suffix}")
    back = read_network(tmp_path / f"no{suffix}")
    assert (back.nodes.shape, back.ends.shape, len(back.lines)) == ((0, 2), (0, 2), 0)


def test_a_geopackage_has_layers_columns_and_a_style(tmp_path):
    path = tmp_path / "roads.gpkg"
    write_network(some(), path)
    layers = dict(pyogrio.list_layers(path).tolist())
    assert layers == {"edges": "LineString", "nodes": "Point", "layer_styles": None}
    info = pyogrio.read_info(path, layer="edges")
    assert info["fields"].tolist() == [
        "from_node",
        "to_node",
        "length_m",
        "speed_mph",
        "travel_time_s",
    ]
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


def test_geojson_is_in_degrees_and_has_no_nan(tmp_path):
    path = tmp_path / "roads.geojson"
    write_network(some(), path)
    document = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert set(document) == {"type", "features"}
    lon, lat = document["features"][0]["geometry"]["coordinates"][0]
    assert (lon, lat) == pytest.approx((39, -9.047), abs=1e-3)
    assert document["features"][2]["properties"]["speed_mph"] is None


@needs_arrow
def test_geoparquet_says_its_crs(tmp_path):
    import pyarrow.parquet

    write_network(some(), tmp_path / "roads.parquet")
    schema = pyarrow.parquet.read_schema(tmp_path / "roads.parquet")
    geo = json.loads(schema.metadata[b"geo"])
    column = geo["columns"]["geometry"]
    assert geo["version"] == "1.1.0"
    assert column["crs"]["id"] == {"authority": "EPSG", "code": 32737}
    assert column["geometry_types"] == ["LineString"]


def test_without_pyarrow_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install pyarrow, or write NAME\.gpkg"):
        write_network(some(), tmp_path / "roads.parquet")
    assert not list(tmp_path.iterdir())


def test_an_older_file_stays_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "roads.geojson"
    write_network(some(), path)
    before = path.read_bytes()
    monkeypatch.setattr(Path, "write_text", lambda *_args, **_more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_network(some(None), path)
    assert path.read_bytes() == before


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"ends in \.gpkg, \.geojson"):
        write_network(some(), tmp_path / "roads.shp")
    with pytest.raises(SourceError, match="no such file"):
        read_network(tmp_path / "roads.gpkg")


@pytest.mark.parametrize("suffix", WITH_PARQUET)
def test_what_is_no_network_is_named(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_text("no")
    with pytest.raises(SourceError, match=rf"x\{suffix}"):
        read_network(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f["properties"].pop("from_node"), "no from_node"),
        (lambda f: f["properties"].update(to_node=99), "not numbered from 0"),
        (lambda f: f["properties"].update(to_node=4), "names node 4|no numbers"),
        (lambda f: f["properties"].update(to_node=None), "no nodes"),
        (lambda f: f.update(geometry={"type": "Point", "coordinates": [0, 0]}), "a Point among"),
        (lambda f: f.update(geometry=None), "not readable"),
        (lambda f: f["geometry"]["coordinates"][0].__setitem__(0, 400.0), "no longitudes"),
        (lambda f: f["geometry"]["coordinates"][0].__setitem__(0, float("nan")), "no "),
    ],
)
def test_a_damaged_network_is_named(tmp_path, change, message):
    path = tmp_path / "roads.geojson"
    write_network(some(), path)
    document = json.loads(path.read_text())
    change(document["features"][0])
    path.write_text(json.dumps(document))
    with pytest.raises(SourceError, match=f"roads.geojson.*({message})"):
        read_network(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_speeds_are_whole_where_they_were_averaged(tmp_path, suffix):
    made = network([(0, 0), (100, 0)], speeds=[54.99999999999999], crs="EPSG:32637")
    path = tmp_path / f"roads{suffix}"
    write_network(made, path)
    assert read_network(path).speed_mph.tolist() == [55.0]
