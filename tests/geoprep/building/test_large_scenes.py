"""A scene that lies in several shards: the same pixels as in one, each thing done once."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from helpers.consistency import assert_consistent
from helpers.factory import (
    PLACES,
    build_of,
    interrupt,
    plan_of,
    texture,
    truncate,
    write_image,
    write_scene,
)

from geoprep.building import tile_run
from geoprep.building.records import ShardRecord, TaskStopped
from geoprep.building.run import build
from geoprep.executors.threads import Threads
from geoprep.imagery import rows
from geoprep.store.reader import StoreReader
from geoprep.views.facts import info


@pytest.fixture(scope="module")
def mosaic(tmp_path_factory):
    """One scene of 300 x 420 with a black corner, a black block, a roof and specks."""
    values = texture(300, 420)
    y, x = np.mgrid[:300, :420]
    values[y + x < 90] = 0  # reaches the edge
    values[100:180, 200:280] = 0  # 6,400 pixels, over the borders of tiles
    values[60:110, 120:170] = 0  # 2,500: a roof, over the same borders
    values[np.random.default_rng(0).random((300, 420)) < 0.01] = 0
    return write_scene(tmp_path_factory.mktemp("mosaic"), "mosaic", values)


OPTIONS = {"tile": 64, "levels": 2}


@pytest.fixture(autouse=True)
def _narrow_strips(monkeypatch):
    monkeypatch.setattr(rows, "_STRIP_ROWS", 16)


def assert_same_tiles(one, other):
    for level in one.meta.levels:
        assert np.array_equal(one.image(level)[...], other.image(level)[...])
        assert np.array_equal(one.speed(level)[...], other.speed(level)[...])


@pytest.mark.parametrize(
    "more",
    [
        {"overlap": 40},
        {"rescale": "scene"},
        {"rescale": "scene", "gsd": 0.41},
        {"rescale": "city", "overlap": 40},
    ],
)
def test_shards_of_one_scene_hold_what_one_shard_holds(mosaic, tmp_path, more):
    options = OPTIONS | more
    whole = build_of(tmp_path / "a.zarr", [mosaic], **options, shard_tiles=1000)
    parted = build_of(tmp_path / "b.zarr", [mosaic], **options, shard_tiles=5)
    assert not plan_of([mosaic], **options, shard_tiles=1000).shards > 1
    assert np.array_equal(whole.scenes.limits, parted.scenes.limits)
    assert np.array_equal(whole.histogram_band, parted.histogram_band)
    assert np.array_equal(whole.histogram_speed, parted.histogram_speed)
    assert np.array_equal(whole.tiles.valid_fraction, parted.tiles.valid_fraction)
    assert_same_tiles(whole, parted)


@pytest.mark.parametrize(
    ("held", "options", "times"),
    [(0, {}, 2), (0, {"nodata": "none"}, 1), (1 << 20, {}, 1)],
    ids=["not held", "without a survey", "held"],
)
def test_the_rows_of_a_scene_are_decoded_once_or_twice(tmp_path, monkeypatch, held, options, times):
    """Once if they stay in memory or need no survey, and never by each row of tiles."""
    monkeypatch.setattr(rows, "_MOST_BYTES", held)
    monkeypatch.setattr(rows, "_STRIP_ROWS", 50)
    scene = write_scene(tmp_path, "large", texture(300, 420))
    opened, read = [], []
    for name, calls in (("open_image", opened), ("Window", read)):
        usual = getattr(rows, name)
        monkeypatch.setattr(
            rows, name, lambda *a, usual=usual, calls=calls: calls.append(a) or usual(*a)
        )
    plan = plan_of([scene], tile=64, levels=2, shard_tiles=14, **options)
    assert plan.shards == 3
    assert plan.needs_survey(plan.scenes[0]) != bool(options)
    build(plan, tmp_path / "a.zarr", Threads(1))
    decoded = sum(window[3] for window in read)
    assert len(opened) == (1 if held else times - 1 + 3)
    assert decoded == 300 if held else 300 * times <= decoded <= 300 * times + 2 * 100
    assert not rows._scenes._slots
    assert not rows._shared._slots


def test_an_interrupted_build_still_knows_where_black_is_nodata(mosaic, tmp_path):
    expected = build_of(tmp_path / "a.zarr", [mosaic], **OPTIONS, shard_tiles=5)
    plan, out = plan_of([mosaic], **OPTIONS, shard_tiles=5), tmp_path / "b.zarr"
    interrupt(plan, out, 1)
    seen = []
    assert build(plan, out, Threads(1), report=seen.append).state == "resumed"
    assert {progress.stage for progress in seen} == {"build"}
    assert_same_tiles(expected, StoreReader.open(out))


def test_the_roads_of_a_scene_are_read_once(mosaic, tmp_path, monkeypatch):
    read = []
    usual = tile_run.read_shapes
    monkeypatch.setattr(tile_run, "read_shapes", lambda *a, **k: read.append(1) or usual(*a, **k))
    store = build_of(tmp_path / "a.zarr", [mosaic], **OPTIONS, shard_tiles=5)
    assert len(store.tiles.row) > 3 * 5
    assert (store.tiles.road_fraction > 0).any()
    assert len(read) == 1
    assert not tile_run._outlines._slots


def test_tasks_end_at_their_next_stage_when_the_build_is_left():
    ended, both_run = [], threading.Barrier(2, timeout=300)

    def task(number):
        record = ShardRecord(number)
        both_run.wait()
        try:
            while number:
                with record.stage("decode"):
                    time.sleep(0.001)
        except TaskStopped:
            ended.append(number)

    for _ in Threads(2).map_unordered(task, [0, 1]):
        break
    assert ended == [1]
    with ShardRecord(0).stage("decode"):  # outside of any executor
        pass


# Labels that cannot be used


def _checks():
    """Return a mask of 300 x 420 pixels of the classes 0 and 1."""
    y, x = np.mgrid[:300, :420]
    return ((y // 20 + x // 30) % 2).astype(np.uint8)


def _built(folder, mask, *, values=None, keep=1.0, **options):
    """Build a scene and its mask, of whose file a share is kept."""
    utm, values = PLACES["utm"], texture(300, 420) if values is None else values
    scene = write_scene(folder, "m", values, utm, labelled=False)
    label = write_image(folder / "m_mask.tif", mask[..., None], utm, compress=None)
    truncate(label, keep)
    scene = replace(scene, label=str(label))
    return build_of(folder / "a.zarr", [scene], tile=64, rescale="none", **options)


CLASSES = {"classes": "a=0,b=1"}
PARTS = [
    {"shard_tiles": 1000},
    {"shard_tiles": 5},
    {"shard_tiles": 5, "overlap": 16},
    {"shard_tiles": 5, "gsd": 0.5},
    {"shard_tiles": 5, "split_by": "block", "block_km": 0.03},
]


@pytest.mark.parametrize("options", PARTS)
def test_values_of_no_class_fail_a_scene_before_any_shard_has_its_pixels(tmp_path, options):
    mask = _checks()
    mask[10:13, 10:20], mask[280:290, 400:410], mask[290, 0:5] = 7, 9, 7
    store = _built(tmp_path, mask, **CLASSES, **options)
    assert store.scenes.status.tolist() == ["failed"]
    assert "no class has: 9 (100 pixels), 7 (35 pixels). Add" in store.scenes.reason[0]
    assert_consistent(store.location)
    assert not store.class_pixels.any()


@pytest.mark.parametrize("damage", ["speed", "strip"])
@pytest.mark.parametrize("options", PARTS[:2])
def test_a_label_that_is_wrong_in_one_shard_fails_the_scene(tmp_path, options, damage):
    mask, keep = _checks(), 0.6 if damage == "strip" else 1.0
    if damage == "speed":
        mask = mask.astype(np.uint16)
        mask[280:290, 400:410] = 400
    store = _built(tmp_path, mask, keep=keep, label_speeds="mph", **options)
    assert store.scenes.status.tolist() == ["failed"]
    assert ("400 mph" if damage == "speed" else "cannot be read") in store.scenes.reason[0]
    assert_consistent(store.location)
    assert info(store)["splits"]["train"]["usable_tiles"] == 0


@pytest.mark.parametrize("options", PARTS[:3])
@pytest.mark.parametrize("speck", [True, False], ids=["speck", "nodata"])
def test_a_value_under_black_counts_if_the_black_is_imagery(tmp_path, options, speck):
    mask, values = _checks(), texture(300, 420)
    values[60:72, 100:110], mask[60:72, 100:110] = 0, 7  # over the border of two strips
    if not speck:
        values[60:72, :110] = 0  # reaches the edge
    store = _built(tmp_path, mask, values=values, **CLASSES, **options)
    assert store.scenes.status.tolist() == ["failed" if speck else "ok"]
    assert ("no class has: 7 (120 pixels). Add" in store.scenes.reason[0]) == speck


@pytest.mark.parametrize("options", PARTS[1:4])
def test_remarks_on_a_label_count_each_of_its_pixels_once(tmp_path, options):
    mask = _checks()
    mask[50:150, 60:160] = 7
    store = _built(tmp_path, mask, other="nodata", **CLASSES, **options)
    assert store.meta.build["notes"] == {"label value 7 read as nodata": 10_000}
