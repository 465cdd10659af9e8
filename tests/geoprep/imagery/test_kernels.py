"""Every compiled loop against a slow one that is plainly right."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from geoprep import imagery
from geoprep.imagery import kernels

DTYPES = st.sampled_from(["uint8", "uint16"])
MASKS = st.sampled_from(["none", "random", "stripes", "nothing"])
ALL_VALID = np.empty((0, 0), np.uint8)


def random_source(seed, height, width, bands, dtype, mask="none"):
    """Return values (y, x, band), valid (y, x) or (0, 0), and that mask in full."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, np.iinfo(dtype).max + 1, (height, width, bands)).astype(dtype)
    full = np.ones((height, width), np.uint8)
    if mask == "random":
        full = rng.integers(0, 2, (height, width)).astype(np.uint8)
    elif mask == "stripes":
        full[:, ::2] = 0  # halves of every block: the rule's own edge
    elif mask == "nothing":
        full[:] = 0
    return values, ALL_VALID if mask == "none" else full, full


def pixels_of(values, valid):
    return imagery.ImageWindow(values, valid if valid.size else None)


def random_tables(seed, bands, dtype):
    size = np.iinfo(dtype).max + 1
    return np.random.default_rng(seed + 1).integers(1, 256, (bands, size)).astype(np.uint8)


def block_means(values, full, factor):
    """Return means rounded half up, and where at least half of the block is valid."""
    height, width, bands = values.shape
    rows, cols = -(-height // factor), -(-width // factor)
    means = np.zeros((rows, cols, bands), np.int64)
    keep = np.zeros((rows, cols), bool)
    for y in range(rows):
        for x in range(cols):
            part = np.s_[y * factor : (y + 1) * factor, x * factor : (x + 1) * factor]
            inside = values[part][full[part] == 1].astype(np.int64)
            count = len(inside)
            keep[y, x] = count > 0 and 2 * count >= full[part].size
            if count:
                means[y, x] = (2 * inside.sum(axis=0) + count) // (2 * count)
    return means, keep


def mapped(means, keep, tables):
    bands = np.arange(means.shape[2])
    return np.where(keep[..., None], tables[bands, means], 0).astype(np.uint8)


@given(
    st.integers(0, 10**6),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([1, 3]),
    st.integers(1, 5),
    DTYPES,
    MASKS,
)
def test_block_means_leave_nodata_out(seed, height, width, bands, factor, dtype, mask):
    values, valid, full = random_source(seed, height, width, bands, dtype, mask)
    tables = random_tables(seed, bands, dtype)
    means, keep = block_means(values, full, factor)
    rows, cols = keep.shape
    out = np.full((rows + 1, cols + 2, bands), 77, np.uint8)
    out_valid = np.full((rows + 1, cols + 2), 88, np.uint8)
    ys, xs = (np.minimum(np.arange(0.0, n + factor, factor), n) for n in (height, width))
    imagery.render(pixels_of(values, valid), tables, ys, xs, out, out_valid)
    np.testing.assert_array_equal(out[:rows, :cols], mapped(means, keep, tables))
    np.testing.assert_array_equal(out_valid[:rows, :cols], keep)
    outside = np.ones(out.shape[:2], bool)
    outside[:rows, :cols] = False
    assert (out[outside] == 77).all(), "what lies beyond is left as it was"
    assert (out_valid[outside] == 88).all()


def map_area_means(values, valid, ys, xs, tables, out, out_valid):
    means, bands = np.empty(out.shape), (0,) * out.shape[2]
    kernels.area_means(values, valid, bands, ys, xs, means, out_valid)
    kernels.map_means(means, out_valid, bands, tables, out)


def overlaps(edges, length):
    """Return (pixel, source pixel) lengths of overlap as exact fractions."""
    cuts = [Fraction(float(e)) for e in edges]
    return [
        [max(Fraction(0), min(Fraction(i + 1), b) - max(Fraction(i), a)) for i in range(length)]
        for a, b in pairwise(cuts)
    ]


def area_means(values, full, ys, xs):
    """Return exact means (as fractions), and the valid share of every wanted pixel."""
    height, width, bands = values.shape
    along_y, along_x = overlaps(ys, height), overlaps(xs, width)
    means, shares = {}, {}
    for r, wy in enumerate(along_y):
        for c, wx in enumerate(along_x):
            inside = {
                (i, j): a * b * int(full[i, j])
                for i, a in enumerate(wy)
                for j, b in enumerate(wx)
                if a * b * int(full[i, j]) > 0
            }
            area = sum(inside.values(), Fraction(0))
            shares[r, c] = area / (sum(wy) * sum(wx))
            for k in range(bands):
                if area:
                    total = sum(w * int(values[i, j, k]) for (i, j), w in inside.items())
                    means[r, c, k] = total / area
    return means, shares


@given(
    st.integers(0, 10**6),
    st.integers(1, 6),
    st.integers(1, 6),
    st.floats(0.2, 4.0),
    st.floats(0.2, 4.0),
    DTYPES,
    MASKS,
)
def test_area_means_weigh_by_exact_overlap(seed, height, width, step_y, step_x, dtype, mask):
    values, valid, full = random_source(seed, height, width, 2, dtype, mask)
    size = np.iinfo(dtype).max + 1
    ys = np.minimum(np.arange(0, height + step_y, step_y), height)
    xs = np.minimum(np.arange(0, width + step_x, step_x), width)
    ys, xs = ys[np.r_[True, np.diff(ys) > 1e-6]], xs[np.r_[True, np.diff(xs) > 1e-6]]
    rows, cols = len(ys) - 1, len(xs) - 1
    # Low and high byte of the rounded mean: two bands of equal values tell it in full.
    values[..., 1] = values[..., 0]
    tables = np.stack([np.arange(size) % 256, np.arange(size) // 256]).astype(np.uint8)
    out = np.full((rows, cols, 2), 77, np.uint8)
    out_valid = np.full((rows, cols), 88, np.uint8)
    map_area_means(values, valid, ys, xs, tables, out, out_valid)
    means, shares = area_means(values, full, ys, xs)
    for (r, c), share in shares.items():
        got = int(out[r, c, 0]) + 256 * int(out[r, c, 1])
        if abs(share - Fraction(1, 2)) < Fraction(1, 10**6) and share != Fraction(1, 2):
            continue  # within the tolerance for rounded edges
        keep = share >= Fraction(1, 2)
        if mask != "none":
            assert out_valid[r, c] == keep
        if not keep:
            assert got == 0
            continue
        mean = means[r, c, 0] + Fraction(1, 2)
        nearest = mean.numerator // mean.denominator
        if abs(mean - round(mean)) > Fraction(1, 10**6) or mean.denominator == 1:
            assert got == nearest
        else:
            assert abs(got - nearest) <= 1


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9), DTYPES, MASKS)
def test_histograms_count_valid_values(seed, height, width, dtype, mask):
    values, valid, full = random_source(seed, height, width, 3, dtype, mask)
    counts = np.zeros((2, 3, np.iinfo(dtype).max + 1), np.int64)
    kernels.count_values(values, valid, (0,) * 3, counts)
    for band in range(3):
        inside = values[..., band][full == 1]
        expected = np.bincount(inside, minlength=counts.shape[2])
        np.testing.assert_array_equal(counts[:, band].sum(axis=0), expected)


@given(st.integers(0, 10**6), st.sampled_from([0.0, 3.0, 255.0, 3.5, 300.0, -9999.0, np.nan]))
def test_nodata_is_where_no_band_differs(seed, nodata):
    values = np.random.default_rng(seed).choice([0, 3, 7, 255], (6, 5, 3)).astype(np.uint8)
    if nodata in (0, 3, 255):
        values[2, 2] = nodata
    found = imagery.find_valid(values, 3, nodata)
    expected = (values.astype(float) != nodata).any(axis=2)
    np.testing.assert_array_equal(found, expected)


def test_bands_beyond_those_asked_for_are_not_looked_at():
    values = np.zeros((2, 2, 4), np.uint8)
    values[..., 3] = 255  # alpha
    found = imagery.find_valid(values, 3, 0.0)
    assert found.shape == (2, 2)
    assert not found.any()
