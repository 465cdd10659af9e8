"""A complete store stays until the store that replaces it is complete."""

import shutil

import numpy as np
import pytest
from helpers.disks import small_disk
from helpers.factory import build_of, interrupt, plan_of, row_of_scenes, tree_digest, write_scene

from geoprep.building import run, target
from geoprep.building.run import build
from geoprep.errors import StoreError
from geoprep.executors.threads import Threads
from geoprep.storage.failures import free_bytes

OLD = {"tile": 32, "codec": "zstd"}
NEW = {"tile": 32, "shard_tiles": 4}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return row_of_scenes(tmp_path_factory.mktemp("scenes"), 3, 64)


@pytest.fixture(scope="module")
def built(scenes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    for name, options in (("old", OLD), ("new", NEW)):
        build_of(folder / name / "a.zarr", scenes, **options)
    return folder


@pytest.fixture
def stores(built, tmp_path):
    """Return a complete store, its digest, and that of the store that replaces it."""
    out = shutil.copytree(built / "old" / "a.zarr", tmp_path / "a.zarr")
    return out, tree_digest(out), tree_digest(built / "new" / "a.zarr")


@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_an_exchange_that_was_killed_is_finished(scenes, stores, monkeypatch, renamed):
    """Before the first rename, between the two, and after the second."""
    out, old, new = stores
    left = iter([None] * renamed)

    def die(path):
        if next(left, path) is not None:
            raise KeyboardInterrupt
        return None

    real = type(out).rename
    with monkeypatch.context() as patch:
        patch.setattr(type(out), "rename", lambda path, to: die(path) or real(path, to))
        patch.setattr(run, "summarise", lambda *_: die(out))
        patch.setattr(target.Journal, "remove", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            build(plan_of(scenes, **NEW), out, Threads(1), overwrite=True)
    assert not out.exists() if renamed == 1 else tree_digest(out) == (new if renamed else old)
    shards = []
    monkeypatch.setattr(run, "build_shard", shards.append)
    build(plan_of(scenes, **NEW), out, Threads(1), overwrite=True)
    assert not shards, "the new store is complete already"
    assert tree_digest(out) == new
    assert not out.with_name("a.zarr.build").exists()


def test_the_old_store_is_kept_where_no_scene_can_be_built(scenes, stores, tmp_path):
    out, old, _ = stores
    black = write_scene(tmp_path, "black", np.zeros((64, 64, 3), np.uint8))
    with pytest.raises(StoreError, match=r"none of the scenes.*100.0% nodata.*not replaced"):
        build(plan_of([black], **NEW), out, Threads(1), overwrite=True)
    assert tree_digest(out) == old
    assert not out.with_name("a.zarr.build").exists()


def test_a_replacement_that_is_given_up_is_removed_by_the_next_build(scenes, stores):
    out, old, _ = stores
    interrupt(plan_of(scenes, **NEW), out, 1, overwrite=True)
    assert out.with_name("a.zarr.build").exists()
    assert build(plan_of(scenes, **OLD), out, Threads(1)).state == "unchanged"
    assert tree_digest(out) == old
    assert not out.with_name("a.zarr.build").exists()


def test_a_store_behind_a_link_to_another_disk_is_built_and_replaced_there(scenes, tmp_path):
    out = tmp_path / "a.zarr"
    with small_disk(tmp_path / "disk", 20_000) as disk:
        real = disk / "real.zarr"
        out.symlink_to(real)
        build_of(out, scenes, **OLD)
        assert free_bytes(out) < 20_480_000
        build(plan_of(scenes, **NEW), out, Threads(1), overwrite=True)
        assert out.is_symlink()
        assert [path.name for path in disk.iterdir() if path.name != "lost+found"] == ["real.zarr"]
        build_of(tmp_path / "new.zarr", scenes, **NEW)
        assert tree_digest(real) == tree_digest(tmp_path / "new.zarr")


def test_a_place_that_nothing_can_be_renamed_to_is_refused_before_the_build(scenes, tmp_path):
    with small_disk(tmp_path / "a.zarr", 20_000) as disk:
        for path in disk.iterdir():
            path.rmdir()
        with pytest.raises(StoreError, match="on another file system"):
            build(plan_of(scenes, **NEW), disk, Threads(1))
    assert not (tmp_path / "a.zarr.build").exists()


def test_files_that_no_build_wrote_are_never_deleted(scenes, stores):
    out, _, new = stores
    (out / "scenes" / "image.tif").write_text("the only copy")
    with pytest.raises(StoreError, match=r"a\.zarr contains scenes/image\.tif, which no build"):
        build(plan_of(scenes, **NEW), out, Threads(1), overwrite=True)
    assert (out / "scenes" / "image.tif").read_text() == "the only copy"
    working = out.with_name("a.zarr.build")
    working.mkdir(exist_ok=True)
    (out / "scenes" / "image.tif").rename(working / "image.tif")
    build(plan_of(scenes, **NEW), out, Threads(1), overwrite=True)
    assert tree_digest(out) == new
    assert [path.name for path in working.iterdir()] == ["image.tif"]
