#!/usr/bin/env bash
# Pillow 13.0.0, OpenCV 5.0.0, rasterio 1.4.4: 12-bit pixels are multiplied by 16, each library in another format.
#
# Guess: the numbers of one image, written as GeoTIFF and as JPEG 2000 of 12 bits, are the same in every reader.
# Seen: 500 reads as 500 by GDAL in both files. Pillow returns 500 for the TIFF and 8000 for the JPEG 2000; OpenCV,
# with IMREAD_UNCHANGED, 8000 for the TIFF and 500 for the JPEG 2000. Nothing warns, and the two agree on neither file.
# At 15 bits, as Sentinel-2 has them in JPEG 2000, Pillow doubles; OpenCV multiplies TIFFs of 14 bits by four.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    pillow==13.0.0 opencv-python-headless==5.0.0.93 rasterio==1.4.4 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import cv2
import numpy as np
import rasterio
from PIL import Image

pixels = np.random.default_rng(0).integers(0, 1024, (1, 64, 64), dtype=np.uint16)
pixels[0, 0, 0] = 500
readers = {
    "gdal": lambda path: rasterio.open(path).read(1),
    "pillow": lambda path: np.asarray(Image.open(path)),
    "opencv": lambda path: cv2.imread(path, cv2.IMREAD_UNCHANGED),
}
lossless = {"QUALITY": 100, "REVERSIBLE": "YES"}
for bits, suffix, driver, options in (
    (12, "tif", "GTiff", {}),
    (12, "jp2", "JP2OpenJPEG", lossless),
    (14, "tif", "GTiff", {}),
    (15, "jp2", "JP2OpenJPEG", lossless),
    (16, "tif", "GTiff", {}),
    (16, "jp2", "JP2OpenJPEG", lossless),
):
    path = f"{bits}.{suffix}"
    shape = {"width": 64, "height": 64, "count": 1, "dtype": "uint16"}
    with rasterio.open(path, "w", driver=driver, NBITS=bits, **shape, **options) as file:
        file.write(pixels)
    for name, read in readers.items():
        try:
            image = read(path).astype(int)
        except OSError as error:
            print(bits, suffix, name, type(error).__name__)
            continue
        factor = image[0, 0] // 500
        print(bits, suffix, name, image[0, 0], "all by", factor, (image == pixels[0] * factor).all())
PYTHON
diff "$folder/seen" - <<'EXPECTED'
12 tif gdal 500 all by 1 True
12 tif pillow 500 all by 1 True
12 tif opencv 8000 all by 16 True
12 jp2 gdal 500 all by 1 True
12 jp2 pillow 8000 all by 16 True
12 jp2 opencv 500 all by 1 True
14 tif gdal 500 all by 1 True
14 tif pillow UnidentifiedImageError
14 tif opencv 2000 all by 4 True
15 jp2 gdal 500 all by 1 True
15 jp2 pillow 1000 all by 2 True
15 jp2 opencv 500 all by 1 True
16 tif gdal 500 all by 1 True
16 tif pillow 500 all by 1 True
16 tif opencv 500 all by 1 True
16 jp2 gdal 500 all by 1 True
16 jp2 pillow 500 all by 1 True
16 jp2 opencv 500 all by 1 True
EXPECTED
echo "as described"
