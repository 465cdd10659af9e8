#!/usr/bin/env bash
# pandana 0.8: lengths of edges are cut to three decimals; a network in kilometres shrinks, one in degrees grows.
#
# Guess: edge_weights may have any unit, as the documentation says; the same network in kilometres has a thousandth of
# the distances that it has in metres.
# Seen: each edge is cut, not rounded, to whole thousandths, at least one, before edges are added up. A road of 100
# edges of 1.9 m is 190 m long; the same in kilometres 0.1; in degrees, 0.000017 each, 0.1 in place of 0.0017. Within 96
# m of its start lie 51 nodes in metres, 96 in kilometres and the start alone in degrees. Nothing warns, weights are
# floating point, and edges that are long in their unit, as in most examples, look right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    pandana==0.8 numpy==2.4.6 pandas==2.3.3 tables==3.11.1 scikit-learn==1.9.1 scipy==1.17.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/printed" <<'PYTHON'
import numpy as np
import pandana
import pandas

nodes = pandas.Series(np.arange(101))
start, end = nodes[:-1].reset_index(drop=True), nodes[1:].reset_index(drop=True)
for unit, length in (("metres", 1.9), ("kilometres", 0.0019), ("degrees", 0.000017)):
    weights = pandas.DataFrame({"length": np.full(100, length)})
    network = pandana.Network(nodes * 1.0, nodes * 0.0, start, end, weights)
    network.set(nodes, variable=nodes * 0.0 + 1, name="one")
    found = network.aggregate(50.5 * length, type="count", name="one")
    path = network.shortest_path_length(0, 100)
    print(f"\nseen {unit}: {100 * length:.6g} is {path:.6g}, {found[0]:.0f} nodes within 50.5 edges of the start")
PYTHON
grep ^seen "$folder/printed" > "$folder/seen"
diff "$folder/seen" - <<'EXPECTED'
seen metres: 190 is 190, 51 nodes within 50.5 edges of the start
seen kilometres: 0.19 is 0.1, 96 nodes within 50.5 edges of the start
seen degrees: 0.0017 is 0.1, 1 nodes within 50.5 edges of the start
EXPECTED
echo "as described"
