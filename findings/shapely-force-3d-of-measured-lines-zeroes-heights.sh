#!/usr/bin/env bash
# shapely 2.2.0 (GEOS 3.14): force_3d of a line that has heights and measures (ZM) replaces the heights by 0.
#
# Guess: force_3d gives a Z to what has none, leaves the Z of what has one (so says its documentation), and drops M.
# Seen: a LINESTRING ZM with the heights 5 and 15 becomes a LINESTRING Z with the heights 0 and 0, or with whatever
# the argument z says. A LINESTRING M stays a LINESTRING M: it gets no third dimension at all. Code that calls force_3d to
# drop the measures of a road layer, or to be sure of heights, flattens the roads.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check shapely==2.2.0 numpy==2.4.6
"$folder/venv/bin/python" - > "$folder/seen" <<'PYTHON'
import shapely

for wkt in ("LINESTRING Z (0 0 5, 9 0 15)", "LINESTRING ZM (0 0 5 0, 9 0 15 100)", "LINESTRING M (0 0 0, 9 0 100)"):
    line = shapely.from_wkt(wkt)
    print(shapely.to_wkt(shapely.force_3d(line)), "|", shapely.to_wkt(shapely.force_3d(line, 7)))
PYTHON
sed -i 's/\.000000//g' "$folder/seen"
diff "$folder/seen" - <<'EXPECTED'
LINESTRING Z (0 0 5, 9 0 15) | LINESTRING Z (0 0 5, 9 0 15)
LINESTRING Z (0 0 0, 9 0 0) | LINESTRING Z (0 0 7, 9 0 7)
LINESTRING M (0 0 0, 9 0 100) | LINESTRING M (0 0 0, 9 0 100)
EXPECTED
echo "as described"
