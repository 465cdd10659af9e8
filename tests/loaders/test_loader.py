"""Batches do not depend on threads or processes, can be resumed anywhere, and leave no thread."""

import json
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.painted import painted_speed
from helpers.streams import SMALL, TRAIN, digest, loader_threads, samples, threads_end

from geoprep.errors import UsageError
from loaders import BatchLoader, RamTiles, StreamTiles


def digests(loader):
    return [digest(batch) for batch in loader]


def test_a_batch_is_bytes_in_channels_last_order(painted):
    batch = next(iter(BatchLoader(painted, 8, **TRAIN)))
    assert (batch.image.dtype, batch.speed.dtype) == (torch.uint8, torch.uint8)
    assert batch.image.shape == (8, 3, 16, 16)
    assert batch.speed.shape == (8, 16, 16)
    assert batch.image.is_contiguous(memory_format=torch.channels_last)
    assert (batch.index.shape, batch.where.shape, batch.key.shape) == ((8,), (8, 3), (8,))


@pytest.mark.parametrize("augment", [None, "flips", "d4"])
@pytest.mark.parametrize("crop", [None, 1, 17, 40])
def test_image_label_and_crop_agree(painted, augment, crop):
    side = crop or 40
    for batch in BatchLoader(painted, 7, crop=crop, augment=augment, drop_last=False):
        row, column, tile = (batch.image[:, band].int().numpy() - 1 for band in range(3))
        assert (tile == batch.index.numpy()[:, None, None]).all()
        assert (batch.speed.numpy() == painted_speed(tile, row, column)).all()
        assert (row.min((1, 2)) == batch.where[:, 0].numpy()).all()
        assert (column.min((1, 2)) == batch.where[:, 1].numpy()).all()
        assert (row.max((1, 2)) == batch.where[:, 0].numpy() + side - 1).all()


def test_batches_do_not_depend_on_threads_or_prefetch(painted):
    expected = digests(BatchLoader(painted, 5, threads=1, prefetch=0, **TRAIN))
    assert len(expected) == 14
    for threads in range(2, 9):
        loader = BatchLoader(painted, 5, threads=threads, prefetch=threads % 4, **TRAIN)
        assert digests(loader) == expected


@pytest.mark.parametrize(
    ("residency", "size", "stop"),
    [*(("ram", 8, stop) for stop in (0, 1, 4, 8)), *(("stream", 3, stop) for stop in (1, 40, 157))],
)
@pytest.mark.parametrize(("batch", "world"), [(3, 1), (3, 3), (1, 3), (4, 2)])
def test_a_state_resumes_where_it_was_taken(painted, large, residency, size, stop, batch, world):
    def created(batch, **ranks):
        tiles = painted if residency == "ram" else StreamTiles.open(large, **SMALL)
        return BatchLoader(tiles, batch, drop_last=False, **TRAIN, **ranks)

    loader = created(size)
    loader.set_epoch(4)
    whole = samples(loader)
    loader.set_epoch(4)
    batches = iter(loader)
    for _ in range(stop):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    batches.close()

    rest, after = whole[size * stop :], []
    for rank in range(world):
        again = created(batch, rank=rank, world_size=world)
        again.load_state_dict(state)
        again.set_epoch(4)
        assert again.epoch == 4
        after += samples(again)
        assert again.epoch == 5
    assert after == rest if world == 1 else set(after) <= set(rest)
    # Training ranks take equal steps: a tail of fewer samples than ranks is left out.
    tail = len(rest) % (batch * world)
    assert len(rest) - len(set(after)) == (tail if tail < world else 0)


def test_a_state_is_small_and_plain(painted):
    loader = BatchLoader(painted, 8, weights="road", **TRAIN)
    next(iter(loader))
    state = loader.state_dict()
    assert len(json.dumps(state)) < 500
    assert (state["epoch"], state["position"]) == (0, 8)


def test_choosing_another_epoch_forgets_the_position(painted):
    loader = BatchLoader(painted, 8, **TRAIN)
    next(iter(loader))
    again = BatchLoader(painted, 8, **TRAIN)
    again.load_state_dict(loader.state_dict())
    again.set_epoch(1)
    assert len(digests(again)) == len(loader)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 6},
        {"crop": 8},
        {"augment": "flips"},
        {"crops_per_tile": 2},
        {"weights": "road"},
        {"min_road": 0.1},
    ],
)
def test_a_state_of_other_samples_is_refused(painted, change):
    before = {**TRAIN, "crop": 33}
    state = BatchLoader(painted, 8, **before).state_dict()
    with pytest.raises(UsageError, match=f"other samples.*{next(iter(change))} was"):
        BatchLoader(painted, 8, **{**before, **change}).load_state_dict(state)


def test_a_state_of_other_tiles_or_another_version_is_refused(painted):
    state = BatchLoader(painted, 8, **TRAIN).state_dict()
    with pytest.raises(UsageError, match="tiles was"):
        BatchLoader(painted, 8, **TRAIN).load_state_dict(
            {**state, "sampling": {**state["sampling"], "tiles": "24x40x3-0"}}
        )
    with pytest.raises(UsageError, match="version 99"):
        BatchLoader(painted, 8, **TRAIN).load_state_dict({**state, "version": 99})


@pytest.mark.parametrize(
    ("name", "value"), [("position", 10**9), ("position", -1), ("position", None), ("epoch", -1)]
)
def test_a_state_outside_the_epoch_is_refused(painted, name, value):
    loader = BatchLoader(painted, 8, **TRAIN)
    whole = digests(loader)
    with pytest.raises(UsageError, match=f"{name} {value}.*72 samples"):
        loader.load_state_dict({**loader.state_dict(), name: value})
    loader.set_epoch(0)
    assert digests(loader) == whole


def test_held_batches_never_change(painted):
    loader = BatchLoader(painted, 4, threads=3, prefetch=5, **TRAIN)
    held = list(loader)
    assert [digest(batch) for batch in held] == digests(loader.__class__(painted, 4, **TRAIN))
    part = held[3].image[1, 0, 2:5]
    copy = part.clone()
    del held
    for _ in range(3):
        digests(loader)
    assert (part == copy).all()


def test_threads_share_the_buffers_that_the_loop_has_left(painted):
    loader = BatchLoader(painted, 2, threads=4, prefetch=4, crops_per_tile=20)
    buffers = set()
    for batch in loader:
        buffers.add(batch.block.data_ptr())
    assert len(buffers) <= loader.prefetch + 2  # those in work or ready, and two of the loop


def test_the_loop_fills_batches_without_threads(painted):
    loader = BatchLoader(painted, 5, threads=0, **TRAIN)
    assert digests(loader) == digests(BatchLoader(painted, 5, threads=2, **TRAIN))
    assert threads_end()
    batches = iter(loader)
    next(batches)
    assert loader_threads() == []
    batches.close()
    assert list(batches) == []


def test_tiles_that_are_decoded_or_read_need_a_thread(store_path):
    for tiles in (RamTiles.load(store_path, keep="compressed"), StreamTiles.open(store_path)):
        assert BatchLoader(tiles, 1).threads > 0
        with pytest.raises(UsageError, match="threads=0"):
            BatchLoader(tiles, 1, threads=0)


@pytest.mark.parametrize("kind", ["ram", "stream"])
def test_many_epochs_leak_neither_threads_nor_descriptors(store_path, kind):
    descriptors = Path("/proc/self/fd")
    stream = kind == "stream"
    tiles = StreamTiles.open(store_path, **SMALL) if stream else RamTiles.load(store_path)
    loader = BatchLoader(tiles, 8, threads=3, **TRAIN)
    digests(loader)
    assert threads_end()
    before = len(list(descriptors.iterdir())), threading.active_count()
    for epoch in range(20):
        for step, _ in enumerate(loader):
            if epoch % 3 == 0 and step == 2:
                break
    assert threads_end()
    assert (len(list(descriptors.iterdir())), threading.active_count()) == before


def test_min_road_is_kept_where_a_draw_finds_it():
    speed = np.zeros((6, 96, 96), np.uint8)
    speed[1:, :, 32:64] = 25  # a vertical road, a third of the tile
    tiles = RamTiles.from_arrays(np.ones((6, 96, 96, 1), np.uint8), speed)
    loader = BatchLoader(tiles, 5, crop=48, min_road=0.3, crops_per_tile=8, drop_last=False)
    share, index = [], []
    for batch in loader:
        share += (batch.speed > 0).float().mean((1, 2)).tolist()
        index += batch.index.tolist()
    assert 0 not in index  # no road at all
    plain = BatchLoader(tiles, 5, crop=48, crops_per_tile=8, drop_last=False)
    plain_share = [float(s) for b in plain for s in (b.speed > 0).float().mean((1, 2))]
    assert np.mean(np.array(share) >= 0.3) > 0.95 > np.mean(np.array(plain_share) >= 0.3)


def test_min_road_of_whole_tiles_leaves_the_others_out():
    speed = np.zeros((3, 8, 8), np.uint8)
    speed[2, :4] = 30
    tiles = RamTiles.from_arrays(np.ones((3, 8, 8, 1), np.uint8), speed)
    with pytest.warns(UserWarning, match="leaves 1 of 3 tiles to draw from"):
        loader = BatchLoader(tiles, 1, min_road=0.5, crops_per_tile=2)
    assert (loader.drawn_tiles, loader.samples) == (1, 2)
    assert [int(b.index[0]) for b in loader] == [2, 2]
    with pytest.raises(UsageError, match="no tile has enough for min_road"):
        BatchLoader(tiles, 1, min_road=0.6)


def test_a_crop_as_large_as_the_tile_keeps_its_crops_per_tile(painted):
    with warnings.catch_warnings(action="error"):  # all are drawn from
        loader = BatchLoader(painted, 8, crop=40, augment="d4", crops_per_tile=4)
    assert (loader.samples, loader.sampling.crops_per_tile, loader.drawn_tiles) == (96, 4, 24)
    assert sum(len(batch) for batch in loader) == 96


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": -1}, "threads=-1"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"shuffle": False, "weights": "road"}, "sees every tile once"),
        ({"weights": "roads"}, "'roads' is not"),
        ({"weights": np.ones(3)}, r"shape \(3,\).*24"),
        ({"weights": np.r_[np.nan, np.ones(23)]}, "finite"),
        ({"weights": np.r_[-1.0, np.ones(23)]}, "not negative"),
        ({"weights": np.zeros(24)}, "not all zero"),
        ({"crop": 41}, "crop=41 does not fit into tiles of 40 x 40"),
        ({"crop": 0}, "crop=0"),
        ({"crop": 8, "min_road": 0.5}, "at least 32 pixels"),
        ({"augment": "rot90"}, "'rot90' is not one of"),
        ({"crops_per_tile": 0}, "crops_per_tile=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"world_size": 4}, "24 samples do not fill one step of 8 x 4 ranks"),
        ({"rank": 2, "world_size": 2}, "rank=2 is not within world_size=2"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(painted, options, message):
    with pytest.raises(UsageError, match=message):
        BatchLoader(painted, **{"batch_size": 8} | options)


def test_moving_a_batch_moves_every_part_unless_it_is_where_it_should_be(painted):
    batch = next(iter(BatchLoader(painted, 8, **TRAIN)))
    assert batch.to("cpu") is batch
    moved = batch.to("meta", non_blocking=True)
    for name in ("image", "speed", "index", "where", "key"):
        here, there = getattr(batch, name), getattr(moved, name)
        assert there.device.type == "meta"
        assert (there.shape, there.dtype, there.stride()) == (here.shape, here.dtype, here.stride())


@pytest.mark.accelerator
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
def test_a_pinned_batch_may_be_dropped_while_it_is_copied(painted):
    device = torch.accelerator.current_accelerator()
    assert device is not None
    loader = BatchLoader(painted, 8, pin_memory=True, **TRAIN)
    moved = []
    for batch in loader:
        assert batch.image.is_pinned()
        moved.append(batch.to(device, non_blocking=True))
    there = [digest(batch.to("cpu")) for batch in moved]
    assert there == digests(BatchLoader(painted, 8, pin_memory=False, **TRAIN))
