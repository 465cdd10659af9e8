"""Tiles on a device give the batches of tiles in memory."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from geoprep.errors import UsageError
from loaders import (
    BatchLoader,
    DevicePrep,
    DeviceTiles,
    Normalize,
    RamTiles,
    SpeedTarget,
    device_tiles,
)

DEVICES = ["cpu"] + [d for d in ("cuda", "xpu") if getattr(torch, d).is_available()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options",
    [
        {"crop": 17, "augment": "d4", "crops_per_tile": 2},
        {"crop": 32, "augment": "flips", "min_road": 0.1},
        {"augment": "d4", "weights": "speed"},
        {"shuffle": False},
    ],
)
def test_residency_changes_no_sample(painted: RamTiles, device: str, options: dict[str, Any]):
    here = BatchLoader(painted, 5, seed=3, **options)
    there = BatchLoader(DeviceTiles(painted, device), 5, seed=3, **options)
    for one, other in zip(here, there, strict=True):
        assert other.device.type == device
        assert other.image.is_contiguous(memory_format=torch.channels_last)
        for name in ("image", "speed", "index", "where", "key"):
            assert torch.equal(getattr(one, name), getattr(other, name).cpu())
            assert getattr(one, name).dtype == getattr(other, name).dtype


def test_the_state_does_not_depend_on_residency(painted: RamTiles):
    here, there = BatchLoader(painted, 5), BatchLoader(DeviceTiles(painted, "cpu"), 5)
    batches = iter(here)
    next(batches)
    there.load_state_dict(here.state_dict())
    assert torch.equal(next(batches).key, next(iter(there)).key)


def test_a_batch_on_the_device_is_prepared_there(painted: RamTiles):
    loader = BatchLoader(DeviceTiles(painted, DEVICES[-1]), 5, crop=32)
    prep = DevicePrep(Normalize([9.0] * 3, [2.0] * 3), SpeedTarget("bins")).to(DEVICES[-1])
    image, target, valid = prep(next(iter(loader)).to(DEVICES[-1]))
    assert {t.device.type for t in (image, target, valid)} == {DEVICES[-1]}


def test_the_hosts_copy_is_given_back(store_path: Path):
    def held() -> int:
        return sum("memfd:loaders" in line for line in Path("/proc/self/maps").open())

    gc.collect()  # errors of earlier tests may keep their tiles until then
    before = held()
    tiles = DeviceTiles.load(store_path, level=16, device="cpu")
    here = RamTiles.load(store_path, level=16)
    assert held() == before + 1  # those in memory
    assert (tiles.fingerprint, tiles.left_out) == (here.fingerprint, here.left_out)
    assert (tiles.scene(5), tiles.affine(5)) == (here.scene(5), here.affine(5))
    assert tiles.store.location == str(store_path)
    assert all((a == b).all() for a, b in zip(tiles.pixels(7), here.pixels(7), strict=True))


def test_large_tiles_are_uploaded_piece_by_piece(
    painted: RamTiles, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(device_tiles, "_STAGE_BYTES", 10_000)
    tiles = DeviceTiles(painted, "cpu")
    assert (tiles.image.numpy() == painted.image).all()
    assert (tiles.label_of(7) == painted.speed[7]).all()


def test_tiles_that_do_not_fit_are_refused_with_figures(
    painted: RamTiles, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(device_tiles, "_free_bytes", lambda device: 1000)
    with pytest.raises(UsageError, match=r"24 tiles of level 40 .* `residency` ram"):
        DeviceTiles(painted, "cpu")


def test_without_an_accelerator_a_device_must_be_named(
    painted: RamTiles, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    with pytest.raises(UsageError, match="finds no accelerator"):
        DeviceTiles(painted)


def test_offsets_of_many_large_tiles_do_not_overflow():
    tiles = RamTiles.from_arrays(np.ones((2, 64, 64, 3), np.uint8), np.ones((2, 64, 64), np.uint8))
    device_tiles = DeviceTiles(tiles, "cpu")
    device_tiles.side = 60_000  # as if: 3.6e9 pixels per tile
    one = torch.ones(1, dtype=torch.int64)
    last = device_tiles._pixels(one, one * 59_999, one * 59_999, one * 0, 1)
    assert int(last) == 2 * 60_000**2 - 1
