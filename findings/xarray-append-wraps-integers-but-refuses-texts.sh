#!/usr/bin/env bash
# xarray 2026.9.0, zarr 3.1.6: numbers that are appended to a store of a smaller type wrap, texts that are longer raise.
#
# Guess: to_zarr(append_dim=...) compares the types of both sides and refuses what would not fit, as its error about
# "Mismatched dtypes" says for texts.
# Seen: a text of 6 characters appended to texts of 2 is refused. The int64 values 300 and -1 appended to a uint8
# variable are stored as 44 and 255, and no warning tells. A 16-bit scene that is appended to a series of 8 bits has
# other pixel values.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    xarray==2026.9.0 zarr==3.1.6 numpy==2.4.6 pandas==2.3.3
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import numpy as np
import xarray

for old, new in (
    (np.array(["a1", "a2"]), np.array(["longer"])),
    (np.array([1, 2], np.uint8), np.array([300, -1])),
):
    xarray.Dataset({"values": ("scene", old)}).to_zarr("scenes.zarr", mode="w")
    try:
        xarray.Dataset({"values": ("scene", new)}).to_zarr("scenes.zarr", append_dim="scene")
        stored = xarray.open_zarr("scenes.zarr")["values"].values[2:]
        print(new.dtype, "to", old.dtype, new.tolist(), "are", stored.tolist())
    except ValueError as error:
        print(new.dtype, "to", old.dtype, str(error)[:17])
PYTHON
diff "$folder/seen" - <<'EXPECTED'
<U6 to <U2 Mismatched dtypes
int64 to uint8 [300, -1] are [44, 255]
EXPECTED
echo "as described"
