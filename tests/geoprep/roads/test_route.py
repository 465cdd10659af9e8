"""Routes: where they go, how long they take, and why there is none."""

import json
from dataclasses import replace

import numpy as np
import pytest
import shapely
from helpers.roads import network
from hypothesis import given, settings
from hypothesis import strategies as st

from geoprep.crs import LONLAT, reproject, transformer
from geoprep.errors import UsageError
from geoprep.roads.network import in_crs
from geoprep.roads.paths.distances import cost_graph
from geoprep.roads.paths.points import EdgePoints, nearest_points
from geoprep.roads.route import find_route, write_route

# A fast road round a slow one.
TOWN = network(
    [(0, 0), (100, 0)],
    [(0, 0), (0, 60), (100, 60), (100, 0)],
    [(100, 0), (150, 0)],
    speeds=[10, 60, 30],
)
MPS = 0.44704


@pytest.mark.parametrize(
    ("by", "detour", "metres", "mph"),
    [("time", [(0, 60), (100, 60)], 220, 60), ("length", [], 100, 10)],
)
def test_the_fastest_route_goes_round_and_the_shortest_straight(by, detour, metres, mph):
    found = find_route(TOWN, (0, 0), (150, 0), by=by)
    assert list(found.line.coords) == [(0, 0), *detour, (100, 0), (150, 0)]
    assert found.length_m == pytest.approx(metres + 50)
    assert found.travel_time_s == pytest.approx(metres / (mph * MPS) + 50 / (30 * MPS))


def test_start_and_goal_are_moved_to_the_nearest_road():
    found = find_route(TOWN, (20, -5), (60, 4), by="length")
    assert list(found.line.coords) == [(20, 0), (60, 0)]
    assert found.off_road_m == (5, 4)
    back = find_route(TOWN, (60, 4), (20, -5), by="length")
    assert list(back.line.coords) == [(60, 0), (20, 0)]


def test_a_route_between_two_points_of_an_edge_may_leave_it_or_be_none():
    assert find_route(TOWN, (5, 0), (95, 0)).length_m == pytest.approx(230)
    found = find_route(TOWN, (20, 0), (20, 0))
    assert (found.length_m, found.travel_time_s) == (0, 0)


def test_errors_say_why_there_is_no_route():
    with pytest.raises(UsageError, match=r"500,0: no road within 100 m, the nearest is 350 m"):
        find_route(TOWN, (0, 0), (500, 0))
    parts = network([(0, 0), (10, 0)], [(0, 30), (10, 30)], speeds=[30, 30])
    with pytest.raises(UsageError, match="no road leads from 0,0 to 10,30"):
        find_route(parts, (0, 0), (10, 30))
    unknown = network([(0, 0), (10, 0)], speeds=[np.nan])
    with pytest.raises(UsageError, match=r"1 of 1 edges have no speed.*`shortest`"):
        find_route(unknown, (0, 0), (10, 0))
    assert np.isnan(find_route(unknown, (0, 0), (10, 0), by="length").travel_time_s)
    with pytest.raises(UsageError, match="no roads"):
        find_route(network(), (0, 0), (10, 0))


def test_a_georeferenced_route_is_written_in_degrees(tmp_path):
    crs = "EPSG:32611"
    start, goal = (-115.17, 36.24), (-115.16, 36.25)
    ends = [transformer(LONLAT, crs).transform(*place) for place in (start, goal)]
    found = find_route(network(ends, speeds=[30], crs=crs), start, goal)
    out = tmp_path / "route.geojson"
    write_route(found, out)
    feature = json.loads(out.read_text())["features"][0]
    assert np.allclose(feature["geometry"]["coordinates"], [start, goal], atol=1e-7)
    assert feature["properties"]["length_m"] == pytest.approx(found.length_m, abs=1e-3)
    assert feature["properties"]["travel_time_s"] == pytest.approx(
        found.length_m / (30 * MPS), abs=1e-3
    )


def test_an_unknown_time_is_null(tmp_path):
    found = find_route(network([(0, 0), (10, 0)]), (0, 0), (10, 0), by="length")
    write_route(found, tmp_path / "route.geojson")
    document = json.loads((tmp_path / "route.geojson").read_text())
    assert document["features"][0]["properties"] == {"length_m": 10.0, "travel_time_s": None}
    assert document["crs"] is None


def shortest_distance(graph, places):
    """Return the distance by the ends of the last edge, or along an edge that both share."""
    near, costs = graph.to_nodes(places)[:, 0], graph.cost_to_ends(places)
    path = (near[graph.ends[places.edge[1]]] + costs[1]).min()
    is_shared = places.edge[0] == places.edge[1] and places.on_edge.all()
    return min(path, abs(costs[0, 0] - costs[1, 0])) if is_shared else path


@settings(max_examples=20)
@given(seed=st.integers(0, 1 << 30))
def test_a_route_is_as_long_as_the_shortest_distance(seed):
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 100, (6, 2)).round(1)
    pairs = rng.integers(0, 6, (8, 2))
    lines = [
        [tuple(corners[a]), tuple(rng.uniform(0, 100, 2).round(1)), tuple(corners[b])]
        for a, b in pairs
    ]
    made = network(*lines, speeds=rng.choice([10, 30, 60], 8))
    edge = rng.integers(0, 8, 2)
    places = EdgePoints(edge, made.length_m[edge] * rng.random(2))
    points = places.points(made)
    start, goal = (tuple(point.coords[0]) for point in points)
    places = nearest_points(made, points, 100)  # where lines cross or fold, it may be another
    for by in ("length", "time"):
        expected = shortest_distance(cost_graph(made, by), places)
        if np.isinf(expected):
            with pytest.raises(UsageError, match="no road leads"):
                find_route(made, start, goal, by=by)
            continue
        found = find_route(made, start, goal, by=by)
        cost = found.length_m if by == "length" else found.travel_time_s
        assert cost == pytest.approx(expected, abs=1e-6)
        assert found.line.length == pytest.approx(found.length_m, abs=1e-6)


def test_a_route_outside_its_utm_zone_has_its_own_length_and_line():
    """Moscow in zone 43, where the plane is stretched by 6 %."""
    origin = np.array([412_000.0, 6_176_000.0])
    lines = shapely.transform(TOWN.lines, lambda xy: xy + origin)
    town = replace(TOWN, nodes=TOWN.nodes + origin, lines=lines, crs="EPSG:32637")
    far = in_crs(town, "EPSG:32643")
    assert shapely.length(far.lines).sum() > 1.05 * far.length_m.sum()
    start, goal = (
        transformer("EPSG:32637", LONLAT).transform(*point)
        for point in ((412_005, 6_176_000), (412_140, 6_176_000))
    )
    one, other = find_route(town, start, goal), find_route(far, start, goal)
    assert other.length_m == pytest.approx(one.length_m, rel=1e-3)
    assert other.travel_time_s == pytest.approx(one.travel_time_s, rel=1e-3)
    here = reproject(np.array([other.line], object), far.crs, town.crs)[0]
    assert shapely.hausdorff_distance(one.line, here) < 0.2
