"""Compressed tiles give the same batches from less memory."""

import pickle

import google_crc32c
import numpy as np
import pytest
from helpers.streams import digest
from torch.utils.data import DataLoader

from geoprep.errors import StoreError, UsageError
from geoprep.store.layout import shard_key
from loaders import BatchLoader, DeviceTiles, RamTiles, TileDataset, chunks, collate, selection
from loaders.memory import Available


@pytest.fixture(scope="module")
def two_stores(make_store):
    """Return stores of different codecs, shards and bands."""
    lz4 = make_store(bands=("red", "green", "blue", "nir"), shard_tiles=7, prefix="AOI_1_A_")
    zstd = make_store(bands=("nir", "blue", "red"), codec="zstd", scenes=6, prefix="AOI_2_B_")
    return [lz4, zstd]


def both(stores, *given, **options):
    return (
        RamTiles.load(stores, *given, **options),
        RamTiles.load(stores, *given, keep="compressed", **options),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"crop": 17, "augment": "d4", "crops_per_tile": 3},
        {"augment": "d4", "weights": "speed"},
        {"shuffle": False},
    ],
)
def test_the_batches_are_those_of_pixels(two_stores, options):
    pixels, compressed = both(two_stores, "train", bands=("blue", "red"))
    assert compressed.fingerprint == pixels.fingerprint
    loaders = [BatchLoader(each, 5, seed=3, **options) for each in (pixels, compressed)]
    for _ in range(2):
        here, there = ([digest(batch) for batch in loader] for loader in loaders)
        assert there == here


def test_workers_share_one_copy_that_is_smaller(make_store):
    path = make_store(levels=(128,), bands=("red", "green"))
    pixels, compressed = both(path, "all")
    assert compressed.handle.nbytes < 0.8 * pixels.nbytes
    assert len(pickle.dumps(compressed)) < 1000
    attached = pickle.loads(pickle.dumps(compressed))
    assert attached.handle[2:] == compressed.handle[2:]  # device, inode, bytes: the same memory
    assert f"{compressed!r}".startswith("CompressedTiles(40 tiles of 128 x 128 x 2")
    shapes = {"crop": 64, "augment": "d4", "seed": 1}
    batches = [
        list(DataLoader(TileDataset(each, **shapes), 8, num_workers=workers, collate_fn=collate))
        for each, workers in ((pixels, 0), (compressed, 2))
    ]
    for one, other in zip(*batches, strict=True):
        assert (one["image"] == other["image"]).all()
        assert (one["speed"] == other["speed"]).all()


def test_a_chunk_with_a_valid_checksum_that_is_not_a_tile_is_named(make_store):
    path = make_store(splits=(0,), levels=(32,))
    shard = path / shard_key("32/speed", 1)
    data = bytearray(shard.read_bytes())
    index = np.frombuffer(data[-8 * 16 - 4 : -4], "<u8").reshape(8, 2)
    start, size = index[3].tolist()
    data[start + 4] ^= 1  # the size that the codec's header tells
    body = bytes(data[start : start + size - 4])
    data[start + size - 4 : start + size] = google_crc32c.value(body).to_bytes(4, "little")
    shard.write_bytes(data)
    tiles = RamTiles.load(path, keep="compressed")
    with pytest.raises(StoreError, match=r"test\.zarr: array 32/speed, tile 11 cannot be decoded"):
        list(BatchLoader(tiles, 4))


def test_too_many_tiles_are_refused_before_pixels_are_read(store_path, monkeypatch):
    size = RamTiles.load(store_path, keep="compressed")._chunks.nbytes
    little = Available(selection.RESERVE + size - 1, "the machine")
    monkeypatch.setattr(selection, "available_memory", lambda: little)
    monkeypatch.setattr(chunks.PixelArray, "read_stored", None)
    with pytest.raises(UsageError, match=r"MB compressed \(32 tiles.*StreamTiles") as refusal:
        RamTiles.load(store_path, keep="compressed")
    assert "keep=" not in str(refusal.value)
    with pytest.raises(UsageError, match='keep="compressed"'):
        RamTiles.load(store_path)


def test_use_as_arrays_is_refused_with_the_alternative(store_path):
    tiles = RamTiles.load(store_path, keep="compressed")
    with pytest.raises(UsageError, match="compressed tiles are not arrays"):
        _ = tiles.speed
    with pytest.raises(UsageError, match="keep='pixels'"):
        DeviceTiles(tiles, "cpu")
    with pytest.raises(UsageError, match="keep='zip' is not one of pixels, compressed"):
        RamTiles.load(store_path, keep="zip")
