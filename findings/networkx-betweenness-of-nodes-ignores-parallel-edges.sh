#!/usr/bin/env bash
# networkx 3.6.1, igraph 1.0.0, rustworkx 0.18.1: a doubled road attracts paths in two of three libraries.
#
# Guess: the betweenness centrality of a network is the same in all three, since all describe the same definition.
# Seen: a ring of six nodes with one pair of parallel edges, of equal length. networkx gives all six nodes 2.0: parallel
# edges are one path. igraph and rustworkx count one path per parallel edge and give the nodes of the doubled edge 2.33,
# those opposite 1.67. networkx itself divides paths between parallel edges in edge_betweenness_centrality of the same
# graph: 2.25 for each of the two. Dual carriageways of equal length and unweighted road networks rank differently.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    networkx==3.6.1 igraph==1.0.0 rustworkx==0.18.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import igraph
import networkx
import rustworkx

edges = [(0, 1), (1, 2), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)]
of_networkx = networkx.MultiGraph(edges)
of_rustworkx = rustworkx.PyGraph()
of_rustworkx.add_nodes_from(range(6))
of_rustworkx.add_edges_from_no_data(edges)
results = {
    "networkx": networkx.betweenness_centrality(of_networkx, normalized=False).values(),
    "igraph": igraph.Graph(edges=edges).betweenness(),
    "rustworkx": rustworkx.betweenness_centrality(of_rustworkx, normalized=False).values(),
    "networkx, edges": networkx.edge_betweenness_centrality(of_networkx, normalized=False).values(),
    "igraph, edges": igraph.Graph(edges=edges).edge_betweenness(),
}
for name, values in results.items():
    print(name, *sorted(f"{value:.2f}" for value in values))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
networkx 2.00 2.00 2.00 2.00 2.00 2.00
igraph 1.67 1.67 2.00 2.00 2.33 2.33
rustworkx 1.67 1.67 2.00 2.00 2.33 2.33
networkx, edges 2.25 2.25 4.50 4.50 4.50 4.50 4.50
igraph, edges 2.50 2.50 4.00 4.33 4.33 4.67 4.67
EXPECTED
echo "as described"
