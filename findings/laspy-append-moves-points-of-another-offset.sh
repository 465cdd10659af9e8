#!/usr/bin/env bash
# laspy 2.7.0: points that are appended to a file with another offset or scale are moved, since integers are copied.
#
# Guess: append_points converts the points to the scale and the offset of the file, as write_points of the same library
# does and says, or refuses them, as it refuses another point format.
# Seen: LAS files store integers; each has a scale and an offset, and tiles of one survey usually have their own. A
# point at 501,234.56 E of the next tile, with its offset of 501,000, that is appended to a file with the offset 500,000
# reads 1,000 m too far west: inside of the first tile. With a scale of a millimetre in place of a centimetre, distances
# from the offset grow tenfold. Bounds in the header fit the wrong places, and nothing warns. write_points of the same
# points is right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile laspy==2.7.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W error - > "$folder/seen" <<'PYTHON'
import laspy
import numpy as np


def tile(east, north, scale, offsets):
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.scales, header.offsets = [scale] * 3, offsets
    points = laspy.LasData(header)
    points.x, points.y, points.z = np.array(east), np.array(north), np.full(len(east), 100.0)
    return points


first = tile([500_100.25, 500_900.75], [6_000_010.5, 6_000_020.5], 0.01, [500_000, 6_000_000, 0])
seconds = {
    "equal": tile([501_234.56], [6_000_030.5], 0.01, [500_000, 6_000_000, 0]),
    "offset": tile([501_234.56], [6_000_030.5], 0.01, [501_000, 6_000_000, 0]),
    "scale": tile([501_234.56], [6_000_030.5], 0.001, [500_000, 6_000_000, 0]),
}
for name, second in seconds.items():
    first.write("appended.las")
    with laspy.open("appended.las", mode="a") as file:
        file.append_points(second.points)
    with laspy.open("written.las", mode="w", header=first.header) as file:
        file.write_points(first.points)
        file.write_points(second.points)
    for way in ("written", "appended"):
        points = laspy.read(f"{way}.las")
        place = (f"{float(axis[-1]):.2f}" for axis in (points.x, points.y, points.z))
        print(name, way, *place, "east until:", f"{points.header.maxs[0]:.2f}")
PYTHON
diff "$folder/seen" - <<'EXPECTED'
equal written 501234.56 6000030.50 100.00 east until: 501234.56
equal appended 501234.56 6000030.50 100.00 east until: 501234.56
offset written 501234.56 6000030.50 100.00 east until: 501234.56
offset appended 500234.56 6000030.50 100.00 east until: 500900.75
scale written 501234.56 6000030.50 100.00 east until: 501234.56
scale appended 512345.60 6000305.00 1000.00 east until: 512345.60
EXPECTED
echo "as described"
