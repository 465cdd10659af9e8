#!/usr/bin/env bash
# xarray-spatial 0.10.20: hillshade exchanges north and south of the sun on every raster with north up.
#
# Guess: azimuth is the angle from the north, as the documentation says; a slope that faces the sun is the brightest.
# Seen: a plane inclined by 45 degrees, a sun 45 degrees high. With the sun in the north the slope that faces north is
# black (0.0) and the one that faces south white (1.0); east and west are right. Rows sorted by falling y, as files
# with north up are read, take north for south in hillshade; rows sorted by rising y do so in aspect of the same
# library. In neither order do the two agree. The default azimuth of 225 looks like the usual 315.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for python in python3 python3.12 python3.13 python3.14 ~/.pyenv/versions/3.1[2-9]*/bin/python3; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2> /dev/null; then break; fi
done
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    xarray-spatial==0.10.20 numba==0.68.1 xarray==2026.9.0 scipy==1.18.1 pandas==3.1.1 numpy==2.5.5
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import numpy as np
import xarray
from xrspatial import aspect, hillshade

slopes = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
for order, y in (("y falls", np.arange(5.0)[::-1]), ("y rises", np.arange(5.0))):
    for facing, (east, north) in slopes.items():
        x = np.arange(5.0)
        height = xarray.DataArray(-east * x[None, :] - north * y[:, None], coords={"y": y, "x": x}, dims=("y", "x"))
        found = [f"{float(hillshade(height, azimuth=sun, angle_altitude=45)[2, 2]):.1f}" for sun in (0, 90, 180, 270)]
        true = [0.5 * (1 + cosine) for cosine in (north, east, -north, -east)]
        of_aspect = f"aspect {float(aspect(height)[2, 2]):.0f}"
        print(f"{order}, faces {facing}, {of_aspect}, sun at 0, 90, 180, 270:", *found, "true", *true)
PYTHON
diff "$folder/seen" - <<'EXPECTED'
y falls, faces north, aspect 0, sun at 0, 90, 180, 270: 0.0 0.5 1.0 0.5 true 1.0 0.5 0.0 0.5
y falls, faces east, aspect 90, sun at 0, 90, 180, 270: 0.5 1.0 0.5 0.0 true 0.5 1.0 0.5 0.0
y falls, faces south, aspect 180, sun at 0, 90, 180, 270: 1.0 0.5 0.0 0.5 true 0.0 0.5 1.0 0.5
y falls, faces west, aspect 270, sun at 0, 90, 180, 270: 0.5 0.0 0.5 1.0 true 0.5 0.0 0.5 1.0
y rises, faces north, aspect 180, sun at 0, 90, 180, 270: 1.0 0.5 0.0 0.5 true 1.0 0.5 0.0 0.5
y rises, faces east, aspect 90, sun at 0, 90, 180, 270: 0.5 1.0 0.5 0.0 true 0.5 1.0 0.5 0.0
y rises, faces south, aspect 0, sun at 0, 90, 180, 270: 0.0 0.5 1.0 0.5 true 0.0 0.5 1.0 0.5
y rises, faces west, aspect 270, sun at 0, 90, 180, 270: 0.5 0.0 0.5 1.0 true 0.5 0.0 0.5 1.0
EXPECTED
echo "as described"
