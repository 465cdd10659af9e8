#!/usr/bin/env bash
# pyogrio 0.13.0, geopandas 1.2.0: rows that are appended to a file fill its columns by position, not by name.
#
# Guess: to_file(mode="a") writes each column into the field of its name, and refuses a column that the file lacks.
# Seen: a frame with the columns (width, lanes), appended to a file with (lanes, width), has its values exchanged: a
# road of 2 lanes and 20 metres has 20 lanes. Columns that the file lacks, (speed, surface), are written as lanes and
# width if there are as many as the file has; one of them alone is refused. Nothing warns. With use_arrow=True names
# count, and unknown columns are an error. Shapefile, GeoJSON and SQLite files get the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    pyogrio==0.13.0 geopandas==1.2.0 shapely==2.2.0 pyproj==3.7.2 pyarrow==26.0.1 numpy==2.4.6 pandas==2.3.3
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import geopandas
import shapely


def roads(**columns):
    return geopandas.GeoDataFrame(columns, geometry=[shapely.LineString([(0, 0), (9, 0)])], crs="EPSG:32637")


for suffix in ("gpkg", "fgb"):
    for use_arrow in (False, True):
        for row in ({"width": [20], "lanes": [2]}, {"speed": [50], "surface": [3]}, {"surface": [3]}):
            path = f"roads.{suffix}"
            roads(lanes=[1], width=[10]).to_file(path)
            try:
                roads(**row).to_file(path, mode="a", use_arrow=use_arrow)
            except Exception as error:
                print(suffix, use_arrow, row, "is refused")
            else:
                stored = geopandas.read_file(path).drop(columns="geometry").sort_values("lanes").iloc[-1].to_dict()
                print(suffix, use_arrow, row, "is", stored)
PYTHON
diff "$folder/seen" - <<'EXPECTED'
gpkg False {'width': [20], 'lanes': [2]} is {'lanes': 20, 'width': 2}
gpkg False {'speed': [50], 'surface': [3]} is {'lanes': 50, 'width': 3}
gpkg False {'surface': [3]} is refused
gpkg True {'width': [20], 'lanes': [2]} is {'lanes': 2, 'width': 20}
gpkg True {'speed': [50], 'surface': [3]} is refused
gpkg True {'surface': [3]} is refused
fgb False {'width': [20], 'lanes': [2]} is {'lanes': 20, 'width': 2}
fgb False {'speed': [50], 'surface': [3]} is {'lanes': 50, 'width': 3}
fgb False {'surface': [3]} is refused
fgb True {'width': [20], 'lanes': [2]} is {'lanes': 2, 'width': 20}
fgb True {'speed': [50], 'surface': [3]} is refused
fgb True {'surface': [3]} is refused
EXPECTED
echo "as described"
