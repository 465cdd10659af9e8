#!/usr/bin/env bash
# esda 2.9.0, shapely 2.2.0: all angles of a square are reflexive, or none, by the order of its vertices.
#
# Guess: reflexive_angle_ratio is the same for both orders of the vertices, as all other measures of esda.shape are.
# Seen: a square has 1 if its vertices run counterclockwise, as GeoJSON and shapely.box have them, and 0 if they run
# clockwise, as shapefiles have them. An L, with one reflexive angle of six, has 5/6 or 1/6. The documented formula,
# (N-R)/(N+R), gives 1 and 2/3. Nothing warns. Shapes of buildings from two sources cannot be compared, and the most
# regular ones look the most indented.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    esda==2.9.0 libpysal==4.14.1 geopandas==1.2.0 shapely==2.2.0 pyproj==3.7.2 numpy==2.4.6 scipy==1.17.1 \
    pandas==3.1.1 scikit-learn==1.9.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
from esda import shape
from shapely import Polygon, box

house = Polygon([(0, 0), (6, 0), (6, 2), (2, 2), (2, 5), (0, 5)])
for name, polygon in (("square", box(0, 0, 4, 4)), ("L", house)):
    for outline in (polygon, polygon.reverse()):
        others = shape.shape_index([outline])[0], shape.boundary_amplitude([outline])[0]
        print(
            name, "counterclockwise" if outline.exterior.is_ccw else "clockwise",
            *shape.reflexive_angle_ratio([outline]).round(2), "other measures:", *(f"{other:.2f}" for other in others),
        )
PYTHON
diff "$folder/seen" - <<'EXPECTED'
square counterclockwise 1.0 other measures: 0.80 1.00
square clockwise 0.0 other measures: 0.80 1.00
L counterclockwise 0.83 other measures: 0.61 0.91
L clockwise 0.17 other measures: 0.61 0.91
EXPECTED
echo "as described"
