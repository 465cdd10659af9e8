#!/usr/bin/env bash
# albumentations 2.0.8 (OpenCV 5.0.0): distortions fill what is outside of the image in one band of four only.
#
# Guess: fill=255 is 255 in every band of a pixel from outside, as Affine, Rotate and PadIfNeeded have it.
# Seen: OpticalDistortion, ElasticTransform, GridDistortion and ThinPlateSpline give such pixels 255 in the first band
# and 0 in the others: a white collar is red. With more than four bands it is the first of every four: (255, 0, 0, 0,
# 255) of five. Nothing warns, and a test for the fill value in all bands finds no such pixel, so that it trains as
# imagery. A sequence with a value per band is right up to four bands.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    albumentations==2.0.8 albucore==0.0.24 opencv-python-headless==5.0.0.93 numpy==2.4.6 scipy==1.17.1
cd "$folder"
NO_ALBUMENTATIONS_UPDATE=1 "$folder/venv/bin/python" - > "$folder/seen" <<'PYTHON'
import albumentations as A
import numpy as np


def transforms(fill):
    return (
        A.Affine(translate_px={"x": (16, 16), "y": (0, 0)}, fill=fill, p=1),
        A.Rotate((45, 45), border_mode=0, fill=fill, p=1),
        A.OpticalDistortion(distort_limit=(0.9, 0.9), fill=fill, p=1),
        A.ElasticTransform(alpha=300, sigma=5, fill=fill, p=1),
        A.GridDistortion(num_steps=4, distort_limit=(0.5, 0.5), normalized=False, fill=fill, p=1),
        A.ThinPlateSpline(scale_range=(0.9, 0.9), fill=fill, p=1),
    )


for bands, fill in ((3, 255), (3, [255] * 3), (5, 255)):
    for transform in transforms(fill):
        image = np.full((64, 64, bands), 100, np.uint8)
        pixels = A.Compose([transform], seed=1)(image=image)["image"].reshape(-1, bands)
        values, counts = np.unique(pixels, axis=0, return_counts=True)
        common = [value.tolist() for value, count in zip(values, counts, strict=True) if count > 200]
        print(type(transform).__name__, "fill:", fill, "outside:", *(v for v in common if v[0] != 100))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
Affine fill: 255 outside: [255, 255, 255]
Rotate fill: 255 outside: [255, 255, 255]
OpticalDistortion fill: 255 outside: [255, 0, 0]
ElasticTransform fill: 255 outside: [255, 0, 0]
GridDistortion fill: 255 outside: [255, 0, 0]
ThinPlateSpline fill: 255 outside: [255, 0, 0]
Affine fill: [255, 255, 255] outside: [255, 255, 255]
Rotate fill: [255, 255, 255] outside: [255, 255, 255]
OpticalDistortion fill: [255, 255, 255] outside: [255, 255, 255]
ElasticTransform fill: [255, 255, 255] outside: [255, 255, 255]
GridDistortion fill: [255, 255, 255] outside: [255, 255, 255]
ThinPlateSpline fill: [255, 255, 255] outside: [255, 255, 255]
Affine fill: 255 outside: [255, 255, 255, 255, 255]
Rotate fill: 255 outside: [255, 255, 255, 255, 255]
OpticalDistortion fill: 255 outside: [255, 0, 0, 0, 255]
ElasticTransform fill: 255 outside: [255, 0, 0, 0, 255]
GridDistortion fill: 255 outside: [255, 0, 0, 0, 255]
ThinPlateSpline fill: 255 outside: [255, 0, 0, 0, 255]
EXPECTED
echo "as described"
