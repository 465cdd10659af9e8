#!/usr/bin/env bash
# pymap3d 3.2.0, pyproj 3.7.2: the loxodrome between two places beside the antimeridian goes round the whole world.
#
# Guess: loxodrome_inverse takes the shorter way, as Matlab's distance("rh") does, to which its documentation compares
# it, and as vdist of the same library does for geodesics.
# Seen: from 179.9 E to 179.9 W near Fiji, 21 km by vdist and by pyproj, it is 19,042 km, and the bearing is 270, west,
# in place of 90. From 60 N, 179.5 W to 61 N, 179.5 E, 124 km, it is 19,728 km. So it is across Greenwich if longitudes
# run from 0 to 360: from 359 to 1, though not from -1 to 1. The difference of longitudes is not brought into
# 180 degrees. Nothing warns. loxodrome_direct goes the right way, and returns 180.01 for -179.99.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    pymap3d==3.2.0 pyproj==3.7.2 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W error - > "$folder/seen" <<'PYTHON'
from pymap3d.lox import loxodrome_direct, loxodrome_inverse
from pymap3d.vincenty import vdist
from pyproj import Geod

earth = Geod(ellps="WGS84")
ways = (
    ((-18, 179.9), (-18, -179.9)), ((-18, 179.9), (-18, 180.1)), ((60, -179.5), (61, 179.5)),
    ((45, 359), (45, 1)), ((45, -1), (45, 1)),
)
for start, end in ways:
    length, bearing = loxodrome_inverse(*start, *end)
    geodesics = vdist(*start, *end)[0], earth.inv(start[1], start[0], end[1], end[0])[2]
    lengths = (f"{way / 1000:.0f}" for way in geodesics)
    print(*start, "to", *end, f"{length / 1000:.0f} km, bearing {bearing:.0f}, geodesics", *lengths)
print("direct:", *(f"{number:.2f}" for number in loxodrome_direct(-18, 179.9, 11_647, 90)))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
-18 179.9 to -18 -179.9 19042 km, bearing 270, geodesics 21 21
-18 179.9 to -18 180.1 21 km, bearing 90, geodesics 21 21
60 -179.5 to 61 179.5 19728 km, bearing 90, geodesics 124 124
45 359 to 45 1 14035 km, bearing 270, geodesics 158 158
45 -1 to 45 1 158 km, bearing 90, geodesics 158 158
direct: -18.00 180.01
EXPECTED
echo "as described"
