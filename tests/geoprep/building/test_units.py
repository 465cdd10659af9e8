"""Limits in the unit of bands that have a scale and an offset."""

import numpy as np
import pytest
import rasterio
from affine import Affine
from helpers.factory import Place, build_of, plan_of, texture, write_image

from geoprep.building.run import build
from geoprep.errors import UsageError
from geoprep.executors.threads import Threads
from geoprep.sources.scene import Scene

REFLECTANCE = 0.0001 * texture(80, 96, 3, "uint16", top=5000)
BYTES = np.clip(np.floor(REFLECTANCE * 255 / 0.5 + 0.5), 1, 255)


def scene(folder, number, scale=1.0, offset=0.0, dtype="uint16", values=REFLECTANCE):
    """Return an image of some reflectance, stored with a scale and an offset."""
    place = Place("EPSG:32637", Affine(0.5, 0, 400_000 + 100 * number, 0, -0.5, 6_200_000))
    stored = (values - offset) / scale
    stored = stored if dtype == "float32" else np.nan_to_num(np.round(stored))
    path = write_image(folder / f"{number}.tif", stored.astype(dtype), place)
    if (scale, offset) != (1, 0):
        with rasterio.open(path, "r+") as file:
            file.scales, file.offsets = (scale,) * 3, (offset,) * 3
    return Scene(str(number), str(path), None)


@pytest.mark.parametrize("options", [{"tile": 96}, {"tile": 32, "shard_tiles": 1}])
def test_scenes_of_several_scales_and_offsets_are_right_under_one_pair_of_limits(tmp_path, options):
    """Reflectance of Sentinel-2 before and after 2022, with another scale, and as it is."""
    scenes = [
        scene(tmp_path, 0, 0.0001),
        scene(tmp_path, 1, 0.0001, -0.1),
        scene(tmp_path, 2, 0.00002, -0.2),
        scene(tmp_path, 3, dtype="float32"),
        scene(tmp_path, 4, 0.0001, -0.1, "int32"),
        scene(tmp_path, 5, -0.0001, 0.7),  # a negative
        scene(tmp_path, 6, -0.0001, 0.2, "int16"),
    ]
    store = build_of(tmp_path / "s.zarr", scenes, rescale="0,0.5", levels=1, **options)
    assert store.meta.build["limits_of"] == "unit"
    assert store.scenes.limits[1, 0].round(6).tolist() == [1000, 6000]
    side = options["tile"]
    for i, tile in enumerate(store.image()[...]):
        row, col = store.tiles.row[i], store.tiles.col[i]
        right = BYTES[row : row + side, col : col + side]
        inside = tile[: right.shape[0], : right.shape[1]]
        assert np.abs(inside.astype(int) - right).max() <= 1


def test_a_scale_that_is_no_number_fails_its_scene(tmp_path):
    odd, right = plan_of([scene(tmp_path, 0, np.nan), scene(tmp_path, 1)], rescale="0,9").scenes
    assert "0.tif states the scale and offset ((nan, 0.0)" in odd.failure
    assert not right.failure


def test_limits_of_a_city_need_one_scale_and_offset(tmp_path):
    scenes = [scene(tmp_path, 0, 0.0001), scene(tmp_path, 1, 0.0001, -0.1)]
    with pytest.raises(UsageError, match="`rescale` city needs images of one scale and offset"):
        plan_of(scenes, rescale="city")
    assert plan_of(scenes[:1], rescale="city").meta.build["limits_of"] == "integers"
    assert "limits_of" not in plan_of(scenes).meta.build  # each scene has its own


@pytest.mark.parametrize(
    ("stated", "rescale", "flat"),
    [
        ((0.0001, -0.1), "-0.3,0.7", True),
        ((1, 0), "-0.3,0.7", False),
        ((0.0001, -0.1), "scene", False),
    ],
)
def test_an_index_that_kept_the_scale_of_its_scene_is_noted(tmp_path, stated, rescale, flat):
    """As xarray keeps attributes: a difference of bands, decoded, with the tags of the bands."""
    index = 0.6 * texture(80, 96, 3, "uint16", top=5000) / 5000 - 0.1
    scale, offset = stated
    kept = scene(tmp_path, 0, scale, offset, "float32", index * scale + offset)
    plan = plan_of([kept], rescale=rescale)
    noted = [note for note in plan.notes if "gdal_edit.py -scale 1 -offset 0 FILE" in note]
    assert len(noted) == (stated != (1, 0))
    warnings = build(plan, tmp_path / "s.zarr", Threads(1)).warnings
    assert any("no tile has more than 1 value after" in line for line in warnings) == flat


@pytest.mark.parametrize(
    ("made", "rescale", "warned"),
    [
        ((0.0001, -0.1), "0,3000", True),  # of the numbers, not of reflectance
        ((0.0001, -0.1), "0,0.5", False),
        ((0.0001, -0.1), "scene", False),
        ((0.0001, 0.0), "5,9", True),
    ],
)
def test_values_at_the_ends_of_the_limits_are_warned_of(tmp_path, made, rescale, warned):
    plan = plan_of([scene(tmp_path, 0, *made)], rescale=rescale)
    summary = build(plan, tmp_path / "s.zarr", Threads(1))
    text = next((line for line in summary.warnings if "are 1 or 255" in line), "")
    assert bool(text) == warned
    if warned:
        assert f"`rescale` {rescale}, in the unit of bands with scale and offset {made}" in text
