#!/usr/bin/env bash
# edt 3.1.2, tifffile 2026.3.3: the distance transform of a big-endian label image is 0 everywhere.
#
# Guess: distances are those of scipy, whatever the type of the labels and the order of their bytes, or it is refused.
# Seen: a block of 5 x 7 pixels that is mapped from a big-endian TIFF has the distance 0 in every pixel, in edt and in
# edtsq, and in the inside of sdf, whose outside is right. In native order it has 3 in the middle. So it is for integers
# of all sizes and for floats, in rows, images and stacks. Nothing warns. An erosion by a distance removes all labels,
# and weight maps have no weight, for files of one byte order only: imread turns the same file into native order, a
# memory map keeps it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    edt==3.1.2 numpy==2.4.6 scipy==1.17.1 tifffile==2026.3.3
cd "$folder"
"$folder/venv/bin/python" -W error - > "$folder/seen" <<'PYTHON'
import edt
import numpy as np
import tifffile
from scipy import ndimage

block = np.zeros((7, 9), np.uint16)
block[1:6, 1:8] = 1
tifffile.imwrite("labels.tif", block, byteorder=">")
images = {"imread": tifffile.imread("labels.tif"), "memmap": tifffile.memmap("labels.tif", mode="r")}
images |= {kind: block.astype(kind) for kind in (">i4", ">i8", ">f4")}
images |= {"row": images["memmap"][3], "stack": np.stack([block] * 5).astype(">u2")}
for name, image in images.items():
    signed = edt.sdf(image)
    print(
        name, image.dtype.str, "sum:", image.sum(),
        "edt:", edt.edt(image).max(), "edtsq:", edt.edtsq(image).max(), "sdf:", signed.min().round(2), signed.max(),
        "scipy:", ndimage.distance_transform_edt(image).max(),
    )
PYTHON
diff "$folder/seen" - <<'EXPECTED'
imread <u2 sum: 35 edt: 3.0 edtsq: 9.0 sdf: -1.41 3.0 scipy: 3.0
memmap >u2 sum: 35 edt: 0.0 edtsq: 0.0 sdf: -1.41 0.0 scipy: 3.0
>i4 >i4 sum: 35 edt: 0.0 edtsq: 0.0 sdf: -1.41 0.0 scipy: 3.0
>i8 >i8 sum: 35 edt: 0.0 edtsq: 0.0 sdf: -1.41 0.0 scipy: 3.0
>f4 >f4 sum: 35.0 edt: 0.0 edtsq: 0.0 sdf: -1.41 0.0 scipy: 3.0
row >u2 sum: 7 edt: 0.0 edtsq: 0.0 sdf: -1.0 0.0 scipy: 4.0
stack >u2 sum: 175 edt: 0.0 edtsq: 0.0 sdf: -1.41 0.0 scipy: 3.0
EXPECTED
echo "as described"
