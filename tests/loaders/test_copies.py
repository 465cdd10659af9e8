"""Loaders are pickled and copied with their position, and describe themselves."""

import copy
import pickle

import pytest
from helpers.streams import SMALL, TRAIN, digest

from loaders import BatchLoader, DeviceTiles, RamTiles, StreamTiles

KINDS = ["ram", "compressed", "device", "stream"]


def make(kind, path, **options):
    if kind == "stream":
        tiles = StreamTiles.open(path, **SMALL)
    else:
        tiles = RamTiles.load(path, keep="compressed" if kind == "compressed" else "pixels")
        tiles = DeviceTiles(tiles, "cpu") if kind == "device" else tiles
    return BatchLoader(tiles, 3, **(TRAIN | {"weights": "road"} | options))


def through_pickle(loader):
    return pickle.loads(pickle.dumps(loader))


@pytest.mark.parametrize("again", [through_pickle, copy.deepcopy])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_gives_the_same_batches(store_path, kind, again):
    loader = make(kind, store_path)
    first = [digest(batch) for batch in loader]
    batches = iter(loader)
    next(batches)
    twin = again(loader)  # in the middle of the second epoch
    assert (twin.epoch, twin.state_dict()) == (1, loader.state_dict())
    assert [digest(batch) for batch in twin] == [digest(batch) for batch in batches]
    loader.set_epoch(0)
    assert [digest(batch) for batch in loader] == first  # what the copy did does not show


@pytest.mark.parametrize("kind", KINDS)
def test_the_repr_describes_the_loader(store_path, kind):
    loader = make(kind, store_path)
    next(iter(loader))
    text = repr(loader)
    assert "tiles of 32 x 32 x 3" in text
    for part in ("batch_size=3", "crop=16", "augment='d4'", "seed=5", "rank 0 of 1"):
        assert part in text
    assert "32 batches of 96 samples from 32 tiles, at position 3 of epoch 0" in text
