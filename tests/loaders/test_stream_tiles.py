"""Opening a store larger than memory: limits, tables, folders and buckets."""

import pytest
from helpers.streams import SMALL, TILE, TRAIN, digest, samples, threads_end

from geoprep.errors import StoreError, UsageError
from loaders import BatchLoader, RamTiles, memory
from loaders.memory import Available, memory_limit
from loaders.tiles import stream
from loaders.tiles.stream import StreamTiles


@pytest.mark.parametrize(
    ("given_limit", "nbytes"),
    [
        ("4GiB", 4 << 30),
        ("500MB", 500_000_000),
        ("1.5 kB", 1500),
        ("64 mib", 64 << 20),
        ("12B", 12),
        (12345, 12345),
    ],
)
def test_a_limit_is_an_amount(given_limit, nbytes):
    assert memory_limit(given_limit) == nbytes


def test_a_limit_may_be_a_share(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: Available(1000, "the machine"))
    assert memory_limit(0.25) == 250
    assert memory_limit(1.0) == 1000


@pytest.mark.parametrize(
    "wrong", ["4G", "much", "GiB", "-1MB", "1.2.3MB", ".MB", "5ib", "0MB", 0, -5, 1.5, True]
)
def test_a_limit_that_is_no_amount_is_refused(wrong):
    with pytest.raises(UsageError, match="'4GiB', '500MB', a number"):
        memory_limit(wrong)


def test_a_limit_too_small_for_a_window_is_refused_with_figures(large):
    with pytest.raises(UsageError) as error:
        StreamTiles.open(large, ram_limit=31 * TILE)
    message = str(error.value)
    assert "0.127 MB is too small" in message
    assert "4 tiles in each of 8 lanes, 0.131 MB" in message
    assert "0.0041 MB" in message


def test_a_limit_beyond_memory_is_refused(large, monkeypatch):
    monkeypatch.setattr(stream, "available_memory", lambda: Available(100_000, "the group"))
    with pytest.raises(UsageError, match=r"more than the 0\.1 MB that the group has left"):
        StreamTiles.open(large, ram_limit="1GB")


def test_several_stores_bands_and_levels(make_store):
    paths = [
        make_store(scenes=9, prefix="AOI_1_A_", bands=("coastal", "blue", "red"), splits=(0,)),
        make_store(scenes=7, prefix="AOI_2_B_", bands=("coastal", "blue", "red"), splits=(0, 0, 1)),
    ]
    options = {"level": 16, "bands": ("red", "coastal")}
    tiles = StreamTiles.open(paths, ram_limit=60 * 16 * 16 * 3, lanes=1, **options)
    held = RamTiles.load(paths, **options)
    assert tiles.fingerprint == held.fingerprint
    assert (tiles.bands, len(tiles), tiles.side) == (held.bands, len(held), held.side)
    for tile in (0, 20, len(tiles) - 1):
        assert (tiles.scene(tile), tiles.crs(tile)) == (held.scene(tile), held.crs(tile))
        assert tiles.affine(tile, (3, 4, 5), 8) == held.affine(tile, (3, 4, 5), 8)
    assert (tiles.table == held.table).all()
    with pytest.raises(UsageError, match="come from 2 stores"):
        _ = tiles.store
    here = BatchLoader(tiles, 1, crop=8, drop_last=False, threads=1)
    assert sorted(samples(here)) == sorted(samples(BatchLoader(held, 2, crop=8, drop_last=False)))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"lanes": 0}, "lanes=0"), ({"threads": 0}, "threads=0"), ({"level": 7}, "no level 7")],
)
def test_a_store_is_not_opened_as_it_cannot_be(large, options, message):
    with pytest.raises((UsageError, StoreError), match=message):
        StreamTiles.open(large, ram_limit="1MB", **options)


@pytest.mark.filterwarnings("ignore:Successfully reconstructed a store:RuntimeWarning")
def test_a_bucket_gives_the_batches_of_a_folder(make_store, bucket):
    path = make_store(scenes=12, levels=(32,), splits=(0,))
    there = StreamTiles.open(bucket.upload(path, "mine/a.zarr"), **SMALL)
    here = StreamTiles.open(path, **SMALL)
    found = [digest(batch) for batch in BatchLoader(there, 3, **TRAIN)]
    assert found == [digest(batch) for batch in BatchLoader(here, 3, **TRAIN)]
    bucket.put("mine/a.zarr/32/speed/c/2/0/0", b"damaged" * 99)
    with pytest.raises(StoreError, match=r"s3://tiles/mine/a\.zarr: array 32/speed, shard c/2/0/0"):
        list(BatchLoader(there, 3, **TRAIN))
    assert threads_end()
