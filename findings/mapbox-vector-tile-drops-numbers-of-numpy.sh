#!/usr/bin/env bash
# mapbox-vector-tile 2.2.0: properties that are NumPy integers, truth values or float32 are missing from the tile.
#
# Guess: a number is stored, whether Python or NumPy holds it, or encode refuses a type that it does not know.
# Seen: of one road the float64 speed arrives, since NumPy's float64 is a Python float. The int64 lanes, the truth value
# oneway and the float32 width are left out, key and value, and nothing warns. Python's own numbers all arrive, and an
# id that is a NumPy integer arrives too. With values taken from columns, as zip does, roads lose their classes and lane
# counts; with rows of a mixed table, which pandas turns into Python's numbers, they keep them, except for nullable
# integers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    mapbox-vector-tile==2.2.0 shapely==2.2.0 numpy==2.4.6 pandas==2.3.3
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import mapbox_vector_tile
import numpy as np
import pandas
from shapely import LineString

table = pandas.DataFrame({"speed": [50.5], "lanes": [2], "oneway": [True], "width": np.array([7.5], np.float32)})
table["class"] = pandas.array([3], dtype="Int64")
table["name"] = ["Long Road"]
for source, properties in (
    ("columns", {name: table[name].values[0] for name in table}),
    ("row", next(table.itertuples(index=False))._asdict()),
    ("python", {"speed": 50.5, "lanes": 2, "oneway": True, "width": 7.5, "class": 3, "name": "Long Road"}),
):
    road = {"id": np.int64(7), "geometry": LineString([(0, 0), (9, 9)]), "properties": properties}
    tile = mapbox_vector_tile.decode(mapbox_vector_tile.encode([{"name": "roads", "features": [road]}]))
    found = tile["roads"]["features"][0]
    print(source, found["id"], found["properties"])
PYTHON
diff "$folder/seen" - <<'EXPECTED'
columns 7 {'speed': 50.5, 'name': 'Long Road'}
row 7 {'speed': 50.5, 'lanes': 2, 'oneway': True, 'width': 7.5, 'name': 'Long Road'}
python 7 {'speed': 50.5, 'lanes': 2, 'oneway': True, 'width': 7.5, 'class': 3, 'name': 'Long Road'}
EXPECTED
echo "as described"
