"""One mosaic in several splits: by blocks and by areas, and no pixel in two of them."""

import json

import numpy as np
import pytest
from affine import Affine
from helpers.consistency import assert_consistent
from helpers.factory import PLACES, Place, build_of, plan_of, texture, write_image, write_scene
from helpers.geojson import feature, write_features
from hypothesis import given
from hypothesis import strategies as st

from geoprep.building.options import BuildOptions
from geoprep.building.scene import TEST, TRAIN, UNUSED, VAL
from geoprep.building.splits import apart
from geoprep.crs import to_lonlat
from geoprep.errors import UsageError
from geoprep.grid import Windows
from geoprep.sources.scene import Scene, SourceScenes
from geoprep.views.facts import info
from geoprep.views.footprints import export_footprints
from loaders.selection import Folds, select

SIZE = 480, 400
UTM = PLACES["utm"]
BLOCKS = {"split_by": "block", "block_km": 0.04, "tile": 40, "overlap": 8}


@pytest.fixture(scope="module")
def mosaic(tmp_path_factory):
    """One labelled scene of 149 x 124 m."""
    return write_scene(tmp_path_factory.mktemp("mosaic"), "m", texture(*SIZE), UTM)


def pixels_by_split(windows, splits, tile, shape):
    """Return which splits every pixel of a scene is in, a bit each."""
    seen = np.zeros(shape, np.uint8)
    for (row, col), split in zip(windows, splits, strict=True):
        if split != UNUSED:
            seen[row : row + tile, col : col + tile] |= 1 << split
    return seen


@given(
    st.tuples(st.integers(1, 50), st.integers(1, 50)),
    st.integers(8, 40),
    st.integers(0, 7),
    st.integers(0, 99),
)
def test_no_pixel_is_ever_in_two_splits(shape, tile, overlap, seed):
    windows = Windows(shape, tile, overlap)
    splits = tuple(np.random.default_rng(seed).integers(0, 3, len(windows)).tolist())
    kept = apart(windows, splits)
    seen = pixels_by_split(windows, kept, tile, shape)
    assert set(np.unique(seen)) <= {0, 1, 2, 4}
    assert all(b in (a, UNUSED) for a, b in zip(splits, kept, strict=True))
    assert [a for a, b in zip(splits, kept, strict=True) if a == TEST and b == UNUSED] == []
    if overlap == 0 and all(side % tile == 0 for side in shape):
        assert kept == splits  # tiles that only touch are all used


def test_blocks_divide_a_mosaic_and_keep_small_scenes_whole(mosaic, tmp_path):
    chip = write_scene(tmp_path, "chip", texture(50, 50), Place(UTM.crs, UTM.transform))
    plan = plan_of([mosaic, chip], **BLOCKS, val=0.3, test=0.2)
    large, small = plan.scenes
    assert set(large.splits) == {TRAIN, VAL, TEST, UNUSED}
    assert len(set(small.splits)) == 1
    seen = pixels_by_split(large.windows, large.splits, 40, SIZE)
    assert set(np.unique(seen)) <= {0, 1, 2, 4}
    shares = np.bincount(large.splits, minlength=4) / len(large.splits)
    assert 0.15 < shares[VAL] < 0.45
    assert plan.notes == ()
    again = plan_of([mosaic, chip], **BLOCKS, val=0.3, test=0.2)
    assert again.scenes[0].splits == large.splits


def test_splits_of_blocks_do_not_depend_on_where_the_images_are(mosaic):
    found = [
        plan_of(SourceScenes((mosaic,), origin=origin, product=None), **BLOCKS, split_seed=seed)
        for seed in (0, 1)
        for origin in ("images/*.tif", "/elsewhere/m.tif")
    ]
    here, there, *others = (plan.scenes[0].splits for plan in found)
    assert here == there
    assert others[0] == others[1] != here


def test_a_mosaic_without_georeference_is_divided(tmp_path):
    path = write_image(tmp_path / "m.tif", texture(*SIZE), Place(None, Affine.identity()))
    options = {"pixel_size": 0.31, "split_by": "block", "block_km": 0.04, "tile": 40}
    (scene,) = plan_of([Scene("m", str(path), None)], **options).scenes
    assert {TRAIN, VAL} <= set(scene.splits)


def test_store_loaders_and_views_take_a_divided_scene(mosaic, tmp_path):
    store = build_of(tmp_path / "m.zarr", [mosaic], **BLOCKS, test=0.2)
    assert_consistent(store.location)
    found = info(store, scenes=True)
    assert found["scene_table"][0]["split"] == "train, val, test, unused"
    assert sum(found["splits"][name]["tiles"] for name in found["splits"]) == len(store.tiles)
    for number, name in enumerate(("train", "val", "test")):
        tiles = select(store, name).tiles
        assert (store.tiles.split[tiles] == number).all()
        assert len(tiles) == found["splits"][name]["usable_tiles"] > 0
    tiles = json.loads(export_footprints(store, tmp_path / "t.geojson", by="tile").read_text())
    assert {f["properties"]["split"] for f in tiles["features"]} == {
        "train",
        "val",
        "test",
        "unused",
    }
    with pytest.raises(UsageError, match="too few"):
        select(store, "train", Folds(2, 0))


def write_areas(path, place, boxes):
    """Write boxes (split, left, top, right, bottom in pixels) as polygons in degrees."""
    turn = to_lonlat(place.crs)
    features = []
    for split, left, top, right, bottom in boxes:
        ring = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
        points = [turn.transform(*(place.transform * at)) for at in ring]
        features.append(feature([points], "Polygon", split=split))
    return str(write_features(path, features))


def test_areas_assign_tiles_to_splits(mosaic, tmp_path):
    boxes = [("val", -9, -9, 205, 245), ("test", 235, -9, 409, 245)]
    areas = write_areas(tmp_path / "a.geojson", UTM, boxes)
    (scene,) = plan_of([mosaic], split_file=areas, tile=40).scenes
    for (row, col), split in zip(scene.windows, scene.splits, strict=True):
        if row + 40 <= 240:
            expected = VAL if col < 200 else UNUSED if col == 200 else TEST
            assert split == expected
        elif row >= 280:
            assert split == TRAIN  # drawn by nobody
    with_train = write_areas(tmp_path / "b.geojson", UTM, [*boxes, ("Train", -9, 395, 409, 490)])
    (scene,) = plan_of([mosaic], split_file=with_train, tile=40).scenes
    by_row = {row: split for (row, _), split in zip(scene.windows, scene.splits, strict=True)}
    assert (by_row[280], by_row[400]) == (UNUSED, TRAIN)


def test_areas_along_the_edges_of_tiles_leave_no_tile_out(mosaic, tmp_path):
    boxes = [("train", 0, 0, 200, 480), ("val", 200, 0, 320, 480), ("test", 320, 0, 400, 480)]
    areas = write_areas(tmp_path / "a.geojson", UTM, boxes)
    (scene,) = plan_of([mosaic], split_file=areas, tile=40).scenes
    expected = [TRAIN if c < 200 else VAL if c < 320 else TEST for _, c in scene.windows]
    assert list(scene.splits) == expected


def test_areas_on_the_other_side_of_180_degrees(tmp_path):
    place = Place("EPSG:4326", Affine(3e-6, 0, 179.9997, 0, -3e-6, -16.5))
    scene = write_scene(tmp_path, "m", texture(200, 200), place)
    ring = [(-180, -17), (-179, -17), (-179, -16), (-180, -16), (-180, -17)]
    areas = write_features(tmp_path / "a.geojson", [feature([ring], "Polygon", split="val")])
    (planned,) = plan_of([scene], split_file=str(areas), tile=100).scenes
    assert list(planned.splits) == [TRAIN, VAL, TRAIN, VAL]


def test_areas_count_as_input_and_not_by_their_path(mosaic, tmp_path):
    box = [("val", 0, 0, 200, 480)]
    (tmp_path / "x").mkdir()
    one = plan_of([mosaic], split_file=write_areas(tmp_path / "a.geojson", UTM, box), tile=40)
    same = plan_of([mosaic], split_file=write_areas(tmp_path / "x/a.geojson", UTM, box), tile=40)
    assert one.meta == same.meta
    assert BuildOptions.given(split_file=tmp_path / "a.geojson").split_file.endswith("/a.geojson")
    other = write_areas(tmp_path / "a.geojson", UTM, [("val", 0, 0, 100, 480)])
    assert plan_of([mosaic], split_file=other, tile=40).meta.build != one.meta.build


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ("not vectors", "not readable as a vector file"),
        ('{"type":"FeatureCollection","features":[]}', "split"),
        (
            '{"type":"FeatureCollection","features":[{"type":"Feature","properties":{"split":"x"},'
            '"geometry":{"type":"Polygon","coordinates":[[[0,0],[1,0],[1,1],[0,0]]]}}]}',
            "contains x. Expected train, val, test",
        ),
    ],
)
def test_areas_that_cannot_be_used_are_named(mosaic, tmp_path, text, message):
    path = tmp_path / "areas.geojson"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        plan_of([mosaic], split_file=str(path))
    assert "areas.geojson" in str(error.value)


def test_a_store_may_be_all_validation_or_test(mosaic, tmp_path):
    for options, split in (({"val": 1.0}, VAL), ({"val": 0.0, "test": 1.0}, TEST)):
        plan = plan_of([mosaic], tile=40, **options)
        assert set(plan.scenes[0].splits) == {split}
        assert plan.notes == ()
    with pytest.raises(UsageError, match="together at most 1"):
        plan_of([mosaic], val=1.0, test=0.1)


def test_one_scene_in_one_split_is_told_how_to_divide_it(mosaic):
    (note,) = plan_of([mosaic], tile=40).notes
    assert "`split_by` block" in note
    (note,) = plan_of([mosaic], tile=40, split_by="block", block_km=5).notes
    assert "smaller `block_km`" in note
