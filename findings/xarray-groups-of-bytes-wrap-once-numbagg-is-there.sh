#!/usr/bin/env bash
# xarray 2026.9.0, flox 0.11.2, numbagg 0.9.6: sums of groups of small integers wrap as soon as numbagg is installed.
#
# Guess: numbagg makes groupby and resample faster and changes no number; flox chooses it where it can do the work.
# Seen: 60 days of 200 in uint8, summed by month with skipna=True, are 6,200 and 5,800. Once numbagg is installed,
# without any change of the code, they are 56 and 168: it adds up in the type of the pixels, and flox widens to uint64
# what has wrapped. Of 3,000 in int16 they are 27,464 and 21,464 in place of 93,000 and 87,000. resample does the same.
# Means, floats, sums without skipna and those with use_flox=False are right. Nothing warns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    xarray==2026.9.0 flox==0.11.2 numpy==2.4.6 pandas==3.1.1 scipy==1.17.1 numpy-groupies==0.16.0
cd "$folder"
cat > sums.py <<'PYTHON'
import importlib.util

import numpy as np
import xarray

print("numbagg:", importlib.util.find_spec("numbagg") is not None)
days = np.arange("2020-01-01", "2020-03-01", dtype="datetime64[D]").astype("datetime64[ns]")
for kind, value in (("uint8", 200), ("int16", 3_000), ("float32", 200)):
    series = xarray.DataArray(np.full(60, value, kind), dims="time", coords={"time": days})
    months = series.groupby("time.month")
    results = {
        "sum": months.sum(), "skipna": months.sum(skipna=True),
        "resample": series.resample(time="MS").sum(skipna=True), "mean": months.mean(skipna=True),
    }
    with xarray.set_options(use_flox=False):
        results["no flox"] = months.sum(skipna=True)
    print(kind, *(f"{name}: {result.values[0]:g} {result.values[1]:g}" for name, result in results.items()), sep="; ")
PYTHON
"$folder/venv/bin/python" -W ignore sums.py > "$folder/seen"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    numbagg==0.9.6 numba==0.68.1 llvmlite==0.50.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore sums.py >> "$folder/seen"
diff "$folder/seen" - <<'EXPECTED'
numbagg: False
uint8; sum: 6200 5800; skipna: 6200 5800; resample: 6200 5800; mean: 200 200; no flox: 6200 5800
int16; sum: 93000 87000; skipna: 93000 87000; resample: 93000 87000; mean: 3000 3000; no flox: 93000 87000
float32; sum: 6200 5800; skipna: 6200 5800; resample: 6200 5800; mean: 200 200; no flox: 6200 5800
numbagg: True
uint8; sum: 6200 5800; skipna: 56 168; resample: 56 168; mean: 200 200; no flox: 6200 5800
int16; sum: 93000 87000; skipna: 27464 21464; resample: 27464 21464; mean: 3000 3000; no flox: 93000 87000
float32; sum: 6200 5800; skipna: 6200 5800; resample: 6200 5800; mean: 200 200; no flox: 6200 5800
EXPECTED
echo "as described"
