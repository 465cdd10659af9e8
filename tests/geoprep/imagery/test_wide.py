"""Signed, 32-bit and floating imagery: exact where it can be, bounded where it is not."""

import numpy as np
import pytest
from helpers.consistency import assert_consistent
from helpers.factory import PLACES, build_of, plan_of, texture, write_image, write_scene

from geoprep.errors import SourceError
from geoprep.imagery.counts import count_source
from geoprep.imagery.decoding import ImageWindow
from geoprep.imagery.rescale import percentile_limits
from geoprep.imagery.wide import WIDE, held_dtype
from geoprep.sources.scene import Scene
from geoprep.store.scenes import read_image

RANGES = {
    "int16": (-1500, 700),
    "int32": (-(10**7), 10**6),
    "uint32": (5, 4 * 10**9),
    "float32": (-25.5, 3.25),
    "float64": (273.0, 311.0),
}


def spread(dtype, low, high, shape=(90, 70, 3), seed=0):
    """Return values of a dtype between two, some of them often."""
    ground = texture(*shape, seed=seed).astype(np.float64) / 255
    return (low + ground * (high - low)).astype(dtype)


def expected_bytes(values, limits):
    low, high = np.asarray(limits).T
    scaled = np.floor((values.astype(np.float64) - low) * 255 / (high - low) + 0.5)
    return np.clip(scaled, 1, 255).astype(np.uint8)


@pytest.mark.parametrize("dtype", RANGES)
def test_limits_are_the_percentiles_to_within_a_bin(dtype):
    low, high = RANGES[dtype]
    values = spread(dtype, low, high)
    held = values.astype(held_dtype(dtype))
    found = percentile_limits(count_source(ImageWindow(held)))
    exact = np.percentile(values.reshape(-1, 3), (2, 98), axis=0).T
    np.testing.assert_allclose(found, exact, rtol=1 / 2048, atol=abs(high - low) / 500)


def test_every_real_dtype_is_read_and_others_get_a_word(tmp_path):
    for dtype in WIDE:
        path = write_image(tmp_path / f"{dtype}.tif", spread(dtype, 1, 100))
        assert plan_of([Scene("s", str(path), None)]).meta.rescale == "scene"
    path = write_image(tmp_path / "c.tif", spread("float32", 1, 9).astype("complex64"))
    with pytest.raises(SourceError, match=r"complex64 values.*amplitude"):
        plan_of([Scene("s", str(path), None)])


@pytest.mark.parametrize(
    ("dtype", "nodata"), [("int16", -9999), ("float32", np.nan), ("float32", -1e30)]
)
def test_bytes_follow_the_formula_and_missing_stays_missing(tmp_path, dtype, nodata):
    values = spread(dtype, *RANGES[dtype])
    values[:30, :40, 1] = nodata  # in one band alone
    values[50, 50] = 0  # black, and no speck of nodata: the file has a tag
    if dtype == "float32":
        values[60, 60, 0] = np.inf
    missing = ~np.isfinite(values).all(axis=2) | (values == nodata).any(axis=2)
    scene = write_scene(tmp_path, "s", values, PLACES["utm"], nodata=nodata)
    store = build_of(tmp_path / "s.zarr", [scene], rescale="-20,3", tile=32, levels=2)
    image = read_image(store, 0)
    np.testing.assert_array_equal((image == 0).all(axis=2), missing)
    expected = expected_bytes(values[~missing], [(-20, 3)] * 3)
    np.testing.assert_array_equal(image[~missing], expected)
    assert_consistent(store.location)


def test_coarser_levels_average_values_not_bytes(tmp_path):
    values = np.zeros((64, 64, 1), np.float32)
    values[::2, ::2] = 100.0  # far above the limits: an average of bytes would be 64
    values += 1.0
    scene = write_scene(tmp_path, "s", values, PLACES["utm"], labelled=False)
    store = build_of(tmp_path / "s.zarr", [scene], rescale="0,51", tile=64, levels=2)
    assert (read_image(store, 0, 32) == 130).all()  # a mean of 26 of 51


@pytest.mark.parametrize("rescale", ["scene", "city"])
def test_shards_of_one_scene_agree_and_nan_specks_stay_missing(tmp_path, rescale):
    values = spread("float32", *RANGES["float32"], shape=(200, 150, 3))
    values[40, 40] = np.nan
    values[100, 100] = 0.0  # an untagged black speck is imagery
    values[:, :20] = 0.0  # black at the edge is not
    scene = write_scene(tmp_path, "s", values, PLACES["utm"])
    several = build_of(tmp_path / "a.zarr", [scene], rescale=rescale, tile=50, shard_tiles=2)
    whole = build_of(tmp_path / "b.zarr", [scene], rescale=rescale, tile=50, shard_tiles=32)
    np.testing.assert_array_equal(read_image(several, 0), read_image(whole, 0))
    np.testing.assert_allclose(several.scenes.limits, whole.scenes.limits)
    missing = (read_image(several, 0) == 0).all(axis=2)
    assert missing[:, :20].all()
    assert missing[:, 20:].sum() == 1
    assert missing[40, 40]
    assert_consistent(several.location)


def test_prediction_reads_floats_as_a_store_does(tmp_path):
    from helpers.predict_cases import FACTS, predict_options

    from training.prediction.host import Host
    from training.prediction.images import inspect_image, look, scene_rows
    from training.prediction.window_rows import WindowRows
    from training.prediction.windows import window_grid

    values = spread("float32", 0.02, 0.31)
    path = write_image(tmp_path / "a.tif", values, PLACES["utm"])
    source = inspect_image(str(path), FACTS, predict_options(rescale="scene", gsd="image"))
    mask = tmp_path / "valid.bits"
    pixels = scene_rows(source, mask, ahead=False)
    limits = look(source, pixels, mask)
    grid = window_grid(source.height, source.width, 128, 16, 1)
    (row,) = WindowRows(source, pixels, limits, grid, Host()).read()
    np.testing.assert_array_equal(row.image[:90, :70], expected_bytes(values, limits))
    assert source.scene.dtype == "float32"
