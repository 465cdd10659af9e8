#!/usr/bin/env bash
# esda 2.9.0, shapely 2.2.0: the moment of inertia of a house in UTM coordinates is negative.
#
# Guess: the moment about a polygon's own centroid does not depend on where the polygon lies.
# Seen: a square of 10 m has 1,667 m4 at the origin of the CRS, 1,576 a thousand kilometres north, and -9,096 or -27,784
# at usual UTM coordinates. Its compactness, 0.95 and by the documentation between 0 and 1, becomes 1.01, -0.17 and
# -0.06. The moment is computed about the origin and then moved, so that all digits cancel; the house's own centroid as
# ref_pt does not help. A block of 100 m is off by a percent. Nothing warns. Compactness of buildings is noise unless
# each is moved to the origin first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    esda==2.9.0 libpysal==4.14.1 geopandas==1.2.0 shapely==2.2.0 pyproj==3.7.2 numpy==2.4.6 scipy==1.17.1 \
    pandas==3.1.1 scikit-learn==1.9.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
from esda.shape import moment_of_inertia
from shapely import affinity, box

for corner in ((0, 0), (100_000, 1_000_000), (300_000, 4_500_000), (500_000, 6_000_000)):
    house, block = (affinity.translate(box(0, 0, side, side), *corner) for side in (10, 100))
    moment, about = moment_of_inertia([house])[0], moment_of_inertia([house], ref_pt=house.centroid)[0]
    ratios = [moment_of_inertia([square], normalize=True)[0] for square in (house, block)]
    print(*corner, "moment:", round(moment), round(about), "compactness:", *(f"{ratio:.2f}" for ratio in ratios))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
0 0 moment: 1667 1667 compactness: 0.95 0.95
100000 1000000 moment: 1576 1576 compactness: 1.01 0.96
300000 4500000 moment: -9096 -9096 compactness: -0.17 0.96
500000 6000000 moment: -27784 -27784 compactness: -0.06 0.95
EXPECTED
echo "as described"
