#!/usr/bin/env bash
# buildingregulariser 0.2.5, shapely 2.2.0: a rectangle gets a notch if diagonals are forbidden.
#
# Guess: regularize_geodataframe leaves a building alone whose corners are all right angles, and allow_45_degree=False
# only forbids diagonal edges, so that it changes nothing here.
# Seen: a rectangle of 20 by 10 m is kept by default. With allow_45_degree=False it has eight corners: along one side a
# notch of 1.25 by 0.6 m at one end and a tooth of the same size beyond the other, so that the area stays 200 m2 and no
# check of areas tells. A building of twice the size, a rotated one and an L get the same, whatever simplify is. The
# option that should make outlines plainer adds corners to all of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    buildingregulariser==0.2.5 geopandas==1.2.0 shapely==2.2.0 pyproj==3.7.2 numpy==2.4.6 pandas==2.3.3
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import geopandas
import shapely
from buildingregulariser import regularize_geodataframe
from shapely.affinity import rotate, scale

rectangle = shapely.box(0, 0, 20, 10)
for name, building in (
    ("rectangle", rectangle), ("larger", scale(rectangle, 2, 2)), ("rotated", rotate(rectangle, 30)),
    ("L", shapely.Polygon([(0, 0), (20, 0), (20, 8), (8, 8), (8, 20), (0, 20)])),
):
    frame = geopandas.GeoDataFrame(geometry=[building], crs="EPSG:32637")
    for options in ({}, {"allow_45_degree": False}, {"allow_45_degree": False, "simplify": False}):
        regular = regularize_geodataframe(frame, num_cores=1, **options).geometry[0]
        corners = len(shapely.simplify(regular, 0.01).exterior.coords) - 1
        outside, missing = regular.difference(building).area, building.difference(regular).area
        print(f"{name} {options}: {corners} corners, {regular.area:.1f} m2", end=", ")
        print(f"{outside:.2f} outside, {missing:.2f} missing")
PYTHON
diff "$folder/seen" - <<'EXPECTED'
rectangle {}: 4 corners, 200.0 m2, 0.00 outside, 0.00 missing
rectangle {'allow_45_degree': False}: 8 corners, 200.0 m2, 0.78 outside, 0.78 missing
rectangle {'allow_45_degree': False, 'simplify': False}: 8 corners, 200.0 m2, 0.78 outside, 0.78 missing
larger {}: 4 corners, 800.0 m2, 0.00 outside, 0.00 missing
larger {'allow_45_degree': False}: 8 corners, 800.0 m2, 0.78 outside, 0.78 missing
larger {'allow_45_degree': False, 'simplify': False}: 8 corners, 800.0 m2, 0.78 outside, 0.78 missing
rotated {}: 4 corners, 200.0 m2, 0.00 outside, 0.00 missing
rotated {'allow_45_degree': False}: 8 corners, 200.0 m2, 0.78 outside, 0.78 missing
rotated {'allow_45_degree': False, 'simplify': False}: 8 corners, 200.0 m2, 0.78 outside, 0.78 missing
L {}: 6 corners, 256.0 m2, 0.00 outside, 0.00 missing
L {'allow_45_degree': False}: 10 corners, 256.0 m2, 0.78 outside, 0.78 missing
L {'allow_45_degree': False, 'simplify': False}: 10 corners, 256.0 m2, 0.78 outside, 0.78 missing
EXPECTED
echo "as described"
