"""Shortest distances from many nodes to all others, in networks where Dijkstra's way takes hours.

Nodes are taken out one after another, and every two neighbours of a node that goes get a shortcut
as long as the way through it. Then each way has a form in which it first only climbs to nodes taken
out later, and then only descends. So all distances from a node follow from one climb and one sweep
down over all nodes, of a few additions for each, for several sources at once: no queue, no search.
The distances are exact, but for the order of additions. (Customizable contraction hierarchies:
Dibbelt, Strasser, Wagner 2014, arXiv:1402.0402; the sweep: Delling et al. 2011, "PHAST".)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled
from geoprep.roads.paths.dissection import elimination_order
from geoprep.roads.paths.distances import Track

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Hierarchy:
    """A network without its edges that lead nowhere new, and with shortcuts.

    Attributes
    ----------
    row
        int64 (node,): where the distances to a node are kept, neighbours together.
    rows, place
        int64 (node,): the row of the node taken out first, second...; and the reverse.
    offsets, above, cost
        Arcs upwards: the node at place ``p`` has arcs ``offsets[p]`` to ``offsets[p + 1]``, to the
        rows ``above``, in the order of their places; int64, int32, float64.
    """

    row: Ints
    rows: Ints
    place: Ints
    offsets: Ints
    above: NDArray[np.int32]
    cost: Floats

    def last_use(self, seeds: Ints) -> Ints:
        """Return the last point that the distance to a node is needed for; -1: none.

        Parameters
        ----------
        seeds
            int64 (point, 2): rows that points are reached by.

        Returns
        -------
        int64 (place,)
            Also of the nodes above, which distances come down from.
        """
        last = np.full(len(self.rows), -1)
        np.maximum.at(last, self.place[seeds], np.arange(len(seeds))[:, None])
        _hand_up(self.place, self.offsets, self.above, last)
        return last

    def reach(
        self, seeds: Ints, costs: Floats, out: Floats, last_use: Ints, needed_for: int
    ) -> None:
        """Fill in the distances from some sources to the nodes that are still needed.

        Parameters
        ----------
        seeds, costs
            int64 and float64 (source, 2): rows that a source begins at, and what it costs to get
            there; infinite: nowhere.
        out
            float64 (row, at least source), written; infinite where there is no way.
        last_use, needed_for
            Leave out nodes whose last use is before this point.
        """
        _climb(self.rows, self.place, self.offsets, self.above, self.cost, seeds, costs, out)
        _descend(self.rows, self.offsets, self.above, self.cost, out, last_use, needed_for)


def hierarchy(track: Track) -> Hierarchy:
    """Return the hierarchy of a network."""
    count = len(track.nodes)
    place_of_node, row = elimination_order(track.nodes, track.ends)
    low, high = np.sort(place_of_node[track.ends], axis=1).T
    order = np.lexsort((track.cost, high, low))
    low, high, cost = low[order], high[order], track.cost[order]
    # Loops lead nowhere, and of parallel edges only the cheapest counts.
    useful = low != high
    useful[1:] &= (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    low, high, cost = low[useful], high[useful], cost[useful]
    offsets, above = _shortcuts(np.searchsorted(low, np.arange(count + 1)), high)
    arcs = np.full(len(above), np.inf)
    number = np.repeat(np.arange(count), np.diff(offsets)) * count + above
    arcs[np.searchsorted(number, low * count + high)] = cost
    _take_out(offsets, above, arcs)
    rows, place = np.empty(count, np.int64), np.empty(count, np.int64)
    rows[place_of_node] = row
    place[row] = place_of_node
    return Hierarchy(row, rows, place, offsets, rows[above].astype(np.int32), arcs)


@compiled
def _shortcuts(offsets: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return the arcs upwards when all nodes are taken out: offsets, and places ascending."""
    count = len(offsets) - 1
    child, sibling = np.full(count, -1), np.full(count, -1)
    seen = np.full(count, -1)
    found = np.zeros(count + 1, np.int64)
    above = np.empty(4 * len(high) + count + 16, np.int64)
    total = 0
    for place in range(count):
        if len(above) - total < count:
            larger = np.empty(2 * len(above) + count, np.int64)
            larger[:total] = above[:total]
            above = larger
        first = total
        seen[place] = place
        for arc in range(offsets[place], offsets[place + 1]):
            seen[high[arc]] = place
            above[total] = high[arc]
            total += 1
        below = child[place]
        while below != -1:
            for arc in range(found[below], found[below + 1]):
                if seen[above[arc]] != place:
                    seen[above[arc]] = place
                    above[total] = above[arc]
                    total += 1
            below = sibling[below]
        above[first:total].sort()
        found[place + 1] = total
        if total > first:  # what is above this place is also above, or is, the lowest of it
            sibling[place] = child[above[first]]
            child[above[first]] = place
    return found, above[:total].copy()


@compiled
def _take_out(offsets: Ints, above: Ints, cost: Floats) -> None:
    """Shorten the arcs between the neighbours of every place, in order."""
    for place in range(len(offsets) - 1):
        last = offsets[place + 1]
        for one in range(offsets[place], last):
            arc = offsets[above[one]]
            for two in range(one + 1, last):
                while above[arc] != above[two]:
                    arc += 1
                cost[arc] = min(cost[arc], cost[one] + cost[two])


@compiled
def _hand_up(place: Ints, offsets: Ints, above: NDArray[np.int32], last: Ints) -> None:
    for here in range(len(last)):
        if offsets[here] < offsets[here + 1]:
            parent = place[above[offsets[here]]]
            last[parent] = max(last[parent], last[here])


@compiled
def _climb(
    rows: Ints,
    place: Ints,
    offsets: Ints,
    above: NDArray[np.int32],
    cost: Floats,
    seeds: Ints,
    costs: Floats,
    out: Floats,
) -> None:
    """Go up from all sources at once: neighbours share most of the way."""
    out[:] = np.inf
    passed = np.zeros(len(rows), np.bool_)
    for source in range(len(seeds)):
        for end in range(seeds.shape[1]):
            if not costs[source, end] < np.inf:
                continue
            row = seeds[source, end]
            out[row, source] = min(out[row, source], costs[source, end])
            here = place[row]
            while not passed[here]:
                passed[here] = True
                if offsets[here] < offsets[here + 1]:
                    here = place[above[offsets[here]]]
    for here in range(len(rows)):
        if passed[here]:
            known = out[rows[here]]
            for arc in range(offsets[here], offsets[here + 1]):
                there, more = out[above[arc]], cost[arc]
                for source in range(len(known)):
                    way = known[source] + more
                    there[source] = way if way < there[source] else there[source]


@compiled
def _descend(
    rows: Ints,
    offsets: Ints,
    above: NDArray[np.int32],
    cost: Floats,
    out: Floats,
    last_use: Ints,
    needed_for: int,
) -> None:
    for place in range(len(rows) - 1, -1, -1):
        if last_use[place] < needed_for:
            continue
        here = out[rows[place]]
        for arc in range(offsets[place], offsets[place + 1]):
            there, more = out[above[arc]], cost[arc]
            for source in range(len(here)):
                way = there[source] + more
                here[source] = way if way < here[source] else here[source]
