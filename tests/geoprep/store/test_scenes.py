"""Scenes of a store: found by name, counted, put together, and never blank where one is damaged."""

from types import SimpleNamespace

import numpy as np
import pytest

from geoprep.errors import StoreError, UsageError
from geoprep.store.layout import MISSING, checksum
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import (
    find_scene,
    read_image,
    read_label,
    scene_grid,
    scene_issues,
    tiles_of,
    valid_fraction,
    valid_pixels,
)

IDS = ["AOI_7_Moscow_chip1", "AOI_7_Moscow_chip11", "AOI_7_Moscow_chip12", "AOI_8_Mumbai_chip1"]


def named(ids):
    return SimpleNamespace(location="a.zarr", scenes=SimpleNamespace(id=np.array(ids, object)))


@pytest.mark.parametrize(
    ("typed", "index"), [(IDS[0], 0), ("chip12", 2), ("12", 2), ("moscow_CHIP1", 0)]
)
def test_an_id_or_the_end_of_one_names_a_scene(typed, index):
    assert find_scene(named(IDS), typed) == index


def test_an_end_that_several_have_names_them():
    with pytest.raises(UsageError, match=r"2 scenes \(AOI_7_Moscow_chip1, AOI.*\. Give"):
        find_scene(named(IDS), "chip1")


@pytest.mark.parametrize("typed", ["hip12", "2", "", "chip", "chip99"])
def test_an_end_begins_where_a_word_or_number_begins(typed):
    with pytest.raises(UsageError, match=r"a.zarr has no scene .*info --scenes` lists its 4"):
        find_scene(named(IDS), typed)


def test_valid_pixels_are_those_of_the_scene_each_once(small_store):
    """The small store has tiles that overlap, padding, and scenes with black borders."""
    store = StoreReader.open(small_store)
    counted = valid_pixels(store)
    for scene in range(len(store.scenes)):
        grid = scene_grid(store, scene)
        if grid is None:
            assert not counted[scene].any()
            continue
        true = np.count_nonzero(read_image(store, scene).any(axis=2))
        pixels = grid.height * grid.width
        assert counted[scene, 1] == pixels
        assert counted[scene, 0] == pytest.approx(true, abs=0.02 * pixels)
    assert valid_fraction(store) == counted[:, 0].sum() / counted[:, 1].sum()


def test_in_a_store_of_imagery_alone_unlabelled_is_no_issue(small_store):
    store = StoreReader.open(small_store)
    listed = {status for _, status, _ in scene_issues(store)}
    assert listed == {"unlabelled", "skipped", "failed"}
    status = store.scenes.status
    status[status == "ok"] = "unlabelled"
    assert {status for _, status, _ in scene_issues(store)} == {"skipped", "failed"}


@pytest.mark.parametrize("read", [read_image, read_label])
@pytest.mark.usefixtures("pipeline")
def test_a_missing_shard_is_an_error(store_copy, read):
    name = "image" if read is read_image else "speed"
    store = StoreReader.open(store_copy)
    shard = int(tiles_of(store.tiles, 1).start) // store.meta.shard_tiles
    key = f"64/{name}/c/{shard}/0/0" + "/0" * (name == "image")
    (store_copy / key).unlink()
    with pytest.raises(StoreError, match=rf"{key} is missing.*build-zarr"):
        read(store, 1)
    with pytest.raises(StoreError, match=rf"{key} is missing.*build-zarr"):
        getattr(store, name)()[shard * store.meta.shard_tiles]


def test_a_chunk_missing_in_its_shard_is_an_error(store_copy):
    store = StoreReader.open(store_copy)
    layout = store.layout(64, "image")
    shard, row = layout.place(int(tiles_of(store.tiles, 1).start))
    path = store_copy / layout.key(shard)
    data = path.read_bytes()
    index = layout.read_index(data[-layout.index_bytes :]).copy()
    index[row] = MISSING
    footer = index.tobytes()
    path.write_bytes(data[: -layout.index_bytes] + footer + checksum(footer))
    with pytest.raises(StoreError, match=r"64/image/c/.*the chunk is missing.*build-zarr"):
        read_image(store, 1)
