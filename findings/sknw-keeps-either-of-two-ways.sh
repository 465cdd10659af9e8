#!/usr/bin/env bash
# sknw 0.15, scikit-image 0.26.0: of two roads between the same junctions the graph keeps the lower one in the picture.
#
# Guess: a graph without parallel edges (multi=False, the default) keeps the shorter of two roads.
# Seen: a road of 19 pixels and a detour of 38 join the same two junctions. The road is kept where it lies below the
# detour. Of the same skeleton upside down the detour is kept: whichever was traced last. Shortest paths are twice as
# long in one of the two.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    sknw==0.15 scikit-image==0.26.0 networkx==3.6.1 numba==0.68.1 numpy==2.4.6 scipy==1.17.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import numpy as np
import sknw
from skimage.morphology import skeletonize

roads = np.zeros((30, 60), bool)
roads[15, 5:55] = roads[5, 20:40] = roads[5:15, 20] = roads[5:15, 39] = True
skeleton = skeletonize(roads).astype(np.uint16)
for name, picture in (("detour above", skeleton), ("detour below", skeleton[::-1])):
    for multi in (True, False):
        graph = sknw.build_sknw(picture, multi=multi)
        print(name, "multi", multi, sorted(round(float(length)) for *_, length in graph.edges(data="weight")))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
detour above multi True [15, 15, 19, 38]
detour above multi False [15, 15, 19]
detour below multi True [15, 15, 19, 38]
detour below multi False [15, 15, 38]
EXPECTED
echo "as described"
