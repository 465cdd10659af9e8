#!/usr/bin/env bash
# imagecodecs 2026.3.6: big-endian uint16 images are stored with swapped bytes in JPEG 2000, HTJ2K and TIFF.
#
# Guess: an encoder stores the numbers of an array, whatever the order of its bytes, or refuses it.
# Seen: a uint16 image in big-endian order, as NumPy maps files of that order, is refused as PNG, LERC and JPEG XL.
# jpeg2k_encode, htj2k_encode and tiff_encode take the bytes as they lie: 1 comes back as 256 and 500 as 62465, no pixel
# is right. Nothing warns, shape and type are as expected, and the same image in native order is exact in all six.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile imagecodecs==2026.3.6 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import imagecodecs
import numpy as np

pixels = np.arange(256, dtype=np.uint16).reshape(16, 16)
pixels[0, :2] = 1, 500
for name in ("jpeg2k", "htj2k", "tiff", "png", "lerc", "jpegxl"):
    encode, decode = (getattr(imagecodecs, f"{name}_{step}") for step in ("encode", "decode"))
    options = {"lossless": True} if name == "jpegxl" else {}
    for order, image in (("native", pixels), ("big-endian", pixels.astype(">u2"))):
        try:
            found = decode(encode(image, **options))
        except Exception as error:
            print(name, order, "refused by", type(error).__name__)
        else:
            print(name, order, found.dtype, found[0, :2].tolist(), f"{np.count_nonzero(found == pixels)} of 256")
PYTHON
diff "$folder/seen" - <<'EXPECTED'
jpeg2k native uint16 [1, 500] 256 of 256
jpeg2k big-endian uint16 [256, 62465] 0 of 256
htj2k native uint16 [1, 500] 256 of 256
htj2k big-endian uint16 [256, 62465] 0 of 256
tiff native uint16 [1, 500] 256 of 256
tiff big-endian uint16 [256, 62465] 0 of 256
png native uint16 [1, 500] 256 of 256
png big-endian refused by ValueError
lerc native uint16 [1, 500] 256 of 256
lerc big-endian refused by ValueError
jpegxl native uint16 [1, 500] 256 of 256
jpegxl big-endian refused by ValueError
EXPECTED
echo "as described"
