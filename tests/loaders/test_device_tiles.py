"""Tiles on a device give the batches of tiles in memory."""

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

from geoprep.errors import UsageError
from loaders import BatchLoader, DevicePrep, DeviceTiles, Normalize, RamTiles, SpeedTarget
from loaders import batch as batch_module
from loaders.tiles import device as device_module


@pytest.fixture(params=["cpu", pytest.param("found", marks=pytest.mark.accelerator)])
def device(request):
    """Return the device under test."""
    return request.getfixturevalue("accelerator") if request.param == "found" else "cpu"


@pytest.mark.parametrize(
    "options",
    [
        {"crop": 17, "augment": "d4", "crops_per_tile": 2},
        {"crop": 32, "augment": "flips", "min_road": 0.1},
        {"augment": "d4", "weights": "speed"},
        {"shuffle": False},
    ],
)
def test_residency_changes_no_sample(painted, device, options):
    here = BatchLoader(painted, 5, seed=3, **options)
    there = BatchLoader(DeviceTiles(painted, device), 5, seed=3, **options)
    for one, other in zip(here, there, strict=True):
        assert other.device.type == device
        assert other.image.is_contiguous(memory_format=torch.channels_last)
        for name in ("image", "speed", "index", "where", "key"):
            assert torch.equal(getattr(one, name), getattr(other, name).cpu())
            assert getattr(one, name).dtype == getattr(other, name).dtype


def test_a_host_ahead_of_the_device_changes_no_sample(painted, device):
    """Blocks are dropped while the device still works, and their memory is used again."""
    options = {"crop": 33, "augment": "d4", "crops_per_tile": 5}
    work = torch.ones(256, 256, device=device)
    found = []
    for batch in BatchLoader(DeviceTiles(painted, device), 4, **options):
        for _ in range(3 if device == "cpu" else 300):
            work = (work @ work).clamp(max=1)
        # The result depends on the work, so it is computed after it.
        found.append(batch.image.long().sum() * work[0, 0].long() + batch.label.long().sum())
    sums = [b.image.long().sum() + b.label.long().sum() for b in BatchLoader(painted, 4, **options)]
    assert torch.stack(found).tolist() == torch.stack(sums).tolist()


def test_a_batch_on_the_device_is_prepared_there(painted, device):
    loader = BatchLoader(DeviceTiles(painted, device), 5, crop=32)
    prep = DevicePrep(Normalize([9.0] * 3, [2.0] * 3), SpeedTarget("bins")).to(device)
    image, target, valid = prep(next(iter(loader)).to(device))
    assert {t.device.type for t in (image, target, valid)} == {device}


def test_the_hosts_copy_is_given_back(store_path):
    def held():
        return Path("/proc/self/maps").read_text().count("memfd:loaders")

    gc.collect()  # errors of earlier tests may keep their tiles until then
    before = held()
    tiles = DeviceTiles.load(store_path, level=16, device="cpu")
    here = RamTiles.load(store_path, level=16)
    assert held() == before + 1  # those in memory
    assert (tiles.fingerprint, tiles.left_out) == (here.fingerprint, here.left_out)
    assert (tiles.scene(5), tiles.affine(5)) == (here.scene(5), here.affine(5))
    assert tiles.store.location == str(store_path)
    assert all((a == b).all() for a, b in zip(tiles.pixels(7), here.pixels(7), strict=True))


def test_large_tiles_are_uploaded_piece_by_piece(painted, monkeypatch):
    monkeypatch.setattr(device_module, "_STAGE_BYTES", 10_000)
    tiles = DeviceTiles(painted, "cpu")
    assert (tiles.image.numpy() == painted.image).all()
    assert (tiles.label_of(7) == painted.speed[7]).all()


class Accelerator:
    """The memory figures of a device of 1 MB: 100 kB free, 300 kB in torch's cache, half unused."""

    mem_get_info = staticmethod(lambda device: (100_000, 1_000_000))
    memory_reserved = staticmethod(lambda device: 300_000)
    memory_allocated = staticmethod(lambda device: 150_000)


def test_tiles_leave_half_of_the_device_to_training(painted, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_device_module", lambda device: Accelerator)
        assert DeviceTiles.room(torch.device("cpu")) is None
        room = DeviceTiles.room(torch.device("cuda"))
    assert room == 125_000
    monkeypatch.setattr(DeviceTiles, "room", staticmethod(lambda device: room))
    with pytest.raises(UsageError) as error:
        DeviceTiles(painted, "cpu")
    message = str(error.value)
    assert "24 tiles of level 40 take 0.154 MB; cpu has 0.25 MB free" in message
    assert "may take 0.125 MB" in message
    assert "`residency` ram" in message
    monkeypatch.setattr(DeviceTiles, "room", staticmethod(lambda device: painted.nbytes))
    assert len(DeviceTiles(painted, "cpu")) == 24


def test_without_an_accelerator_a_device_must_be_named(painted, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    with pytest.raises(UsageError, match="finds no accelerator"):
        DeviceTiles(painted)


def test_offsets_of_many_large_tiles_do_not_overflow():
    tiles = RamTiles.from_arrays(np.ones((2, 64, 64, 3), np.uint8), np.ones((2, 64, 64), np.uint8))
    device_tiles = DeviceTiles(tiles, "cpu")
    device_tiles.side = 60_000  # as if: 3.6e9 pixels per tile
    one = torch.ones(1, dtype=torch.int64)
    last = device_tiles._pixels(one, one * 59_999, one * 59_999, one * 0, 1)
    assert int(last) == 2 * 60_000**2 - 1


def test_a_batch_is_gathered_without_waiting_for_the_device(painted, monkeypatch):
    """The words of a batch and the positions of its crops are copied from pinned memory."""
    pinned, copied, copy = [], [], torch.Tensor.copy_

    def pin(tensor):
        pinned.append(tensor.clone())
        return pinned[-1]

    def copy_(target, source, *, non_blocking=False):
        assert non_blocking
        copied.append(source)
        return copy(target, source)

    expected = list(BatchLoader(painted, 5, crop=17, augment="d4"))
    tiles = DeviceTiles(painted, "cpu")
    monkeypatch.setattr(batch_module, "has_streams", lambda device: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "copy_", copy_)
    found = list(BatchLoader(tiles, 5, crop=17, augment="d4", pin_memory=False))
    assert len(copied) == 2 * len(found)
    assert all(any(one is other for other in pinned) for one in copied)
    for one, other in zip(found, expected, strict=True):
        for name in ("image", "label", "index", "where", "key"):
            assert torch.equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("streams", [True, False])
def test_a_batch_waits_for_its_copy_to_a_device_that_pins_nothing(painted, monkeypatch, streams):
    asked = []
    to = torch.Tensor.to

    def recorded(tensor, device, *, non_blocking):
        asked.append(non_blocking)
        return to(tensor, device)

    monkeypatch.setattr(torch.Tensor, "to", recorded)
    monkeypatch.setattr(batch_module, "has_streams", lambda device: streams)
    batch = next(iter(BatchLoader(painted, 5, pin_memory=False)))
    batch.to("meta", non_blocking=True)
    batch.to("meta")
    assert asked == [streams, False]
