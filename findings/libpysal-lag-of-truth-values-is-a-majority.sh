#!/usr/bin/env bash
# libpysal 4.14.1, geopandas 1.2.0: the spatial lag of a column of truth values is a majority, not a share or a number.
#
# Guess: Graph.lag of True and False is what it is of 1 and 0: with weights that add up to one the share of neighbours
# that are True, with binary weights their number.
# Seen: six houses in a row, the first and the last damaged, three nearest neighbours each. As 1 and 0 the shares are
# 0.33 for three of them and 0 for the others; as truth values the lag is False for all, also with binary weights: bool
# counts as categorical and gets the commonest value. categorical=False, which the documentation offers for continuous
# columns, changes nothing. Graph.apply of the same column adds up and averages numbers. Nothing warns unless there is a
# tie, which an odd number of neighbours excludes. Masks of damage and comparisons such as height > 10 lose their rare
# neighbours.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    libpysal==4.14.1 geopandas==1.2.0 shapely==2.2.0 pyproj==3.7.2 numpy==2.4.6 scipy==1.17.1 pandas==3.1.1 \
    scikit-learn==1.9.1
cd "$folder"
"$folder/venv/bin/python" -W error - > "$folder/seen" <<'PYTHON'
import geopandas
from libpysal.graph import Graph

houses = geopandas.GeoDataFrame(
    {"damaged": [True, False, False, False, False, True]},
    geometry=geopandas.points_from_xy([0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 0]),
)
near = Graph.build_knn(houses, k=3)
for name, graph in (("number", near), ("share", near.transform("r"))):
    for kind in ("int64", "uint8", "float64", "bool"):
        column = houses["damaged"].astype(kind)
        lags = graph.lag(column)
        print(name, kind, *lags.round(2) if lags.dtype != bool else lags, "mean:", f"{lags.mean():.2f}")
        if kind == "bool":
            print(name, kind, "categorical=False:", *graph.lag(column, categorical=False))
            print(name, kind, "pandas:", *graph.apply(column, "sum" if name == "number" else "mean").round(2))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
number int64 0.0 1.0 1.0 0.0 1.0 0.0 mean: 0.50
number uint8 0.0 1.0 1.0 0.0 1.0 0.0 mean: 0.50
number float64 0.0 1.0 1.0 0.0 1.0 0.0 mean: 0.50
number bool False False False False False False mean: 0.00
number bool categorical=False: False False False False False False
number bool pandas: 0 1 1 0 1 0
share int64 0.0 0.33 0.33 0.0 0.33 0.0 mean: 0.17
share uint8 0.0 0.33 0.33 0.0 0.33 0.0 mean: 0.17
share float64 0.0 0.33 0.33 0.0 0.33 0.0 mean: 0.17
share bool False False False False False False mean: 0.00
share bool categorical=False: False False False False False False
share bool pandas: 0.0 0.33 0.33 0.0 0.33 0.0
EXPECTED
echo "as described"
