"""networkx graphs of ours and of OSMnx."""

import networkx as nx
import numpy as np
import pytest
import shapely
from helpers.roads import network

from geoprep.errors import SourceError
from geoprep.roads.formats import from_networkx, to_networkx

LINES = [[(0, 0), (50, 40), (100, 0)], [(100, 0), (0, 0)], [(100, 0), (200, 0)]]


def test_routes_by_length_and_by_time_differ():
    graph = to_networkx(network(*LINES, speeds=[65, 10, 25]))
    assert nx.shortest_path_length(graph, 0, 2, weight="length_m") == pytest.approx(200)
    by_time = nx.shortest_path_length(graph, 0, 2, weight="travel_time_s")
    assert by_time == pytest.approx((2 * np.hypot(50, 40) / 65 + 100 / 25) / 0.44704)


def test_a_network_converted_to_networkx_and_back_is_the_same():
    made = network(*LINES, speeds=[65, np.nan, 25], crs="EPSG:32611")
    back = from_networkx(to_networkx(made))
    assert back.crs == made.crs
    assert np.array_equal(back.nodes, made.nodes)
    pairs = zip(back.lines, back.ends, strict=True)
    assert all((line.coords[0] == back.nodes[a]).all() for line, (a, _) in pairs)
    key = np.lexsort((back.length_m,))
    same = np.lexsort((made.length_m,))
    assert shapely.equals(back.lines[key], made.lines[same]).all()
    assert np.array_equal(back.speed_mph[key], made.speed_mph[same], equal_nan=True)


def test_a_graph_in_degrees_is_projected():
    graph = nx.MultiGraph(crs="epsg:4326")
    graph.add_node(17, x=-115.17, y=36.24)
    graph.add_node(4, x=-115.16, y=36.24)
    graph.add_edge(17, 4, speed_kph=64.37376)
    made = from_networkx(graph)
    assert made.crs == "EPSG:32611"
    assert made.length_m == pytest.approx([899], rel=2e-3)
    assert made.speed_mph == pytest.approx([40])


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.MultiDiGraph(crs=None), "directed"),
        (nx.Graph([(0, 1)]), "no x and y"),
    ],
)
def test_graphs_that_are_not_networks_are_refused_with_their_name(graph, message):
    with pytest.raises(SourceError, match=f"osm: .*{message}"):
        from_networkx(graph, name="osm")


def test_a_node_that_is_not_finite_is_refused():
    graph = nx.Graph()
    graph.add_node(0, x=float("nan"), y=0.0)
    with pytest.raises(SourceError, match="not finite"):
        from_networkx(graph)
