"""A split in memory: the right tiles, one copy, and clear errors."""

import pickle

import numpy as np
import pytest
from helpers.painted import paint

from geoprep.errors import UsageError
from loaders import RamTiles, selection
from loaders.memory import Available
from loaders.tiles import ram


@pytest.mark.parametrize(("split", "number"), [("train", 0), ("val", 1)])
def test_a_split_is_loaded_pixel_by_pixel(store, split, number):
    tiles = RamTiles.load(store, split)
    image, speed = paint(40, 32, 3)
    rows = np.flatnonzero(store.tiles.split == number)
    assert tiles.table["tile"].tolist() == rows.tolist()
    assert (tiles.image == image[rows]).all()
    assert (tiles.speed == speed[rows]).all()
    assert not tiles.image.flags.writeable
    assert tiles.left_out == {}


def test_a_coarser_level_has_the_same_tiles_and_extent(store_path):
    fine, coarse = RamTiles.load(store_path), RamTiles.load(store_path, level=16)
    assert coarse.side == 16
    assert (coarse.table["tile"] == fine.table["tile"]).all()
    assert (coarse.image == paint(40, 16, 3)[0][fine.table["tile"]]).all()
    a, b, c, d, e, f = coarse.affine(5)
    assert (a, e) == (1.0, -1.0)
    assert (b, c, d, f) == tuple(fine.affine(5)[i] for i in (1, 2, 3, 5))


def test_bands_are_chosen_by_name_and_in_order(make_store):
    path = make_store(bands=("coastal", "blue", "green", "red"), shard_tiles=7)
    tiles = RamTiles.load(path, bands=("red", "blue"))
    image = paint(40, 32, 4)[0][tiles.table["tile"]]
    assert tiles.bands == ("red", "blue")
    assert (tiles.image == image[..., [3, 1]]).all()


def test_unusable_tiles_are_left_out_and_counted(make_store):
    path = make_store(status=("ok", "failed", "ok", "unlabelled", "skipped"), splits=(0,))
    tiles = RamTiles.load(path, "all")
    assert tiles.left_out == {"failed": 8, "skipped": 8, "unlabelled": 8}
    assert len(tiles) == 16
    assert set(tiles.table["scene"]) == {0, 2, 5, 7}
    assert "left out" in repr(tiles)


def test_several_stores_are_one_data_set(make_store):
    paths = [make_store(scenes=3, prefix="AOI_1_A_"), make_store(scenes=2, prefix="AOI_2_B_")]
    tiles = RamTiles.load(paths, "all")
    assert len(tiles) == 20
    assert tiles.table["store"].tolist() == [0] * 12 + [1] * 8
    assert (tiles.image[12:] == paint(8, 32, 3)[0]).all()
    assert (tiles.scene(0), tiles.scene(19)) == ("AOI_1_A_0", "AOI_2_B_1")
    assert [s.location for s in tiles.stores] == [str(p) for p in paths]
    with pytest.raises(UsageError, match=r"2 stores: use `tiles\.stores`"):
        _ = tiles.store


def describe(tiles):
    pixels = int(tiles.image.sum(dtype=np.int64) + tiles.speed.sum(dtype=np.int64))
    return len(tiles), pixels, tiles.scene(3), tiles.crs(3), tiles.fingerprint


def test_the_pickle_has_some_hundred_bytes_and_needs_no_store(make_store):
    small, large = (RamTiles.load(make_store(scenes=n), "all") for n in (2, 40))
    assert len(pickle.dumps(large)) < 1000
    assert abs(len(pickle.dumps(large)) - len(pickle.dumps(small))) < 50
    attached = pickle.loads(pickle.dumps(large))
    assert describe(attached) == describe(large)
    assert attached.store.meta == large.store.meta


def test_progress_counts_every_tile(store_path):
    seen = []
    RamTiles.load(store_path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (32, 32)
    assert seen == sorted(seen)


def test_too_many_tiles_are_refused_before_loading(store_path, monkeypatch):
    def little():
        return Available(selection.RESERVE + 100_000, "the control group /sys/fs/cgroup/job")

    monkeypatch.setattr(selection, "available_memory", little)
    monkeypatch.setattr(ram, "read_all", None)  # must not be called
    with pytest.raises(UsageError) as refusal:
        RamTiles.load(store_path)
    message = str(refusal.value)
    for part in ("32 tiles of 32 x 32 x 3", "/sys/fs/cgroup/job", "level=16", "fewer bands="):
        assert part in message
    assert "StreamTiles" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "split='dev' is not one of train, val, test, all"),
        ({"level": 650}, "no level 650; its levels are 32, 16"),
        ({"split": "test"}, "split 'test' .* has no tile to load"),
        ({"bands": ("nir",)}, "has no band nir; it has red, green, blue"),
        ({"bands": ()}, "bands is empty"),
        ({"folds": 1}, "at least 2 folds"),
        ({"folds": 5, "fold": 5}, "fold=5"),
    ],
)
def test_invalid_arguments_are_refused(store_path, options, message):
    with pytest.raises(UsageError, match=message):
        RamTiles.load(store_path, **options)


def test_a_split_of_unusable_tiles_says_why_it_is_empty(make_store):
    with pytest.raises(UsageError, match=r"no tile to load \(40 unlabelled\)"):
        RamTiles.load(make_store(status=("unlabelled",)), "all")


def test_stores_that_do_not_match_are_refused(make_store):
    rgb, other = make_store(), make_store(bands=("red", "nir"))
    with pytest.raises(UsageError, match=r"has bands red, nir.*bands=\(...\)"):
        RamTiles.load([rgb, other])
    assert RamTiles.load([rgb, other], bands=("red",)).bands == ("red",)
    with pytest.raises(UsageError, match=r"finest level.*use level=32"):
        RamTiles.load([rgb, make_store(levels=(64, 32))])
    with pytest.raises(UsageError, match="no store given"):
        RamTiles.load([])


def test_tiles_from_arrays_must_match():
    with pytest.raises(UsageError, match="do not match"):
        RamTiles.from_arrays(np.zeros((2, 8, 8, 3), np.uint8), np.zeros((2, 8, 9), np.uint8))
