#!/usr/bin/env bash
# snkit 1.9.0: a node on the last segment of a loop street cuts the corner at which the loop begins.
#
# Guess: split_edges_at_nodes cuts a closed edge where the node lies, and the pieces together are the street.
# Seen: a square block of 40 m that begins at its lower left corner, and a node in the middle of one side. On three
# sides the pieces are the block. On the side that returns to the beginning the corner is gone: its first vertex becomes
# the node, and a diagonal of 11.18 m crosses the block (41.18 m in all). A street that ends at the corner is left
# without a connection. Nothing warns; the same points on an open street are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    snkit==1.9.0 networkx==3.6.1 geopandas==1.2.0 shapely==2.2.0 pyproj==3.7.2 numpy==2.4.6 pandas==2.3.3 > /dev/null
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import geopandas
import shapely
from snkit import network as snkit

corners = [(0, 0), (10, 0), (10, 10), (0, 10)]
streets = {"block": shapely.LineString([*corners, corners[0]]), "open": shapely.LineString(corners)}
for name, street in streets.items():
    for node in ((5, 0), (10, 5), (5, 10), (0, 5))[: 4 if name == "block" else 3]:
        nodes = geopandas.GeoDataFrame(geometry=[shapely.Point(node)], crs=32637)
        edges = geopandas.GeoDataFrame(geometry=[street], crs=32637)
        pieces = snkit.split_edges_at_nodes(snkit.Network(nodes, edges)).edges
        print(name, node, f"{pieces.length.sum():.2f} m", "; ".join(line.wkt[12:-1] for line in pieces.geometry))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
block (5, 0) 40.00 m 0 0, 5 0; 5 0, 10 0, 10 10, 0 10, 0 0
block (10, 5) 40.00 m 0 0, 10 0, 10 5; 10 5, 10 10, 0 10, 0 0
block (5, 10) 40.00 m 0 0, 10 0, 10 10, 5 10; 5 10, 0 10, 0 0
block (0, 5) 41.18 m 0 0, 0 5; 0 5, 10 0, 10 10, 0 10, 0 5
open (5, 0) 30.00 m 0 0, 5 0; 5 0, 10 0, 10 10, 0 10
open (10, 5) 30.00 m 0 0, 10 0, 10 5; 10 5, 10 10, 0 10
open (5, 10) 30.00 m 0 0, 10 0, 10 10, 5 10; 5 10, 0 10
EXPECTED
echo "as described"
