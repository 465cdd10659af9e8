#!/usr/bin/env bash
# blosc2 4.14.1: the remainder of a negative number has the sign of the number, not of the divisor as in NumPy.
#
# Guess: a % b is what it is in Python and NumPy, as the documentation of blosc2.remainder says in as many words.
# Seen: -30 % 360 is -30, not 330, for integers and for floats, as an operator, as a function and in an expression
# written as text. Its // rounds down as Python's does, so that a // b * b + a % b is not a any more. Bearings and
# longitudes that are brought into their range this way stay outside, the negative ones alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check blosc2==4.14.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import blosc2
import numpy as np

for dtype in (np.int32, np.float64):
    bearings = np.array([-400, -30, 30, 400], dtype)
    array = blosc2.asarray(bearings)
    results = {
        "numpy": bearings % 360,
        "operator": array % 360,
        "function": blosc2.remainder(array, blosc2.asarray(np.full(4, 360, dtype))),
        "text": blosc2.lazyexpr("array % 360", {"array": array}),
        "quotient * 360 + remainder": (array // 360) * 360 + array % 360,
    }
    for name, values in results.items():
        print(np.dtype(dtype), name, *values[:].astype(int))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
int32 numpy 320 330 30 40
int32 operator -40 -30 30 40
int32 function -40 -30 30 40
int32 text -40 -30 30 40
int32 quotient * 360 + remainder -400 -30 30 400
float64 numpy 320 330 30 40
float64 operator -40 -30 30 40
float64 function -40 -30 30 40
float64 text -40 -30 30 40
float64 quotient * 360 + remainder -400 -30 30 400
EXPECTED
echo "as described"
