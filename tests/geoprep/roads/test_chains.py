"""Test chains: every edge is walked once, in order, for any shape of network."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.roads import network
from hypothesis import given, settings
from hypothesis import strategies as st

from geoprep.roads.chains import chains, ranges, with_chains_joined

edges = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=25)


@given(edges)
@settings(max_examples=80, deadline=None)
def test_chains_are_walks_through_nodes_of_degree_two(pairs):
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    walk = chains(ends, 10)
    degree = np.bincount(ends.reshape(-1), minlength=10)
    assert sorted(walk.edges.tolist()) == list(range(len(ends)))
    for c in range(len(walk.ends)):
        mine = slice(walk.offsets[c], walk.offsets[c + 1])
        steps = [
            tuple(ends[e][::-1] if back else ends[e])
            for e, back in zip(walk.edges[mine], walk.backwards[mine], strict=True)
        ]
        assert all(a[1] == b[0] for a, b in pairwise(steps))
        assert all(degree[a[1]] == 2 for a in steps[:-1])
        first, last = walk.ends[c]
        assert (steps[0][0], steps[-1][1]) == (first, last)
        # A chain ends at a junction or dead end, or is a ring.
        assert first == last or (degree[first] != 2 and degree[last] != 2)


def test_two_edges_between_two_nodes_are_a_ring():
    walk = chains(np.array([[0, 1], [0, 1]]), 2)
    assert len(walk.ends) == 1
    assert walk.ends[0, 0] == walk.ends[0, 1]


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_joined_chains_keep_length_and_time(seed):
    rng = np.random.default_rng(seed)
    points = rng.permutation(30)[: rng.integers(3, 20)] * 10.0
    corners = np.column_stack([points, points % 7])
    pairs = rng.integers(0, len(points), (20, 2))
    lines = [corners[pair] for pair in pairs if pair[0] != pair[1]]
    made = network(*lines, speeds=rng.choice([20, 25, 65], len(lines)))
    joined = with_chains_joined(made)
    assert joined.length_m.sum() == pytest.approx(made.length_m.sum())
    assert joined.travel_time_s.sum() == pytest.approx(made.travel_time_s.sum())


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=8))
def test_ranges_follow_one_another(pairs):
    first, counts = np.array(pairs, np.int64).reshape(-1, 2).T
    expected = [f + i for f, c in pairs for i in range(c)]
    assert ranges(first, counts).tolist() == expected
