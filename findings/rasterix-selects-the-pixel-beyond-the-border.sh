#!/usr/bin/env bash
# rasterix 0.2.4, xarray 2026.9.0: sel by the extent of a tile returns one more column and row than the tile has.
#
# Guess: sel(x=slice(...), y=slice(...)) takes the pixels whose centres lie between both ends, with an index of rasterix
# as without: the index only computes the coordinates that xarray stores.
# Seen: it takes each pixel that holds an end. A pixel begins at its left and upper border, so that an end on a border
# takes the pixel beyond it. The four quadrants of 10 by 10 pixels have 25 each without the index; with it they
# have 36, 30, 30 and 25, in sum 121. An extent that misses the centre of a pixel takes it as well. Coordinates and
# values are right, and nothing warns. Tiles cut by their extents overlap by a pixel, and sums count it twice.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    rasterix==0.2.4 rioxarray==0.19.0 rasterio==1.4.4 xarray==2026.9.0 pyproj==3.7.2 numpy==2.4.6 pandas==2.3.3
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import numpy as np
import rasterix
import rioxarray  # noqa: F401
import xarray

west, south = 500_000, 4_000_000
places = np.arange(10) + 0.5
plain = xarray.DataArray(np.ones((10, 10)), {"y": south + places[::-1], "x": west + places}, ("y", "x"), "ones")
plain = plain.to_dataset().rio.write_crs("EPSG:32637")
for name, scene in (("xarray", plain), ("rasterix", rasterix.assign_index(plain))):
    sums = [
        int(scene.sel(x=slice(west + left, west + left + 5), y=slice(south + lower + 5, south + lower)).ones.sum())
        for lower in (0, 5) for left in (0, 5)
    ]
    print(name, "quadrants", sums, sum(sums))
    for start, end in ((2, 4), (2.6, 4.4)):
        found = scene.sel(x=slice(west + start, west + end), y=slice(south + end, south + start))
        print(name, start, end, (found.x.values - west).tolist(), (found.y.values - south).tolist())
PYTHON
diff "$folder/seen" - <<'EXPECTED'
xarray quadrants [25, 25, 25, 25] 100
xarray 2 4 [2.5, 3.5] [3.5, 2.5]
xarray 2.6 4.4 [3.5] [3.5]
rasterix quadrants [30, 25, 36, 30] 121
rasterix 2 4 [2.5, 3.5, 4.5] [3.5, 2.5, 1.5]
rasterix 2.6 4.4 [2.5, 3.5, 4.5] [4.5, 3.5, 2.5]
EXPECTED
echo "as described"
