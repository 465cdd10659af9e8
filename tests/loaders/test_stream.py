"""Batches of a stream: those of memory in another order, resumable, within a limit."""

import re
import time
import tracemalloc

import numpy as np
import pytest
from helpers.streams import SMALL, TILE, TRAIN, digest, samples, threads_end
from hypothesis import given, settings
from hypothesis import strategies as st

from geoprep.errors import StoreError, UsageError
from geoprep.store.layout import shard_key
from loaders import BatchLoader, RamTiles
from loaders.tiles.stream import StreamTiles


@pytest.fixture(scope="module")
def in_memory(large):
    return RamTiles.load(large)


def most_bytes(loader):
    """Return the most memory that tiles, batches and reading take."""
    reader = loader._reader
    return reader._tiles_held * reader.tiles.tile_bytes + reader._other


@pytest.mark.parametrize(
    "options",
    [
        {"crop": 16, "augment": "d4", "crops_per_tile": 3},
        {"augment": "flips", "weights": "road"},
        {"weights": "speed", "crops_per_tile": 2},
        {"min_road": 0.98},
        {"crop": 32, "min_road": 0.9, "crops_per_tile": 2},
    ],
)
def test_an_epoch_has_the_samples_that_memory_would_give(large, in_memory, options):
    options = {**options, "seed": 3, "drop_last": False, "threads": 1}
    here = samples(BatchLoader(StreamTiles.open(large, **SMALL), 2, **options))
    there = samples(BatchLoader(in_memory, 2, **options))
    assert sorted(here) == sorted(there)
    assert here != there


@pytest.mark.parametrize("world", [1, 3])
def test_evaluation_gives_the_batches_of_memory(large, in_memory, world):
    seen = []
    for rank in range(world):
        options = {"shuffle": False, "rank": rank, "world_size": world}
        here = list(BatchLoader(StreamTiles.open(large, **SMALL), 5, **options))
        there = list(BatchLoader(in_memory, 5, **options))
        assert [digest(b) for b in here] == [digest(b) for b in there]
        seen += [int(i) for batch in here for i in batch.index]
    assert sorted(seen) == list(range(160))


@settings(deadline=None, max_examples=10)
@given(
    capacity=st.integers(24, 300),
    lanes=st.integers(1, 4),
    batch=st.integers(1, 4),
    world=st.integers(1, 3),
    crops=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_ranks_share_an_epoch_of_all_tiles(large, capacity, lanes, batch, world, crops, seed):
    options = {"crop": 8, "crops_per_tile": crops, "seed": seed, "threads": 1, "drop_last": False}
    tiles = StreamTiles.open(large, ram_limit=capacity * TILE, lanes=lanes)
    alone = samples(BatchLoader(tiles, batch * world, **options))
    assert (np.bincount([s[0] for s in alone]) == crops).all()
    ranks = []
    for rank in range(world):
        loader = BatchLoader(tiles, batch, rank=rank, world_size=world, **options)
        assert most_bytes(loader) <= tiles.ram_limit
        ranks.append(samples(loader))
    union = [sample for rank in ranks for sample in rank]
    assert len({-(-len(rank) // batch) for rank in ranks}) == 1
    assert 0 <= len(alone) - len(union) < world
    assert set(union) <= set(alone)
    assert len(set(union)) == len(union)


@settings(deadline=None, max_examples=8)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 4), st.randoms())
def test_batches_do_not_depend_on_threads_or_time(large, fill, read, prefetch, rng):
    def digests(fill, read, prefetch, pause):
        tiles = StreamTiles.open(large, **{**SMALL, "ram_limit": 80 * TILE}, threads=read)
        straight = tiles.read

        def halting(*where):
            time.sleep(pause * rng.random())
            straight(*where)

        tiles.read = halting  # a disk of varying speed
        loader = BatchLoader(tiles, 5, threads=fill, prefetch=prefetch, **TRAIN)
        return [digest(batch) for batch in loader]

    assert digests(fill, read, prefetch, 0.01) == digests(1, 1, 0, 0.0)


def tiles_read(loader):
    """Return the tiles that a loader reads from its store to the end of the epoch."""
    found = []
    straight = loader.tiles.read

    def noted(tiles, *where):
        found.extend(tiles.tolist())
        straight(tiles, *where)

    loader.tiles.read = noted
    for _ in loader:
        pass
    return found


def test_a_tile_is_read_once_an_epoch_whatever_its_crops(large):
    loader = BatchLoader(StreamTiles.open(large, **SMALL), 3, drop_last=False, **TRAIN)
    counts = np.bincount(tiles_read(loader))
    assert len(counts) == 160
    assert counts.min() == 1
    assert counts.sum() <= 160 + loader.tiles.shape.lanes - 1  # in two lanes where one is cut


def test_resuming_reads_only_the_window_and_later_tiles(large):
    options = {**TRAIN, "drop_last": False}
    loader = BatchLoader(StreamTiles.open(large, **SMALL), 3, **options)
    batches = iter(loader)
    for _ in range(120):
        next(batches)
    again = BatchLoader(StreamTiles.open(large, **SMALL), 3, **options)
    again.load_state_dict(loader.state_dict())
    shape = again.sampling.shape
    # 360 of 480 samples are done, and so are all tiles but those of the window.
    assert 40 <= len(tiles_read(again)) <= 40 + 2 * (shape.window + shape.run)


def test_a_state_keeps_its_shuffle_window(large):
    options = {**TRAIN, "drop_last": False}

    def loader(capacity, lanes, batch):
        tiles = StreamTiles.open(large, ram_limit=capacity * TILE, lanes=lanes)
        return BatchLoader(tiles, batch, **options)

    first, same, wide, narrow = (
        loader(*given) for given in ((40, 2, 3), (40, 2, 3), (100, 5, 3), (20, 2, 1))
    )
    batches = iter(first)
    for _ in range(50):
        next(batches)
    same.load_state_dict(first.state_dict())
    assert wide.sampling.shape != same.sampling.shape
    wide.load_state_dict(first.state_dict())
    assert samples(wide) == samples(same)
    before = narrow.sampling
    with pytest.raises(UsageError, match="must be in memory at a time"):
        narrow.load_state_dict(first.state_dict())
    assert narrow.sampling is before


def test_a_state_of_another_order_or_seed_is_refused(large, in_memory):
    here = BatchLoader(StreamTiles.open(large, **SMALL), 3, **TRAIN)
    there = BatchLoader(in_memory, 3, **TRAIN)
    with pytest.raises(UsageError, match="shuffle was True, is 'window'"):
        here.load_state_dict(there.state_dict())
    with pytest.raises(UsageError, match="shuffle was 'window', is True"):
        there.load_state_dict(here.state_dict())
    other = BatchLoader(StreamTiles.open(large, **SMALL), 3, **{**TRAIN, "seed": 6})
    with pytest.raises(UsageError, match="seed was"):
        other.load_state_dict(here.state_dict())


def test_no_more_pixels_are_allocated_than_the_limit(make_store):
    path = make_store(scenes=25, levels=(128,), splits=(0,))
    limit = 3_000_000  # of 6.5 MB
    tracemalloc.start()
    try:
        loader = BatchLoader(StreamTiles.open(path, ram_limit=limit, lanes=2), 4, crop=100)
        most, pointers = 0, set()
        for step, batch in enumerate(loader):
            pointers.add(batch.image.data_ptr())
            if step % 5 == 0:
                traces = tracemalloc.take_snapshot().filter_traces(
                    [tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)]
                )
                most = max(most, sum(t.size for t in traces.traces))
        assert limit / 2 < most <= most_bytes(loader) <= limit
        assert len(pointers) <= loader.prefetch + 3
    finally:
        tracemalloc.stop()


def test_a_limit_too_small_for_the_batches_is_refused_with_one_that_is_enough(make_store):
    path = make_store(scenes=40, levels=(96,), splits=(0,))
    with pytest.raises(UsageError, match="for batches and reading makes") as error:
        BatchLoader(StreamTiles.open(path, ram_limit=3_000_000), 32, threads=2)
    enough = re.search(r"to (\d+ MB)", str(error.value))
    assert enough is not None
    BatchLoader(StreamTiles.open(path, ram_limit=enough[1]), 32, threads=2)


@pytest.mark.parametrize("codec_array", ["32/image", "32/speed"])
def test_a_flipped_bit_names_array_and_shard(make_store, codec_array):
    path = make_store(scenes=20, splits=(0,), levels=(32,))
    shard = path / shard_key(codec_array, 6)  # tiles 48 to 55
    data = bytearray(shard.read_bytes())
    data[40] ^= 4
    shard.write_bytes(data)
    loader = BatchLoader(StreamTiles.open(path, **SMALL), 4, shuffle=False)
    for _ in range(2):
        seen = []
        with pytest.raises(StoreError) as error:
            seen.extend(int(i) for batch in loader for i in batch.index)
        where = f"array {codec_array}, shard {shard.relative_to(path / codec_array)}"
        assert where in str(error.value)
        assert seen == list(range(48))  # what comes before the damage is not lost
        assert threads_end()


@settings(deadline=None, max_examples=6)
@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 4), st.integers(0, 99))
def test_damage_ends_an_epoch_in_one_place(damaged, threads, prefetch, read, seed):
    def epoch(threads, prefetch, read):
        tiles = StreamTiles.open(damaged, ram_limit=18 * TILE, lanes=1, threads=read)
        options = {"crop": 8, "crops_per_tile": 2, "seed": seed}
        loader = BatchLoader(tiles, 6, threads=threads, prefetch=prefetch, **options)
        seen = []
        with pytest.raises(StoreError, match=r"shard c/6/0/0/0"):
            seen.extend(digest(batch) for batch in loader)
        return seen

    assert epoch(threads, prefetch, read) == epoch(1, 0, 1)
    assert threads_end()


@pytest.fixture(scope="module")
def damaged(make_store):
    """Return a store of 80 tiles with a shard that cannot be read."""
    path = make_store(scenes=20, splits=(0,), levels=(32,))
    (path / shard_key("32/image", 6)).write_bytes(b"damaged")
    return path
