"""Test mosaics of rasters against a choice of the deepest raster, pixel by pixel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geoprep.roads.centrelines.bands import ArrayBands, MosaicBands, Part

RIM, REACH = 4, 3

boxes = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 20), st.integers(1, 20)),
    min_size=1,
    max_size=4,
)
windows = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 40), st.integers(1, 40))


def deepest(parts, nodata, window):
    """Return what a mosaic of one band holds: the first of the deepest rasters, or no data."""
    top, left, height, width = window
    out = np.full((height, width), 0 if nodata is None else nodata, parts[0][0].dtype)
    for i, j in np.ndindex(height, width):
        best = -np.inf
        for values, (y0, x0, y1, x1) in parts:
            y, x = top + i - y0, left + j - x0
            depth = min(y, x, y1 - y0 - 1 - y, x1 - x0 - 1 - x, RIM)
            if depth < -REACH:
                continue
            value = values[min(max(y, 0), y1 - y0 - 1), min(max(x, 0), x1 - x0 - 1)]
            if depth >= 0 and (np.isnan(value) or (nodata is not None and value == nodata)):
                depth = -0.5
            if depth > best:
                best, out[i, j] = depth, value
    return out


@pytest.mark.parametrize(
    ("dtype", "nodata"), [("uint8", None), ("uint8", 3), ("float32", 0.1), ("float32", None)]
)
@given(boxes=boxes, window=windows, seed=st.integers(0, 1000))
def test_a_mosaic_holds_the_deepest_raster(dtype, nodata, boxes, window, seed):
    rng = np.random.default_rng(seed)
    parts = []
    for top, left, height, width in boxes:
        values = rng.integers(0, 6, (height, width)).astype(dtype)
        if nodata is not None:
            values[rng.random(values.shape) < 0.2] = nodata
        elif dtype == "float32":
            values[rng.random(values.shape) < 0.2] = np.nan
        parts.append((values, (top, left, top + height, left + width)))
    bands = [Part(ArrayBands(values[None]), nodata, box) for values, box in parts]
    mosaic = MosaicBands(bands, nodata=nodata, rim=RIM, reach=REACH)
    found = mosaic.read(1, window[0] - mosaic.origin[0], window[1] - mosaic.origin[1], *window[2:])
    value = nodata if nodata is None else np.dtype(dtype).type(nodata)
    assert np.array_equal(found, deepest(parts, value, window), equal_nan=dtype == "float32")
