#!/usr/bin/env bash
# scikit-image 0.26.0: skeletonize of a diagonal line two pixels wide keeps half of it, or all, by its direction.
#
# Guess: the skeleton of a long thin line is about as long as the line, in any direction.
# Seen: a line of two pixels per row that leads down to the right, 100 rows long, has a skeleton in 51 rows: the
# upper half is gone, in one piece. Its mirror image, down to the left, keeps 99 rows, and so do lines of one or
# three pixels, and method="lee". A road mask of this width loses half of such a road, and nothing warns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check scikit-image==0.26.0 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - > "$folder/seen" <<'PYTHON'
import numpy as np
from skimage.morphology import skeletonize

for width in (1, 2, 3):
    line = np.zeros((120, 120), bool)
    for row in range(100):
        line[10 + row, 10 + row : 10 + row + width] = True
    results = skeletonize(line), skeletonize(line[:, ::-1]), skeletonize(line, method="lee")
    print(width, *(np.count_nonzero(lines.any(axis=1)) for lines in results))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
1 100 100 100
2 51 99 99
3 100 100 98
EXPECTED
echo "as described"
