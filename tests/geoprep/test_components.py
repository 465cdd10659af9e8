"""Test connected components against SciPy's."""

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from geoprep.components import connected


def path(count, rng):
    nodes = rng.permutation(count)
    return np.column_stack([nodes[:-1], nodes[1:]])


GRAPHS = {
    "no edges": lambda count, rng: np.empty((0, 2), np.int64),
    "loops": lambda count, rng: np.repeat(rng.integers(0, count, (count, 1)), 2, axis=1),
    "few edges": lambda count, rng: rng.integers(0, count, (count // 2, 2)),
    "many edges": lambda count, rng: rng.integers(0, count, (3 * count, 2)),
    "a path in any order": path,
    "a star": lambda count, rng: np.column_stack([np.full(count, count - 1), np.arange(count)]),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("count", [1, 2, 50, 5000])
def test_components_are_those_of_scipy_in_their_order(name, count):
    pairs = GRAPHS[name](count, np.random.default_rng(count))

    number, component = connected(pairs, count)

    links = coo_array((np.ones(len(pairs)), pairs.T), shape=(count, count))
    expected, expected_component = connected_components(links, directed=False)
    assert number == expected
    np.testing.assert_array_equal(component, expected_component)
