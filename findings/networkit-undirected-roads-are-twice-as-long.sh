#!/usr/bin/env bash
# networkit 11.3, networkx 3.6.1: toUndirected makes a two-way road twice as long, and counts one edge too few.
#
# Guess: two directed edges of 100 m between the same junctions, there and back, become one edge of 100 m, or two; a
# path along them is 100 m long, as in networkx.
# Seen: they become one edge of 200 m: the weights of both directions are added up. One-way roads keep their length, so
# that shortest paths of the undirected graph avoid two-way roads: from 0 to 2 they take a detour of 180 m in place of
# the road of 100 m. numberOfEdges says 2, though the graph has three edges. The documentation calls it an undirected
# copy, and nothing warns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    networkit==11.3 networkx==3.6.1 numpy==2.4.6 scipy==1.17.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import networkit
import networkx

roads = networkx.DiGraph()
roads.add_nodes_from(range(3))
roads.add_weighted_edges_from([(0, 2, 100.0), (2, 0, 100.0), (0, 1, 90.0), (1, 2, 90.0)])
directed = networkit.nxadapter.nx2nk(roads, weightAttr="weight")
undirected = networkit.graphtools.toUndirected(directed)
print("networkx", sorted(roads.to_undirected().edges(data="weight")))
for name, graph in (("directed", directed), ("undirected", undirected)):
    paths = networkit.distance.Dijkstra(graph, 0).run()
    edges = sorted(graph.iterEdgesWeights())
    print(name, graph.numberOfEdges(), "edges:", *edges, "| from 0 to 2:", paths.distance(2), paths.getPath(2))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
networkx [(0, 1, 90.0), (0, 2, 100.0), (1, 2, 90.0)]
directed 4 edges: (0, 1, 90.0) (0, 2, 100.0) (1, 2, 90.0) (2, 0, 100.0) | from 0 to 2: 100.0 [0, 2]
undirected 2 edges: (0, 1, 90.0) (0, 2, 200.0) (1, 2, 90.0) | from 0 to 2: 180.0 [0, 1, 2]
EXPECTED
echo "as described"
