#!/usr/bin/env bash
# mapclassify 2.10.0: one missing value puts the highest values into the lowest class.
#
# Guess: the valid values keep their classes if one of the others is NaN, or a classifier refuses NaN.
# Seen: Quantiles counts NaN as the highest value: its limits rise, the last is NaN, and what no limit covers falls into
# class 0, where the lowest values are: 101 and 102 beside 1, 2 and 3. MaximumBreaks, FisherJenks and StdMean put all
# values into class 0. EqualInterval keeps the classes. NaN itself is in class 0, the lowest, in all of them. The
# documentation is silent, and so is the library. A map of a column with a gap shows its peaks as its lows.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    mapclassify==2.10.0 numpy==2.4.6 scipy==1.17.1 pandas==3.1.1 scikit-learn==1.9.1 networkx==3.6.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import mapclassify
import numpy as np

values = np.array([1, 2, 3, 10, 11, 12, 100, 101, 102.0])
gap = np.where(values == 11, np.nan, values)
for name in ("Quantiles", "MaximumBreaks", "FisherJenks", "StdMean", "EqualInterval"):
    options = {} if name == "StdMean" else {"k": 3}
    for column in (gap[~np.isnan(gap)], gap):
        classes = getattr(mapclassify, name)(column, **options)
        print(name, *classes.yb, "limits:", *classes.bins.round(1))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
Quantiles 0 0 0 1 1 2 2 2 limits: 5.3 70.7 102.0
Quantiles 0 0 0 1 0 1 1 0 0 limits: 7.7 100.3 nan
MaximumBreaks 0 0 0 1 1 2 2 2 limits: 6.5 56.0 102.0
MaximumBreaks 0 0 0 0 0 0 0 0 0 limits: nan 56.0 nan
FisherJenks 0 0 0 1 1 2 2 2 limits: 3.0 12.0 102.0
FisherJenks 0 0 0 0 0 0 0 0 0 limits: 102.0 102.0 nan
StdMean 2 2 2 2 2 3 3 3 limits: -57.7 -8.1 90.9 140.4
StdMean 0 0 0 0 0 0 0 0 0 limits: nan nan nan nan
EqualInterval 0 0 0 0 0 2 2 2 limits: 34.7 68.3 102.0
EqualInterval 0 0 0 0 0 0 2 2 2 limits: 34.7 68.3 102.0
EXPECTED
echo "as described"
