"""Labels of classes: every residency, several stores, sampling by class, targets."""

import numpy as np
import pytest
import torch
from helpers.stores import as_classes, draw_tiles, write_store
from torch.utils.data import DataLoader

from geoprep.errors import UsageError
from geoprep.store.reader import StoreReader
from loaders import (
    BatchLoader,
    ClassTarget,
    DevicePrep,
    DeviceTiles,
    Normalize,
    RamTiles,
    SpeedTarget,
    StreamTiles,
    TileDataset,
    select,
)

NAMES = ("background", "slow", "fast")
OTHER = ("fast", "background", "slow")


@pytest.fixture(scope="module")
def covers(tmp_path_factory):
    """Return two stores with the same classes in different orders, and different tiles."""
    folder = tmp_path_factory.mktemp("covers")
    one = write_store(folder / "one.zarr", classes=NAMES)
    return one, write_store(folder / "other.zarr", classes=OTHER, seed=1)


@pytest.fixture(scope="module")
def tiles():
    """Return tiles of which only the last has fast roads."""
    image, speed = draw_tiles(12, 64, 3, 0)
    label = as_classes(speed, NAMES)
    label[:11][label[:11] == 2] = 0
    label[11, 20:40, 20:40] = 2
    return RamTiles.from_arrays(image, label, classes=NAMES)


def test_every_residency_gives_the_labels_of_the_store(covers):
    drawn = as_classes(draw_tiles(32, 64, 3, 0)[1], NAMES)
    expected = np.concatenate([drawn[:12], drawn[16:28]])  # each fourth scene validates
    for found in (
        RamTiles.load(covers[0]),
        RamTiles.load(covers[0], keep="compressed"),
        StreamTiles.open(covers[0], ram_limit="64MB"),
        DeviceTiles.load(covers[0], device="cpu"),
    ):
        loader = BatchLoader(found, 5, shuffle=False)
        batches = [(b.label.clone(), b.has_classes) for b in loader]
        assert torch.cat([label for label, _ in batches]).numpy().tolist() == expected.tolist()
        assert all(kind for _, kind in batches)
        assert found.class_names == NAMES
    items = TileDataset(RamTiles.load(covers[0]))
    assert items[3]["label"].numpy().tolist() == expected[3].tolist()
    assert "speed" not in items[3]


def test_a_batch_of_classes_has_no_speed_and_one_of_speeds_has_both(tiles, painted):
    batch = next(iter(BatchLoader(tiles, 2)))
    with pytest.raises(UsageError, match=r"classes, not speeds: use `batch\.label`"):
        _ = batch.speed
    with pytest.raises(UsageError, match=r"use `tiles\.label`"):
        _ = tiles.speed
    speeds = next(iter(BatchLoader(painted, 2)))
    assert speeds.speed is speeds.label


def test_another_order_of_classes_is_changed(covers):
    for load in (
        RamTiles.load,
        lambda stores: RamTiles.load(stores, keep="compressed"),
        lambda stores: StreamTiles.open(stores, ram_limit="64MB"),
    ):
        found = load(covers)
        labels = np.stack([found.label_of(tile) for tile in (24, 47)])
        speed = draw_tiles(32, 64, 3, 1)[1]
        assert labels.tolist() == as_classes(speed[[0, 27]], NAMES).tolist()
    wanted = RamTiles.load(covers[1], classes=NAMES)
    assert wanted.label_of(0).tolist() == as_classes(speed[0], NAMES).tolist()


def test_stores_that_differ_in_classes_or_kind_are_refused(covers, tmp_path):
    more = write_store(tmp_path / "more.zarr", classes=(*NAMES, "water"), scenes=4)
    with pytest.raises(UsageError, match=r"more.zarr and .* differ in the classes water: build"):
        RamTiles.load([covers[0], more])
    speeds = write_store(tmp_path / "speeds.zarr", scenes=4)
    with pytest.raises(UsageError, match=r"labels of speeds, .*one.zarr labels of classes"):
        RamTiles.load([covers[0], speeds])


def test_class_weights_meet_every_class_about_equally_often(tiles):
    loader = BatchLoader(tiles, 12, weights="classes", crops_per_tile=20)
    drawn = np.concatenate([batch.index.numpy() for batch in loader])
    assert (drawn == 11).mean() > 3 / 12


@pytest.mark.filterwarnings("ignore:min_share leaves 1 of 12 tiles")
def test_min_share_leaves_tiles_out_and_finds_crops_with_the_class(tiles):
    loader = BatchLoader(tiles, 4, crop=32, crops_per_tile=8, min_share={"fast": 0.1})
    assert loader.drawn_tiles == 1
    shares = [(batch.label == 2).float().mean(dim=(1, 2)) for batch in loader]
    assert (torch.cat(shares) >= 0.1).float().mean() > 0.8
    assert loader.state_dict()["sampling"]["min_share"] == {"fast": 0.1}
    whole = BatchLoader(tiles, 1, min_share={"fast": 0.05, "background": 0.1})
    assert whole.drawn_tiles == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_share": {"lake": 0.1}}, "no class 'lake'; use background, slow, fast"),
        ({"min_share": {"fast": 2}}, "fast=2 must be above 0"),
        ({"min_share": {"fast": 0.9, "slow": 0.9}}, "no tile has enough"),
        ({"min_road": 0.1}, "labels of speeds: use `min_share`"),
        ({"weights": "speed"}, "does not fit labels of classes: use weights='classes'"),
    ],
)
def test_options_for_other_labels_are_refused(tiles, options, message):
    with pytest.raises(UsageError, match=message):
        BatchLoader(tiles, 2, crop=32, **options)


def test_options_of_classes_are_refused_for_speeds(painted):
    with pytest.raises(UsageError, match="labels of classes: use `min_road`"):
        BatchLoader(painted, 2, min_share={"fast": 0.1})
    with pytest.raises(UsageError, match="does not fit labels of speeds"):
        BatchLoader(painted, 2, weights="classes")


def test_prep_chooses_classes_and_never_counts_nodata(covers):
    prep = DevicePrep.from_store(covers[0])
    batch = next(iter(BatchLoader(RamTiles.load(covers[0]), 4)))
    _, target, valid = prep(batch)
    assert target.dtype == torch.int64
    assert (target[valid] == batch.label[valid]).all()
    assert (valid == (batch.label != 255)).all()
    assert (target[~valid] == -100).all()
    assert DevicePrep.from_store(covers[0], "classes").target.channels == 3
    with pytest.raises(UsageError, match="hold classes: use `targets` classes"):
        DevicePrep.from_store(covers[0], "bins")


def test_labels_of_the_other_kind_are_refused(covers, painted):
    classes = RamTiles.load(covers[0])
    of_classes, of_speeds = (
        DevicePrep.from_store(covers[0]),
        DevicePrep(Normalize([9.0] * 3, [2.0] * 3), SpeedTarget("binary")),
    )
    wrong = "use a prep with targets="
    for tiles, other in ((classes, of_speeds), (painted, of_classes)):
        with pytest.raises(UsageError, match=wrong):
            other(next(iter(BatchLoader(tiles, 4))))
        item = next(iter(DataLoader(TileDataset(tiles), 4)))
        with pytest.raises(UsageError, match=wrong):
            other(item)


def test_bytes_that_no_class_has_are_not_valid():
    target = ClassTarget(2)
    label = torch.tensor([[[0, 1, 2, 254, 255]]], dtype=torch.uint8)
    assert target.valid(label).tolist() == [[[True, True, False, False, False]]]


def test_training_tiles_without_a_class_are_left_out(covers):
    store = StoreReader.open(covers[0])
    store.class_pixels[training := select(store, "train").tiles[[1, 5]]] = 0
    selection = select(store, "train")
    assert selection.left_out == {"unlabelled": 2}
    assert not np.isin(training, selection.tiles).any()
    assert np.isin(training, select(store, "all").tiles).all()
