#!/usr/bin/env bash
# geocube 0.7.1, pandas 3.1.1: rasterized dates are numbers of any unit, stated as seconds; a missing date is 1677.
#
# Guess: make_geocube writes what the attribute of its result says, seconds since 1970, and missing dates as its fill
# value, 0; at least pandas.to_datetime, which its message recommends, turns the numbers back into the dates.
# Seen: numbers are counted in the unit of the column. A date of 2020 that was made in pandas becomes microseconds, the
# same date read from a GeoPackage milliseconds: to_datetime makes 19 January and 1 January 1970 of them. Both say
# seconds. A missing date is -9.22e18, not the stated 0: valid, the smallest of all, and NaN where no polygon is. With
# datetime_measurements they are nanoseconds, which still say seconds. Only a column in seconds is what it says.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    geocube==0.7.1 geopandas==1.2.0 pyogrio==0.13.0 rioxarray==0.19.0 rasterio==1.4.4 xarray==2026.9.0 odc-geo==0.5.3 \
    shapely==2.2.0 pyproj==3.7.2 numpy==2.4.6 pandas==3.1.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" 2> /dev/null <<'PYTHON'
import geopandas
import pandas
import shapely
from geocube.api.core import make_geocube

plots = geopandas.GeoDataFrame(
    {"built": pandas.to_datetime(["2020-01-01", None])}, geometry=[shapely.box(0, 0, 1, 1), shapely.box(2, 0, 3, 1)],
    crs="EPSG:32637",
)
plots.to_file("plots.gpkg")
for name, frame, options in (
    ("made", plots, {}),
    ("read", geopandas.read_file("plots.gpkg"), {}),
    ("in seconds", plots.astype({"built": "datetime64[s]"}), {}),
    ("measurement", plots, {"datetime_measurements": ["built"]}),
):
    built = make_geocube(frame, measurements=["built"], resolution=(-1, 1), **options).built
    numbers = built.values.ravel()
    print(name, *(f"{number:.4g}" for number in numbers), "|", pandas.to_datetime(numbers[:1])[0].date(), end=" | ")
    print(built.attrs["units"], "fill", built.attrs["_FillValue"])
PYTHON
diff "$folder/seen" - <<'EXPECTED'
made 1.578e+15 nan -9.223e+18 | 1970-01-19 | seconds from 1970-01-01T00:00:00 fill 0
read 1.578e+12 nan -9.223e+18 | 1970-01-01 | seconds from 1970-01-01T00:00:00 fill 0
in seconds 1.578e+09 nan -9.223e+18 | 1970-01-01 | seconds from 1970-01-01T00:00:00 fill 0
measurement 1.578e+18 nan -9.223e+18 | 2020-01-01 | seconds from 1970-01-01T00:00:00 fill 0
EXPECTED
echo "as described"
