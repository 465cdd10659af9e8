"""APLS: published values, a slow independent implementation, and small networks."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import shapely
from helpers.roads import network
from hypothesis import given, settings
from hypothesis import strategies as st

import geoprep.roads.scoring.apls as module
from geoprep.roads.edge_points import cost_graph, spaced_points
from geoprep.roads.formats.lines import network_from_lines
from geoprep.roads.network import RoadGraph
from geoprep.roads.scoring.apls import apls
from geoprep.roads.scoring.topo import topo
from geoprep.speed import MPS_PER_MPH

EMPTY = network()


def published_graph(graph):
    """Return a graph of graphs_img0.json as a network."""
    row = {node["id"]: i for i, node in enumerate(graph["nodes"])}
    nodes = np.array([[node["x"], node["y"]] for node in graph["nodes"]])
    ends = np.array([[row[edge["u"]], row[edge["v"]]] for edge in graph["edges"]])
    lines = np.empty(len(ends), object)
    for i, (edge, (u, v)) in enumerate(zip(graph["edges"], ends, strict=True)):
        xy = np.array(edge["utm_xy"])
        turned = math.dist(xy[0], nodes[u]) > math.dist(xy[0], nodes[v])
        lines[i] = shapely.LineString(xy[::-1] if turned else xy)
    made = RoadGraph(nodes, ends, lines, np.full(len(ends), 25.0), "EPSG:32611")
    return made, np.array([edge["length_m"] for edge in graph["edges"]])


@pytest.fixture(scope="module")
def img0(shared_data):
    """Ground truth and proposal, each with the lengths of its edges on a sphere."""
    graphs = json.loads((shared_data / "apls" / "graphs_img0.json").read_text())
    return published_graph(graphs["gt"]), published_graph(graphs["prop"])


def test_published_graphs_without_midpoints(img0, monkeypatch):
    """Published edges are as long as on a sphere, unless a point lies inside them."""
    (truth, lengths), (proposal, others) = img0

    def published(graph, points):
        given = lengths if len(graph.ends) == len(lengths) else others
        edge, along = points.edge[points.on_edge], points.along_m[points.on_edge]
        edge = edge[(along > 0) & (along < graph.length_m[edge])]
        inside = np.isin(np.arange(len(given)), edge)
        return replace(graph, cost=np.where(inside, graph.cost, given))

    def sum_of_terms(points, back):
        own, other = published(points.own, points.here), published(points.other, points.there)
        return ours(replace(points, own=own, other=other), back)[0]

    def sums_of_terms(there, back, *_):
        return [sum_of_terms(there, back), sum_of_terms(back, there)]

    ours = module.sums_of_terms
    monkeypatch.setattr(module, "sums_of_terms", sums_of_terms)
    found = apls(truth, proposal, control_point_spacing_m=None)
    assert found.score == pytest.approx(0.7362019410731921, abs=1e-6)
    assert found.truth_to_proposal == pytest.approx(0.7973714316363272, abs=1e-6)
    assert found.proposal_to_truth == pytest.approx(0.6837488820254419, abs=1e-6)


def test_published_graphs_with_midpoints(img0):
    (truth, _), (proposal, _) = img0
    assert apls(truth, proposal).score == pytest.approx(0.75611, abs=1e-3)
    assert apls(truth, truth, weight="time").score == pytest.approx(1, abs=1e-9)


# --- slow implementation: plain networkx, edges split at every point ---------------------------


def slow_apls(truth, proposal, **options):
    there = slow_direction(truth, proposal, **options)
    back = slow_direction(proposal, truth, **options)
    return 2 * there * back / (there + back) if there > 0 and back > 0 else 0.0


def slow_direction(
    own, other, *, weight="length", control_point_spacing_m=50.0, snap_m=4.0, min_path=0.001
):
    marks, points = {}, {}
    for edge, (u, v) in enumerate(own.ends.tolist()):
        line = own.lines[edge]
        points["node", u] = shapely.Point(line.coords[0])
        points["node", v] = shapely.Point(line.coords[-1])
        for i, along in enumerate(slow_midpoints(line.length, control_point_spacing_m)):
            marks["mid", edge, i] = (edge, along)
            points["mid", edge, i] = line.interpolate(along)
    snapped = {}
    for name, point in points.items():
        away, edge = min((point.distance(line), i) for i, line in enumerate(other.lines))
        if away <= snap_m:
            snapped["on", name] = (edge, other.lines[edge].project(point))
    paths = dict(nx.all_pairs_dijkstra_path_length(split(own, marks, weight)))
    others = dict(nx.all_pairs_dijkstra_path_length(split(other, snapped, weight)))
    terms = []
    for i in points:
        for j, path in paths[i].items():
            if i == j or j not in points:
                continue
            if ("on", i) not in snapped:
                terms.append(1.0)
            elif path >= min_path:
                there = others[("on", i)].get(("on", j), math.inf)
                terms.append(min(1.0, abs(path - there) / path))
    return 1 - math.fsum(terms) / len(terms) if terms else 0.0


def slow_midpoints(length, apart):
    if apart is None or length < 0.75 * apart:
        return []
    count = 1 if length <= apart else math.ceil(length / apart) - 1
    return [length * (i + 1) / (count + 1) for i in range(count)]


def split(network, marks, weight):
    """Return a graph whose edges are cut at the marks, each piece as fast as its edge."""
    graph = nx.Graph()

    def add(one, two, cost):
        old = graph.get_edge_data(one, two, {"weight": math.inf})["weight"]
        graph.add_edge(one, two, weight=min(old, cost))

    for edge, (u, v) in enumerate(network.ends.tolist()):
        line, speed = network.lines[edge], 1.0
        if weight == "time":
            speed = network.speed_mph[edge] * MPS_PER_MPH
        inside = [(along, name) for name, (on, along) in marks.items() if on == edge]
        stops = [(0.0, ("node", u)), *sorted(inside), (line.length, ("node", v))]
        for (begin, one), (end, two) in pairwise(stops):
            add(one, two, (end - begin) / speed)
    return graph


def random_network(rng, edges, jitter=0.0):
    """Return a network with dead ends, parts, parallel edges and loops, on a grid of 37 m."""
    grid = np.stack(np.meshgrid(np.arange(4.0), np.arange(4.0)), -1).reshape(-1, 2) * 37
    nodes = grid + rng.normal(0, 3, grid.shape)
    lines, speeds = [], []
    for _ in range(edges):
        u = rng.integers(16)
        step = [(0, 1), (1, 0), (0, 0), (1, 1)][rng.integers(4)]
        v = min(u % 4 + step[0], 3) + 4 * min(u // 4 + step[1], 3)
        bend = (nodes[u] + nodes[v]) / 2 + rng.normal(0, 6, 2) + (15 if u == v else 0)
        middle = [bend] if u != v else [bend, nodes[u] + rng.normal((25, 2), 3)]
        lines.append([tuple(nodes[u]), *map(tuple, middle), tuple(nodes[v])])
        speeds.append(rng.choice([15, 25, 35, 55]))
    if jitter:
        move = {end: np.add(end, rng.normal(0, jitter, 2)) for line in lines for end in line}
        lines = [[tuple(move[point]) for point in line] for line in lines]
    return network(*lines, speeds=speeds)


def random_pair(seed):
    rng = np.random.default_rng(seed)
    edges = int(rng.integers(1, 14))
    state = int(rng.integers(1 << 30))
    truth = random_network(np.random.default_rng(state), edges)
    proposal = random_network(np.random.default_rng(state), edges, jitter=1.5)
    kept = rng.random(edges) > 0.15  # nodes without edges stay behind
    kept[0] = True
    columns = {name: getattr(proposal, name)[kept] for name in ("ends", "lines", "speed_mph")}
    return truth, replace(proposal, **columns)


@given(
    seed=st.integers(0, 1 << 30),
    options=st.fixed_dictionaries(
        {
            "weight": st.sampled_from(["length", "time"]),
            "control_point_spacing_m": st.sampled_from([None, 20.0, 50.0]),
            "snap_m": st.sampled_from([1.0, 4.0]),
        }
    ),
)
def test_agrees_with_plain_networkx(seed, options):
    truth, proposal = random_pair(seed)
    found = apls(truth, proposal, **options)
    assert found.score == pytest.approx(slow_apls(truth, proposal, **options), abs=1e-9)


def test_several_blocks_and_threads_give_the_same_score(monkeypatch):
    """As of a city: distances of some control points at a time, from some nodes."""
    pairs = [random_pair(seed) for seed in range(12)]
    whole = [apls(*pair) for pair in pairs]
    monkeypatch.setattr(module, "_BLOCK", 7)
    for pair, one in zip(pairs, whole, strict=True):
        shares = []
        blocks = apls(*pair, advance=lambda *counts, s=shares: s.append(counts))
        assert [done for done, _ in shares] == list(range(1, shares[0][1] + 1))
        assert blocks.truth_to_proposal == pytest.approx(one.truth_to_proposal, abs=1e-12)
        assert blocks.proposal_to_truth == pytest.approx(one.proposal_to_truth, abs=1e-12)
    assert len({one.score for one in whole}) > 5


@given(seed=st.integers(0, 1 << 30))
def test_distances_are_those_of_networkx(seed):
    made, _ = random_pair(seed)
    graph = cost_graph(made, "time")
    plain = nx.Graph()
    plain.add_nodes_from(range(graph.node_count))
    for (one, two), cost in zip(graph.ends.tolist(), graph.cost.tolist(), strict=True):
        known = plain.get_edge_data(one, two, {"weight": math.inf})["weight"]
        plain.add_edge(one, two, weight=min(known, cost))
    found, rows = graph.from_ends(spaced_points(made, 50.0))
    for edge, (first, last) in zip(spaced_points(made, 50.0).edge, rows, strict=True):
        for row, node in zip((first, last), graph.ends[edge].tolist(), strict=True):
            paths = nx.single_source_dijkstra_path_length(plain, node)
            expected = [paths.get(other, math.inf) for other in range(graph.node_count)]
            np.testing.assert_allclose(found[row], expected)


# --- simple networks ---------------------------------------------------------------------------


def test_points_beyond_the_snapping_distance_are_missing():
    truth, shifted = network([(0, 0), (30, 0)]), network([(0, 4.5), (30, 4.5)])
    assert apls(truth, shifted).score == 0
    assert apls(truth, shifted, snap_m=5).score == 1


def test_edges_shorter_than_three_quarters_of_the_spacing_have_no_control_points_inside():
    long, short = network([(0, 0), (37.5, 0)]), network([(0, 0), (37.4, 0)])
    assert len(module.control_points(long)) == 3
    assert len(module.control_points(short)) == 2
    assert len(module.control_points(network([(0, 0), (120, 0)]))) == 4
    assert len(module.control_points(network([(0, 0), (120, 0)]), None)) == 2


def test_two_points_on_one_spot_are_both_kept():
    """The reference program lets the second take the place of the first."""
    fork = network([(0, 0), (30, 0)], [(30, 0), (60, 1)], [(30, 0), (60, -1)])
    road = network([(0, 0), (30, 0)], [(30, 0), (60, 0)])
    found = apls(fork, road)
    # Two ends of 2 m * by road: 60.03 m; their copies coincide: one term of 1 of 6.
    assert found.truth_to_proposal == pytest.approx(5 / 6, abs=1e-3)


def test_a_network_without_roads_scores_zero():
    road = network([(0, 0), (30, 0)])
    for one, two in ((EMPTY, road), (road, EMPTY), (EMPTY, EMPTY)):
        assert apls(one, two).score == 0


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15)
def test_a_network_scores_1_against_itself_also_where_roads_pass_over_each_other(seed):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, 8, (14, 2, 2)) * 50.0
    lines = np.array([shapely.LineString(pair) for pair in ends if (pair[0] != pair[1]).any()])
    made = network_from_lines(lines, rng.choice([20.0, 40.0], len(lines)), None)
    for weight in ("length", "time"):
        assert apls(made, made, weight=weight).score == pytest.approx(1, abs=1e-12)
    assert topo(made, made).f1 == 1
