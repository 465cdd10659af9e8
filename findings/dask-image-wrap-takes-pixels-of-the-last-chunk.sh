#!/usr/bin/env bash
# dask-image 2026.5.0, scipy 1.17.1: filters with mode="wrap" go round within the outermost chunk, not round the image.
#
# Guess: a filter that wraps gives what scipy.ndimage gives, whatever the chunks, as it does in the other four modes.
# Seen: a global row of twelve longitudes whose maximum is at the first one. Its western neighbour is the last pixel,
# which scipy sees. In chunks of six the last pixel gets a value of column five, the edge of its own chunk and its
# overlap; in chunks of four a 0. Uniform, maximum, median and Gaussian filters do so; convolve and correlate are right.
# Nothing warns, an image in one chunk is right, and so are all other modes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    dask-image==2026.5.0 dask==2026.8.0 scipy==1.17.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import dask.array
import numpy as np
import scipy.ndimage
from dask_image import ndfilters

row = np.zeros(12)
row[0], row[5] = 9, 5
for chunk in (12, 6, 4):
    found = ndfilters.maximum_filter(dask.array.from_array(row, chunks=chunk), size=3, mode="wrap").compute()
    print("maximum, chunks of", chunk, *found.astype(int))
print("maximum, scipy       ", *scipy.ndimage.maximum_filter(row, size=3, mode="wrap").astype(int))

image = np.random.default_rng(0).random((24, 24))
chunked = dask.array.from_array(image, chunks=12)
weights = np.arange(9.0).reshape(3, 3)
for name, options in (
    ("uniform_filter", {"size": 3}),
    ("maximum_filter", {"size": 3}),
    ("median_filter", {"size": 3}),
    ("gaussian_filter", {"sigma": 1, "truncate": 1}),
    ("sobel", {}),
    ("convolve", {"weights": weights}),
    ("correlate", {"weights": weights}),
):
    print(name, end="")
    for mode in ("wrap", "reflect", "mirror", "nearest", "constant"):
        found = getattr(ndfilters, name)(chunked, mode=mode, **options).compute()
        expected = getattr(scipy.ndimage, name)(image, mode=mode, **options)
        print(f", {mode}", int((~np.isclose(found, expected)).sum()), end="")
    print()
PYTHON
diff "$folder/seen" - <<'EXPECTED'
maximum, chunks of 12 9 9 0 0 5 5 5 0 0 0 0 9
maximum, chunks of 6 9 9 0 0 5 5 5 0 0 0 0 5
maximum, chunks of 4 9 9 0 0 5 5 5 0 0 0 0 0
maximum, scipy        9 9 0 0 5 5 5 0 0 0 0 9
uniform_filter, wrap 92, reflect 0, mirror 0, nearest 0, constant 0
maximum_filter, wrap 47, reflect 0, mirror 0, nearest 0, constant 0
median_filter, wrap 80, reflect 0, mirror 0, nearest 0, constant 0
gaussian_filter, wrap 92, reflect 0, mirror 0, nearest 0, constant 0
sobel, wrap 92, reflect 0, mirror 0, nearest 0, constant 0
convolve, wrap 0, reflect 0, mirror 0, nearest 0, constant 0
correlate, wrap 0, reflect 0, mirror 0, nearest 0, constant 0
EXPECTED
echo "as described"
