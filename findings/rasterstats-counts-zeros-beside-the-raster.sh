#!/usr/bin/env bash
# rasterstats 0.21.0, rasterio 1.4.4: the part of a polygon that lies beside the raster is counted as valid zeros.
#
# Guess: pixels beside the raster are left out, since the documentation says of boundless=True, the default, that cells
# outside are treated as nodata.
# Seen: that holds only if the file states a nodata value. Of a raster of 20 everywhere without one, a polygon that
# overhangs by half has twice the pixels and the mean 10, and a polygon 100 km away has 100 pixels of 0. The argument
# nodata=255, which would seem to help, changes nothing. Statistics of fields at the border of a scene are too low.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    rasterstats==0.21.0 rasterio==1.4.4 shapely==2.1.2 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import numpy as np
import rasterio
import rasterstats
import shapely

inside, overhanging, away = shapely.box(5, 0, 10, 5), shapely.box(5, 0, 15, 5), shapely.box(100000, 0, 100010, 10)
for stated, argument in ((0, None), (None, None), (None, 255)):
    with rasterio.open(
        "scene.tif", "w", driver="GTiff", width=10, height=10, count=1, dtype="uint8", nodata=stated,
        crs="EPSG:32637", transform=rasterio.transform.from_origin(0, 10, 1, 1),
    ) as file:
        file.write(np.full((1, 10, 10), 20, np.uint8))
    for name, polygon in (("inside", inside), ("overhanging", overhanging), ("away", away)):
        (found,) = rasterstats.zonal_stats([polygon], "scene.tif", stats="count mean", nodata=argument)
        print(f"stated {stated}, argument {argument}, {name}: {found['count']} pixels, mean {found['mean']}")
PYTHON
diff "$folder/seen" - <<'EXPECTED'
stated 0, argument None, inside: 25 pixels, mean 20.0
stated 0, argument None, overhanging: 25 pixels, mean 20.0
stated 0, argument None, away: 0 pixels, mean None
stated None, argument None, inside: 25 pixels, mean 20.0
stated None, argument None, overhanging: 50 pixels, mean 10.0
stated None, argument None, away: 100 pixels, mean 0.0
stated None, argument 255, inside: 25 pixels, mean 20.0
stated None, argument 255, overhanging: 50 pixels, mean 10.0
stated None, argument 255, away: 100 pixels, mean 0.0
EXPECTED
echo "as described"
