#!/usr/bin/env bash
# zarrs 0.2.3, zarr 3.1.6, numcodecs 0.16.6: the offset of FixedScaleOffset is a float32 in one pipeline only.
#
# Guess: an array of float64 or int64 written with numcodecs.fixedscaleoffset reads the same through zarr's own codec
# pipeline and through that of zarrs, whose documentation calls the codec fully compatible.
# Seen: zarrs keeps the offset and the scale as float32. Times with the offset 1700000060 read 60 seconds early,
# northings with 6174000.7 lie 0.2 m off, longitudes with 37.6173 0.2 m. What zarrs wrote is as far off for zarr. Each
# is exact in its own pipeline, so that a round trip shows nothing. Halves are also rounded to even by numcodecs and
# away from zero by zarrs: bytes differ under equal metadata.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    zarrs==0.2.3 zarr==3.1.6 numcodecs==0.16.6 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import numpy as np
import zarr
import zarrs  # noqa: F401
from zarr.codecs.numcodecs import FixedScaleOffset

pipelines = {"zarr": "zarr.core.codec_pipeline.BatchedCodecPipeline", "zarrs": "zarrs.ZarrsCodecPipeline"}
for name, offset, scale, values in (
    ("seconds", 1700000060, 1, np.array([1700000060, 1700000061, 1700000120])),
    ("northings", 6174000.7, 100, np.array([6174000.7, 6174001.2, 6174010.7])),
    ("longitudes", 37.6173, 1e7, np.array([37.6173, 37.6174, 37.6273])),
    ("halves", 0, 1, np.array([0.5, 1.5, -0.5, -2.5])),
):
    filters = [FixedScaleOffset(offset=offset, scale=scale, dtype=values.dtype.str, astype="<i4")]
    for writer, pipeline in pipelines.items():
        zarr.config.set({"codec_pipeline.path": pipeline})
        options = {"shape": values.shape, "chunks": values.shape, "dtype": values.dtype, "overwrite": True}
        zarr.create_array("store", filters=filters, compressors=None, fill_value=0, **options)[:] = values
        for reader, pipeline in pipelines.items():
            zarr.config.set({"codec_pipeline.path": pipeline})
            error = zarr.open_array("store", mode="r")[:] - values
            print(f"{name}, {writer} to {reader}, off by", *(f"{value:.6g}" for value in np.round(error, 7) + 0.0))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
seconds, zarr to zarr, off by 0 0 0
seconds, zarr to zarrs, off by -60 -60 -60
seconds, zarrs to zarr, off by 60 60 60
seconds, zarrs to zarrs, off by 0 0 0
northings, zarr to zarr, off by 0 0 0
northings, zarr to zarrs, off by -0.2 -0.2 -0.2
northings, zarrs to zarr, off by 0.2 0.2 0.2
northings, zarrs to zarrs, off by 0 0 0
longitudes, zarr to zarr, off by 0 0 0
longitudes, zarr to zarrs, off by -1.9e-06 -1.9e-06 -1.9e-06
longitudes, zarrs to zarr, off by 1.9e-06 1.9e-06 1.9e-06
longitudes, zarrs to zarrs, off by 0 0 0
halves, zarr to zarr, off by -0.5 0.5 0.5 0.5
halves, zarr to zarrs, off by -0.5 0.5 0.5 0.5
halves, zarrs to zarr, off by 0.5 0.5 -0.5 -0.5
halves, zarrs to zarrs, off by 0.5 0.5 -0.5 -0.5
EXPECTED
echo "as described"
