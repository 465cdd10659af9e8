"""Stores with flipped bits, builds that are killed again and again, and readers of both."""

import contextlib
import random
import shutil
import threading

import numpy as np
import pytest
from helpers.crashes import OPTIONS, Builder
from helpers.factory import build_of, row_of_scenes, tree_digest

from geoprep.errors import GeoprepError, StoreError
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import read_image, read_label
from geoprep.verify.store_check import verify
from loaders import RamTiles, StreamTiles


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return row_of_scenes(tmp_path_factory.mktemp("scenes"), 6, [(96, 96), (64, 80)], "uint16")


@pytest.fixture(scope="module")
def store(scenes, tmp_path_factory):
    out = tmp_path_factory.mktemp("store") / "a.zarr"
    build_of(out, scenes, **OPTIONS)
    return out


@pytest.fixture(scope="module")
def builder(scenes, tmp_path_factory):
    """Return a builder, and the number of changes of files of a build."""
    with Builder(scenes, **OPTIONS) as builder:
        yield builder, builder.build(tmp_path_factory.mktemp("builder") / "a.zarr").events


def ram_tiles(store):
    tiles = RamTiles.load(store, "all", progress=False)
    return [tiles.image, tiles.speed]


def stream_tiles(store):
    tiles = StreamTiles.open(store, "all", ram_limit="64MB")
    return [part for tile in range(len(tiles)) for part in tiles.pixels(tile)]


def whole_scenes(store):
    opened = StoreReader.open(store)
    scenes = range(len(opened.scenes))
    return [read(opened, scene) for read in (read_image, read_label) for scene in scenes]


READERS = (ram_tiles, stream_tiles, whole_scenes)


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_is_found_and_never_a_pixel(store, tmp_path, seed):
    rng, right = random.Random(seed), {read: read(store) for read in READERS}
    copy = shutil.copytree(store, tmp_path / "copy.zarr")
    files = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.stat().st_size]
    sizes = [path.stat().st_size for path in files]
    for _ in range(25):
        path = rng.choices(files, sizes if rng.random() < 0.5 else None)[0]
        data = path.read_bytes()
        at, bit = rng.randrange(len(data)), rng.randrange(8)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        where = f"{path.relative_to(copy)}, bit {bit} of byte {at}"
        assert is_damaged(copy), where
        for read in READERS:
            try:
                found = read(copy)
            except GeoprepError:
                continue
            assert all(map(np.array_equal, found, right[read])), f"{where}: {read.__name__}"
        path.write_bytes(data)


def is_damaged(store):
    try:
        return bool(verify(store, workers=1).problems)
    except StoreError:
        return True


@pytest.mark.parametrize("seed", range(40))
def test_builds_killed_repeatedly_are_finished(builder, store, tmp_path, seed):
    rng, out, (builder, events) = random.Random(seed), tmp_path / "a.zarr", builder
    for _ in range(rng.randint(1, 3)):
        builder.build(out, die_at=rng.randint(1, events))
    assert not builder.build(out).error
    assert tree_digest(out) == tree_digest(store)


@pytest.mark.parametrize("seed", range(10))
def test_two_builds_of_one_store_leave_a_whole_one(scenes, store, tmp_path, seed):
    """Each succeeds, or says that another process writes it."""
    out, endings = tmp_path / "a.zarr", []

    def run():
        with Builder(scenes, **OPTIONS) as builder:
            endings.append(builder.build(out))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {ending.error for ending in endings} <= {"", "StoreError"}
    assert any(not ending.error for ending in endings)
    assert tree_digest(out) == tree_digest(store)


def test_a_store_that_is_replaced_is_read_whole_or_not_at_all(builder, store, tmp_path):
    out = shutil.copytree(store, tmp_path / "a.zarr")
    right = {read: read(store) for read in READERS}
    builder, _ = builder
    rebuilt = threading.Thread(
        target=lambda: [
            builder.build(out, overwrite=True, codec=codec) for codec in ("zstd", "lz4") * 5
        ]
    )
    rebuilt.start()
    while rebuilt.is_alive():
        for read in READERS:
            with contextlib.suppress(GeoprepError):
                assert all(map(np.array_equal, read(out), right[read])), read.__name__
    rebuilt.join()
