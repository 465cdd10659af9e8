#!/usr/bin/env bash
# turfpy 0.0.8: the distance of a point to a line is measured to spokes from the line's first vertex.
#
# Guess: point_to_line_distance is the least distance to any segment of the line, as its documentation says.
# Seen: of a line of three segments the first is taken as it is, the others from the first vertex to each later one. A
# point 22 km off the line is 5 km off; one in the middle of the last segment is 25 km off, and 0 km off the same line
# reversed. Lines of two vertices are right, in both methods, and so is the least of the distances to the segments one
# by one. Snapping to roads and matching of tracks choose wrong lines wherever these bend.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile turfpy==0.0.8
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
from geojson import Feature, LineString, Point
from turfpy.measurement import point_to_line_distance


def distance(point, line, method="geodesic"):
    pair = Feature(geometry=Point(point)), Feature(geometry=LineString(line))
    return abs(round(point_to_line_distance(*pair, units="km", method=method), 1))


bent = [(0, 0), (1, 0), (1, 1), (2, 1)]
for point in ((0.5, 0.2), (1.5, 1), (0.5, -0.2)):
    by_segment = min(distance(point, segment) for segment in zip(bent, bent[1:]))
    found = distance(point, bent), distance(point, bent[::-1]), distance(point, bent, "planar")
    print(point, "line, reversed, planar:", *found, "least of the segments:", by_segment)
PYTHON
diff "$folder/seen" - <<'EXPECTED'
(0.5, 0.2) line, reversed, planar: 5.0 5.0 5.0 least of the segments: 22.2
(1.5, 1) line, reversed, planar: 24.9 0.0 24.9 least of the segments: 0.0
(0.5, -0.2) line, reversed, planar: 22.2 44.8 22.2 least of the segments: 22.2
EXPECTED
echo "as described"
