"""The normal form of networks: the same however the lines were drawn, and in whatever file."""

import json
from itertools import pairwise

import geopandas as gpd
import networkx
import numpy as np
import pytest
import shapely
from helpers.roads import lengths
from hypothesis import given
from hypothesis import strategies as st

from geoprep import vectorize
from geoprep.errors import GeoprepError, GeoprepWarning, UsageError
from geoprep.roads.formats.files import read_if_network, read_network, write_network
from geoprep.roads.formats.lines import joined, network_from_lines, normal_form
from geoprep.roads.formats.table import network_of_frame
from geoprep.roads.network import RoadGraph

ORIGIN = np.array([5e5, 6e6])
CRS = "EPSG:32637"


def form(lines, speeds=None, crs=CRS, **attributes) -> RoadGraph:
    shapes = np.array(
        [shapely.LineString(np.array(line, float) + ORIGIN) for line in lines], object
    )
    table = {name: np.array(values, object) for name, values in attributes.items()}
    speed = np.full(len(lines), 30.0) if speeds is None else np.array(speeds, float)
    return network_from_lines(shapes, speed, crs, attributes=table)


def content(network: RoadGraph, digits=2):
    """Return lines without needless vertices, whatever their direction, with speeds."""
    plain = shapely.simplify(network.lines, 0.01)
    paths = [np.round(shapely.get_coordinates(line) - ORIGIN, digits) + 0.0 for line in plain]
    ends = [min(path.tolist(), path[::-1].tolist()) for path in paths]
    return sorted(zip(ends, network.speed_mph.round(6).tolist(), strict=True))


def city(rng) -> tuple[list[np.ndarray], np.ndarray]:
    """Return walks along a lattice, which overlap, cross and turn back, and a ring; with speeds."""
    steps = np.array([(40.0, 0.0), (-40.0, 0.0), (0.0, 40.0), (0.0, -40.0)])
    lines = [steps[rng.integers(0, 4, 6)].cumsum(axis=0) for _ in range(8)]
    lines += [np.array([(900, 0), (960, 0), (960, 60), (900, 60), (900, 0)], float)]
    return lines, np.append(np.full(8, 30.0), 20.0)


@given(st.integers(0, 10_000))
def test_order_direction_and_segments_of_lines_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    lines, speeds = city(rng)
    plain = form(lines, speeds)
    assert content(normal_form(plain)) == content(plain)
    order = rng.permutation(len(lines))
    drawn = [lines[k][:: rng.choice([-1, 1])] for k in order.tolist()]
    turned = [line if np.array_equal(line[0], line[-1]) else line[::-1] for line in drawn]
    twice = form([*drawn, *turned], np.tile(speeds[order], 2))
    pieces = [pair for line in drawn for pair in np.stack([line[:-1], line[1:]], axis=1)]
    cut = form(pieces, np.repeat(speeds[order], [len(line) - 1 for line in drawn]))
    for other in (twice, cut):
        assert content(other) == content(plain)
        assert content(joined(other)) == content(joined(plain))


def test_tags_and_both_speeds_are_read_and_written(tmp_path):
    there = [(0, 0), (100, 0)], [(100, 0), (0, 0)], [(100, 0), (200, 0)]
    network = form(
        there, [30, 40, 30], highway=["primary", "primary", None], layer=["1", "1", None]
    )
    for suffix in (".gpkg", ".geojson", ".parquet"):
        write_network(network, tmp_path / f"roads{suffix}")
        network = read_if_network(tmp_path / f"roads{suffix}")
        (road,) = np.flatnonzero(network.speed_mph == 40)
        assert network.attributes["speed_mph_back"][road] == 30
        assert network.attributes["highway"].tolist().count("primary") == 1
        assert (
            network.lines[road].coords[0][0] > network.lines[road].coords[-1][0]
        )  # the faster way
        assert len(network.lines) == 2


LOOP = [(0, 0), (0, 100), (100, 100), (100, 0), (0, 0)]
ROAD = [(-100, 0), (0, 0), (100, 0)]
BELOW = [(0, -50), (0, 0)], [(0, 0), (0, 50)]


@pytest.mark.parametrize(
    ("lines", "attributes", "long"),
    [
        ([[*LOOP, (-100, 0)], [(0, 0), (0, -50)]], {}, [50, 100, 400]),
        ([[(-100, 0), *LOOP, (0, -71)]], {}, [71, 100, 400]),
        ([[(0, 0), (100, 0)], [(50, 0), (150, 0)]], {}, [150]),
        ([[(0, 0), (100, 0)], [(50, 0), (150, 0)], [(50, 0), (50, 9)]], {}, [9, 50, 100]),
        ([ROAD, [(0, -50), (0, 0), (0, 50)]], {}, [50, 50, 100, 100]),
        ([ROAD, [(0, -50), (0, 0), (0, 50)]], {"layer": ["1", "0"]}, [100, 200]),
        ([ROAD, *BELOW], {"bridge": ["yes", None, "no"]}, [50, 50, 200]),
        ([ROAD, [(0, -50), (0, 0)]], {"bridge": ["no", "yes"]}, [50, 100, 100]),
        ([[(-100, 0), (100, 0)], [(0, -50), (0, -0.0009)]], {}, [50, 100, 100]),
        ([[(-100, 0), (100, 0)], [(0, -50), (0, -0.002)]], {}, [50, 200]),
        ([[(-0.0, 0), (50, 0)], [(0.0, 0), (0, 50)]], {}, [100]),
    ],
    ids=[
        "lollipop", "loop in the middle", "overlap", "overlap with a side street", "crossing",
        "bridge", "road in two below a bridge", "bridge that ends at a road", "within 1 mm",
        "farther", "minus zero",
    ],
)  # fmt: skip
def test_lines_are_split_at_every_node_that_they_meet(lines, attributes, long):
    assert lengths(form(lines, **attributes)) == pytest.approx(long, abs=0.01)


@pytest.mark.parametrize("speed", [0.0, -5.0, np.inf])
def test_speeds_that_cannot_be_are_refused(speed):
    frame = gpd.GeoDataFrame({"speed_mph": [speed]}, geometry=form([ROAD]).lines, crs=CRS)
    with pytest.raises(GeoprepError, match="roads: edge 0 has a speed that is not above 0"):
        network_of_frame("roads", frame)


def test_degrees_without_a_crs_are_refused_and_km_h_are_read():
    lines = shapely.transform(form([ROAD]).lines, lambda xy: (xy - ORIGIN) * 1e-5 + (37, 55))
    frame = gpd.GeoDataFrame({"speed_kph": [50.0]}, geometry=lines)
    with pytest.raises(GeoprepError, match="roads: has no CRS, and its coordinates look like"):
        network_of_frame("roads", frame)
    read = network_of_frame("roads", frame.set_crs(4326))
    assert read.speed_mph == pytest.approx([50 / 1.609344])


def test_osmnx_writes_graphml_that_is_read(tmp_path):
    """A directed graph, with text for numbers, and without the geometry of straight edges."""
    graph = networkx.MultiDiGraph(crs="epsg:4326")
    for node, lon in ((11, 37.6), (12, 37.601), (13, 37.602)):
        graph.add_node(node, x=lon, y=55.75)
    tags = {"highway": "['primary', 'residential']", "lanes": "2", "surface": "paved"}
    for u, v in ((11, 12), (12, 11), (12, 13)):
        graph.add_edge(u, v, osmid=str(u), **tags)
    networkx.write_graphml(graph, tmp_path / "a.graphml")
    assert read_if_network(tmp_path / "a.graphml") is None  # its speeds follow from its tags
    network = read_network(tmp_path / "a.graphml")
    assert (lengths(network), network.speed_mph) == ([pytest.approx(125.5, abs=0.3)], [45])
    del graph.nodes[13]["x"]
    networkx.write_graphml(graph, tmp_path / "b.graphml")
    with pytest.raises(GeoprepError, match=r"b.graphml: .* a node of it without 'x'"):
        read_network(tmp_path / "b.graphml")


@pytest.mark.parametrize("tag", [{"speed_mph": 25}, {"highway": "residential"}])
def test_roads_across_180_degrees_are_cut_and_connected(tmp_path, tag):
    x = gpd.GeoSeries.from_xy([180], [-16.8], crs=4326).to_crs("EPSG:32701").x[0]
    places = [(x - 60, 8.142e6), (x + 140, 8.1421e6), (x - 40, 8.1422e6)]
    line = np.array([shapely.LineString(places)], object)
    network = network_from_lines(line, np.array([25.0]), "EPSG:32701")
    write_network(network, tmp_path / "a.geojson")
    document = json.loads((tmp_path / "a.geojson").read_text())
    (feature,) = document["features"]
    parts = feature["geometry"]["coordinates"]
    assert [abs(part[0][0]) == 180 for part in parts] == [False, True, True]
    assert all(abs(a[0] - b[0]) < 1 for part in parts for a, b in pairwise(part))
    feature["properties"] = tag
    (tmp_path / "a.geojson").write_text(json.dumps(document))
    again = read_network(tmp_path / "a.geojson")
    assert lengths(again) == pytest.approx(lengths(network), abs=0.01)


def test_segments_of_overture_are_read_with_the_speeds_of_their_classes(tmp_path):
    lines = form([ROAD, [(0, 0), (0, 80)]]).lines
    columns = {"subtype": ["road", "road"], "class": ["primary", "footway"]}
    frame = gpd.GeoDataFrame(columns, geometry=lines[:2], crs=CRS)
    frame.to_crs(4326).to_file(tmp_path / "a.geojson")
    with pytest.warns(GeoprepWarning, match="1 road: not driveable"):
        network = read_network(tmp_path / "a.geojson")
    assert network.speed_mph.tolist() == [45]


def test_a_plane_is_not_written_as_geojson(tmp_path):
    out = tmp_path / "a.geojson"
    with pytest.raises(UsageError, match=r"a\.geojson: the network is not georeferenced"):
        write_network(form([ROAD], crs=None), out)
    with pytest.raises(UsageError, match=r"a\.geojson: .*no CRS.*\.gpkg"):
        vectorize(np.zeros((9, 9), np.uint8), pixel_size=1.0, out=out)
    assert not out.exists()
