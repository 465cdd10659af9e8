"""Every edge is walked once, in order, whatever the shape of the network."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from geoprep.roads.tracing.chains import chains

edges = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=25)


@given(edges)
@settings(max_examples=300, deadline=None)
def test_chains_are_walks_between_nodes_that_are_no_passage(pairs):
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
        # It ends where it must: at a junction or dead end, or as a ring where it began.
        assert first == last or (degree[first] != 2 and degree[last] != 2)


def test_two_edges_between_two_nodes_are_a_ring():
    walk = chains(np.array([[0, 1], [0, 1]]), 2)
    assert len(walk.ends) == 1
    assert walk.ends[0, 0] == walk.ends[0, 1]
