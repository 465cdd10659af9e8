#!/usr/bin/env bash
# spyndex 0.12.0: an index of a scene in uint16, as Sentinel-2 and Landsat deliver it, wraps below zero.
#
# Guess: computeIndex converts its bands to float before it evaluates the formula, as its results are floats.
# Seen: NDVI of water (near infrared 300, red 500) is 81.67 in place of -0.25, for NumPy, xarray and pandas alike; that
# of plants (3000 and 1000) is right, and so are both for plain numbers and for float bands. The difference is taken in
# uint16 before the division makes floats of it, so every index is wrong exactly where it is negative: water, snow, bare
# ground. Nothing warns, even with all warnings as errors.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    spyndex==0.12.0 numpy==2.4.6 xarray==2026.9.0 pandas==2.3.3 > /dev/null
cd "$folder"
"$folder/venv/bin/python" - > "$folder/seen" <<'PYTHON'
import warnings

import numpy as np
import pandas as pd
import spyndex
import xarray as xr

warnings.simplefilter("error")
infrared, red = np.array([3000, 300], "uint16"), np.array([1000, 500], "uint16")
for name, kind in (("NumPy", np.asarray), ("xarray", xr.DataArray), ("pandas", pd.Series)):
    whole = spyndex.computeIndex("NDVI", {"N": kind(infrared), "R": kind(red)})
    floats = spyndex.computeIndex("NDVI", {"N": kind(infrared.astype(float)), "R": kind(red.astype(float))})
    print(name, *np.asarray(whole).round(2), "of floats", *np.asarray(floats).round(2))
print("numbers", spyndex.computeIndex("NDVI", {"N": 300, "R": 500}))
print("NDWI", *spyndex.computeIndex("NDWI", {"N": infrared, "G": red}).round(2))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
NumPy 0.5 81.67 of floats 0.5 -0.25
xarray 0.5 81.67 of floats 0.5 -0.25
pandas 0.5 81.67 of floats 0.5 -0.25
numbers -0.25
NDWI 15.88 0.25
EXPECTED
echo "as described"
