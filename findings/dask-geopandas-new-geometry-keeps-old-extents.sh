#!/usr/bin/env bash
# dask-geopandas 0.5.0, geopandas 1.2.0: frame["geometry"] = ... keeps the old extents; clip, cx and sjoin lose rows.
#
# Guess: a new geometry drops the known extents of the partitions (spatial_partitions), as d.assign(geometry=...) does.
# Seen: assign drops them. Item assignment, the form of geopandas, keeps them: 100 points in four partitions are
# buffered or moved, and a box that holds 41 of them finds 25 and 6. total_bounds of the same frame is right, nothing
# warns, and the same lines in geopandas find 41. Which features are lost depends on the number of partitions.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    dask-geopandas==0.5.0 dask==2026.8.0 geopandas==1.2.0 shapely==2.2.0 pyproj==3.7.2 pyarrow==26.0.1 numpy==2.4.6 \
    pandas==2.3.3
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import dask_geopandas
import geopandas
import numpy as np
from shapely import box

points = geopandas.GeoDataFrame(geometry=geopandas.points_from_xy(np.arange(100.0), np.zeros(100)), crs="EPSG:32637")
for name, change, searched in (
    ("buffer", lambda geometry: geometry.buffer(20), box(40, -1, 40.5, 1)),
    ("translate", lambda geometry: geometry.translate(50, 0), box(90, -1, 130, 1)),
):
    frame = dask_geopandas.from_geopandas(points, npartitions=4)
    frame.calculate_spatial_partitions()
    assigned = frame.assign(geometry=change(frame.geometry))
    print(name, "by assign, extents known:", assigned.spatial_partitions is not None)
    frame["geometry"] = change(frame.geometry)
    print(name, "by item, extents:", *frame.spatial_partitions.total_bounds, "bounds:", *frame.total_bounds.compute())
    west, south, east, north = searched.bounds
    area = geopandas.GeoDataFrame(geometry=[searched], crs="EPSG:32637")
    area_in_dask = dask_geopandas.from_geopandas(area, npartitions=1)
    area_in_dask.calculate_spatial_partitions()
    whole = frame.compute()
    print("clip", len(dask_geopandas.clip(frame, searched).compute()), "of", len(geopandas.clip(whole, searched)))
    print("cx", len(frame.cx[west:east, south:north].compute()), "of", len(whole.cx[west:east, south:north]))
    print("sjoin", len(dask_geopandas.sjoin(frame, area_in_dask).compute()), "of", len(geopandas.sjoin(whole, area)))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
buffer by assign, extents known: False
buffer by item, extents: 0.0 0.0 99.0 0.0 bounds: -20.0 -20.0 119.0 20.0
clip 25 of 41
cx 25 of 41
sjoin 25 of 41
translate by assign, extents known: False
translate by item, extents: 0.0 0.0 99.0 0.0 bounds: 50.0 0.0 149.0 0.0
clip 6 of 41
cx 6 of 41
sjoin 6 of 41
EXPECTED
echo "as described"
