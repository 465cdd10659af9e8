#!/usr/bin/env bash
# geopandas 1.2.0, shapely 2.2.0, pyproj 3.7.2: to_crs of lines with heights and measures (ZM) returns NaN heights.
#
# Guess: to_crs changes x and y, and keeps or drops what else a vertex has; heights of a LINESTRING Z stay, so those
# of a LINESTRING ZM (a linear reference beside the height) do as well.
# Seen: the heights of LINESTRING Z stay, 5 and 15. Those of LINESTRING ZM are NaN, and the measures are NaN too. The type
# still says ZM, nothing is raised and nothing warns. translate and rotate do the same. Slopes, lengths in space and
# linear references of a road layer are gone after a change of CRS.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    geopandas==1.2.0 shapely==2.2.0 pyproj==3.7.2 numpy==2.4.6 pandas==2.3.3
"$folder/venv/bin/python" - > "$folder/seen" <<'PYTHON'
import geopandas
import shapely

for wkt in ("LINESTRING Z (500000 0 5, 500010 0 15)", "LINESTRING ZM (500000 0 5 0, 500010 0 15 100)"):
    lines = geopandas.GeoSeries.from_wkt([wkt], crs="EPSG:32637")
    for name, moved in (("to_crs", lines.to_crs("EPSG:32638")), ("translate", lines.translate(1))):
        heights = shapely.get_coordinates(moved.array, include_z=True)[:, 2]
        print(wkt.split(" (")[0], name, *(f"{height:.1f}" for height in heights))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
LINESTRING Z to_crs 5.0 15.0
LINESTRING Z translate 5.0 15.0
LINESTRING ZM to_crs nan nan
LINESTRING ZM translate nan nan
EXPECTED
echo "as described"
