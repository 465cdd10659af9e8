#!/usr/bin/env bash
# momepy 0.11.0, geopandas 1.2.0: streets that remove_false_nodes joins lose all of their attributes, equal ones too.
#
# Guess: a street that was cut in two gets the attributes that both pieces share, or those of one of them.
# Seen: two pieces of one street, with the same name, speed and direction, become one line whose name, speed and oneway
# are missing, at the end of the table. Streets that were not joined keep theirs, whole numbers become floating point
# and the truth values objects. Nothing warns. What sums or averages over the table skips the joined streets, and a
# missing oneway is true where Python asks.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    momepy==0.11.0 libpysal==4.14.1 geopandas==1.2.0 shapely==2.2.0 pyproj==3.7.2 networkx==3.6.1 numpy==2.4.6 \
    scipy==1.17.1 pandas==2.3.3
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import geopandas
import momepy
from shapely import LineString

streets = geopandas.GeoDataFrame(
    {"name": ["Long", "Long", "North", "South"], "speed": [50, 50, 30, 20], "oneway": [False, False, False, True]},
    geometry=[
        LineString([(0, 0), (10, 0)]), LineString([(10, 0), (20, 0)]),
        LineString([(20, 0), (30, 5)]), LineString([(20, 0), (30, -5)]),
    ],
    crs="EPSG:32637",
)
joined = momepy.remove_false_nodes(streets)
for street in joined.itertuples():
    print(street.name, street.speed, street.oneway, bool(street.oneway), street.geometry.wkt)
print(streets.dtypes["speed"], joined.dtypes["speed"], streets.dtypes["oneway"], joined.dtypes["oneway"])
PYTHON
diff "$folder/seen" - <<'EXPECTED'
North 30.0 False False LINESTRING (20 0, 30 5)
South 20.0 True True LINESTRING (20 0, 30 -5)
nan nan nan True LINESTRING (0 0, 10 0, 20 0)
int64 float64 bool object
EXPECTED
echo "as described"
