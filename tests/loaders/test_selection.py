"""Selection of the tiles of a split, with and without k-fold."""

import numpy as np
import pytest
import shapely
from affine import Affine
from helpers.factory import PLACES, Place, build_of, texture, write_scene

from geoprep.errors import UsageError
from geoprep.store.reader import StoreReader
from geoprep.views.footprints import outlines
from loaders.selection import Folds, select


@pytest.fixture(scope="module")
def with_test(make_store):
    return StoreReader.open(make_store(scenes=23, splits=(0, 0, 0, 1, 2), levels=(16,)))


def scenes(store, split, folds=None):
    return set(store.tiles.scene[select(store, split, folds).tiles].tolist())


def test_splits_partition_the_tiles(with_test):
    parts = [scenes(with_test, split) for split in ("train", "val", "test")]
    assert sum(map(len, parts)) == 23
    assert set.union(*parts) == scenes(with_test, "all") == set(range(23))


def test_tiles_that_the_split_leaves_unused_are_not_among_all(make_store):
    """They overlap other tiles: metrics would count these pixels twice."""
    store = StoreReader.open(make_store(scenes=6, splits=(0, 1, 3), levels=(16,)))
    assert scenes(store, "all") == {0, 1, 3, 4}
    assert select(store, "all").left_out == {}


@pytest.mark.parametrize("count", [2, 5])
def test_folds_partition_train_and_val_and_leave_test_alone(with_test, count):
    free = scenes(with_test, "train") | scenes(with_test, "val")
    seen = []
    for fold in range(count):
        folds = Folds(count, fold, seed=3)
        train, val = scenes(with_test, "train", folds), scenes(with_test, "val", folds)
        assert train | val == free
        assert not train & val
        assert scenes(with_test, "test", folds) == scenes(with_test, "test")
        seen.append(val)
    assert set.union(*seen) == free
    assert sum(map(len, seen)) == len(free)
    assert max(map(len, seen)) - min(map(len, seen)) <= 1


def test_a_seed_makes_other_folds_and_the_same_again(with_test):
    folds = [scenes(with_test, "val", Folds(3, 0, seed)) for seed in (0, 1, 0)]
    assert folds[0] == folds[2]
    assert folds[0] != folds[1]


def test_usable_scenes_are_assigned_evenly(make_store):
    store = StoreReader.open(make_store(scenes=12, status=("ok", "failed"), levels=(16,)))
    sizes = [len(scenes(store, "val", Folds(3, fold))) for fold in range(3)]
    assert sizes == [2, 2, 2]
    left_out = [select(store, "val", Folds(3, fold)).left_out["failed"] for fold in range(3)]
    assert sum(left_out) == 24


def test_more_folds_than_scenes_are_refused(with_test):
    with pytest.raises(UsageError, match="too few for folds=30"):
        select(with_test, "train", Folds(30, 0))


def test_a_tile_without_a_valid_pixel_is_left_out(make_store):
    store = StoreReader.open(make_store(scenes=3, levels=(16,)))
    store.tiles.valid_fraction[[1, 5]] = 0
    selection = select(store, "all")
    assert selection.left_out == {"empty": 2}
    assert not np.isin([1, 5], selection.tiles).any()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("options", [{}, {"split_by": "block", "block_km": 0.2}])
def test_no_ground_of_a_training_pixel_is_in_the_validation_fold(tmp_path, seed, options):
    """Images of random places, of which neighbours may share a row of pixels, in two folds."""
    random, scenes = np.random.default_rng(seed), []
    places = random.integers(0, 900, (9, 2))
    places[::4] += [[5000], [10_000], [15_000]]  # groups of their own
    for i in range(9):
        move = Affine.translation(*places[i].tolist())
        image = texture(64, 128, seed=i)
        place = Place(PLACES["utm"].crs, PLACES["utm"].transform * move)
        scenes.append(write_scene(tmp_path, f"s{i}", image, place))
    reader = build_of(tmp_path / "s.zarr", scenes, tile=64, **options)
    inset = abs(PLACES["utm"].transform.a)
    shapes = shapely.buffer(outlines(reader, "tile")[0], -1.01 * inset, join_style="mitre")
    for fold in range(2):
        train, val = (select(reader, kind, Folds(2, fold)).tiles for kind in ("train", "val"))
        assert min(len(train), len(val))
        shared = shapely.intersection(shapes[train][:, None], shapes[val][None])
        assert shapely.area(shared).max() == 0
