#!/usr/bin/env bash
# topojson 2.2, geopandas 1.2.0: two lines that cross as the diagonals of a box become one line, drawn twice.
#
# Guess: a topology without quantisation returns the lines that it was given; only arcs with the same points are shared.
# Seen: of two streets that cross like an X the first takes the course of the second, whether or not they have a vertex
# where they cross, which way they run, and what else is in the table; both keep their attributes. Lines and rings
# count as duplicates if they have the same x and the same y, whichever belong together: of two tilted footprints in the
# same box one is left, twice. With topology=False it is the same, nothing warns, and a street that is moved by a tenth
# stays. Lines traced from pixels, whose coordinates repeat, lie on top of each other.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    topojson==2.2 geopandas==1.2.0 shapely==2.2.0 pyproj==3.7.2 numpy==2.4.6 pandas==2.3.3
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" 2> /dev/null <<'PYTHON'
import geopandas
import topojson

up, down = "LINESTRING (0 0, 2 2)", "LINESTRING (0 2, 2 0)"
for name, texts, options in (
    ("cross", [up, down], {}),
    ("no topology", [up, down], {"topology": False}),
    ("reversed", [up, "LINESTRING (2 0, 0 2)"], {}),
    ("vertex", ["LINESTRING (0 0, 1 1, 2 2)", "LINESTRING (0 2, 1 1, 2 0)"], {}),
    ("others", [up, down, "LINESTRING (2 2, 5 3)"], {}),
    ("rings", ["POLYGON ((1 0, 4 1, 3 4, 0 3, 1 0))", "POLYGON ((3 0, 4 3, 1 4, 0 1, 3 0))"], {}),
    ("moved", [up, "LINESTRING (0.1 2, 2.1 0)"], {}),
):
    lines = geopandas.GeoSeries.from_wkt(texts, crs="EPSG:32637")
    frame = geopandas.GeoDataFrame({"name": range(len(lines))}, geometry=lines)
    found = topojson.Topology(frame, prequantize=False, **options).to_gdf()
    print(name, *(f"{number}: {line.wkt}" for number, line in zip(found["name"], found.geometry)))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
cross 0: LINESTRING (0 2, 2 0) 1: LINESTRING (0 2, 2 0)
no topology 0: LINESTRING (0 2, 2 0) 1: LINESTRING (0 2, 2 0)
reversed 0: LINESTRING (2 0, 0 2) 1: LINESTRING (2 0, 0 2)
vertex 0: LINESTRING (0 2, 2 0) 1: LINESTRING (0 2, 2 0)
others 0: LINESTRING (0 2, 2 0) 1: LINESTRING (0 2, 2 0) 2: LINESTRING (2 2, 5 3)
rings 0: POLYGON ((3 0, 4 3, 1 4, 0 1, 3 0)) 1: POLYGON ((3 0, 4 3, 1 4, 0 1, 3 0))
moved 0: LINESTRING (0 0, 2 2) 1: LINESTRING (0.1 2, 2.1 0)
EXPECTED
echo "as described"
