#!/usr/bin/env bash
# numcodecs 0.16.6, zarr 3.1.6: BitRound turns some NaN into minus zero, and others into infinity.
#
# Guess: NaN and infinity stay what they are; only numbers lose bits.
# Seen: the NaN that NumPy writes (0x7fc00000) stays. The one that NVIDIA GPUs compute (0x7fffffff) becomes -0.0, and
# that of a file filled with bytes 0xff becomes 0.0: rounding carries into the exponent and the sign. A NaN with a small
# payload (0x7f800001) becomes infinity. For numpy.isnan all four are alike. Missing pixels of an array that was
# computed on a GPU are valid zeros once Zarr has stored it with this codec, for any number of bits kept.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numcodecs==0.16.6 zarr==3.1.6 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import numpy as np
import zarr
from zarr.codecs.numcodecs import BitRound

missing = np.array([0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
print(*np.isnan(missing))
for keepbits in (7, 10, 15, 22):
    array = zarr.create_array({}, data=missing, filters=[BitRound(keepbits=keepbits)])
    print(keepbits, *array[:])
PYTHON
diff "$folder/seen" - <<'EXPECTED'
True True True True
7 nan -0.0 0.0 inf
10 nan -0.0 0.0 inf
15 nan -0.0 0.0 inf
22 nan -0.0 0.0 inf
EXPECTED
echo "as described"
