"""Local files are complete or absent, and errors of the disk are one line."""

import errno
import fcntl
import gc
import os
import shutil
import time

import numpy as np
import pytest
from helpers.disks import small_disk

from geoprep.errors import OutputError, StoreError, UsageError
from geoprep.sources.cities import get_city
from geoprep.storage.local_files import LockHeldError, flush, hold_lock, local_path, make_folder
from geoprep.storage.output_files import replaced
from geoprep.storage.places import Files
from geoprep.storage.sinks import Folder
from geoprep.store.reader import StoreReader
from geoprep.synth import synthesise
from geoprep.views.footprints import export_footprints
from geoprep.views.geotiff import export_scenes
from geoprep.views.overview import preview


def test_a_failure_leaves_the_previous_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail():
        with replaced(path) as partial:
            partial.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a"

    def write(*, fail):
        with replaced(path) as partial:
            (partial / "b").mkdir(parents=True)
            (partial / "b" / "c.txt").write_text("new")
            assert not path.exists()
            if fail:
                raise KeyError

    with pytest.raises(KeyError):
        write(fail=True)
    assert list(tmp_path.iterdir()) == []
    write(fail=False)
    assert list(tmp_path.iterdir()) == [path]
    assert (path / "b" / "c.txt").read_text() == "new"


def test_temporary_files_of_killed_writers_are_removed_after_a_day(tmp_path, python):
    path = tmp_path / "a.html"
    half = (
        "import os, sys; from pathlib import Path\n"
        "from geoprep.storage.output_files import replaced\n"
        "with replaced(Path(sys.argv[1])) as partial:\n"
        "    partial.write_text('half'), os.kill(os.getpid(), 9)"
    )
    python("-c", half, path)
    (left,) = tmp_path.iterdir()
    old, foreign = left.with_name(f".b{left.name}"), left.with_name(f"my{left.name}")
    day = time.time() - 25 * 3600
    for one in (old, foreign):
        one.write_text("half")
        os.utime(one, (day, day))
    with replaced(path) as partial:
        partial.write_text("whole")
    assert {*tmp_path.iterdir()} == {path, left, foreign}


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (errno.ENOSPC, OutputError, "no space left on the disk.*same command again"),
        (errno.EDQUOT, OutputError, "no space left on the disk"),
        (errno.EIO, OutputError, "check the disk"),
        (errno.EROFS, UsageError, "Read-only file system.*choose another place"),
        (errno.EACCES, UsageError, "Permission denied.*choose another place"),
    ],
)
def test_an_error_of_the_disk_is_one_line_with_the_fix(tmp_path, code, kind, says):
    says = rf"a\.tif cannot be written.*{says}"
    with pytest.raises(kind, match=says) as raised, replaced(tmp_path / "a.tif"):
        raise OSError(code, os.strerror(code))
    assert "\n" not in str(raised.value)


def test_a_folder_that_is_in_the_way_is_refused(tmp_path):
    (tmp_path / "a.tif").mkdir()
    with pytest.raises(UsageError, match=r"a\.tif"), replaced(tmp_path / "a.tif") as partial:
        partial.write_text("x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="file/below cannot be written"):
        make_folder(tmp_path / "file" / "below")
    no = tmp_path / "no" / "a.tif"
    with pytest.raises(UsageError, match=r"no/a\.tif.*does not exist"), replaced(no):
        pass


@pytest.mark.parametrize("address", ["s3://bucket/a.zarr", "s3:/bucket", "gs://b", "https://b/c"])
def test_an_address_is_no_folder_of_this_machine(address):
    with pytest.raises(UsageError, match=r"only be written to a local folder"):
        local_path(address)


def test_a_path_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert local_path("a:b.zarr") == tmp_path / "a:b.zarr"


OUTPUTS = {
    "image": lambda store, folder: export_scenes(store, "city_1", folder / "a.tif"),
    "picture": lambda store, folder: preview(store, folder / "a.png", count=1),
    "page": lambda store, folder: preview(store, folder / "a.pdf", count=1),
    "table": lambda store, folder: export_footprints(store, folder / "a.gpkg", by="tile"),
    "outlines": lambda store, folder: export_footprints(store, folder / "a.geojson", by="tile"),
    "city": lambda _, folder: synthesise(folder, get_city("moscow"), scenes=1, seed=0, size=200),
}


@pytest.mark.parametrize("write", OUTPUTS.values(), ids=OUTPUTS)
def test_a_full_disk_is_one_line_and_nothing_half_written(small_store, tmp_path, capfd, write):
    store = StoreReader.open(small_store)
    with small_disk(tmp_path / "disk", 12) as folder:
        with pytest.raises(OutputError, match="no space left on the disk"):
            write(store, folder)
        left = [path.name for path in folder.rglob("*") if path.is_file()]
        assert left in ([], ["synth.json"])
        gc.collect()
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_is_written_to_while_it_is_removed_is_removed_again(tmp_path, monkeypatch):
    remove, removed = shutil.rmtree, []

    def meanwhile(path, **options):
        remove(path, **options)
        removed.append(path)
        if len(removed) == 1:  # as by zarr's other threads, after one of them has failed
            path.mkdir()
            (path / "zarr.json").touch()

    def fail():
        with replaced(tmp_path / "a.zarr") as partial:
            partial.mkdir()
            raise RuntimeError

    monkeypatch.setattr(shutil, "rmtree", meanwhile)
    with pytest.raises(RuntimeError):
        fail()
    assert len(removed) == 2
    assert not list(tmp_path.iterdir())


def test_parts_of_a_file_are_read(tmp_path):
    data = np.arange(100, dtype=np.uint8).tobytes()
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "empty").write_bytes(b"")
    files = Files(tmp_path)
    assert files.read_range("a", 10, 20) == data[10:20]
    assert files.end("a", 7) == data[-7:]
    assert files.end("a", 1000) == data
    assert files.end("empty", 5) == b""
    with pytest.raises(StoreError, match="b is missing"):
        files.end("b", 5)


def test_settling_a_file_removes_what_a_killed_writer_left_beside_it(tmp_path):
    folder = Folder(tmp_path)
    folder.create("a/c/0/0").write(b"killed here")
    folder.create("a/c/0/1").write(b"in use")
    whole = folder.create("a/c/0/0")
    whole.write(b"whole")
    whole.close()
    folder.settle(["a/c/0/0"])
    left = sorted(path.name for path in (tmp_path / "a/c/0").iterdir())
    assert left[1:] == ["0"], "the file, and the other's temporary one"
    assert left[0].startswith(".1."), left


# Locks


def test_a_lock_of_a_folder_that_was_removed_is_taken_again(tmp_path, monkeypatch):
    """Between opening and locking, the owner may finish and remove what we are about to lock."""
    folder, flock = tmp_path / "folder", fcntl.flock

    def removed_first(file, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        shutil.rmtree(folder)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with hold_lock(folder / "lock"), pytest.raises(LockHeldError):
        hold_lock(folder / "lock")


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_folder_that_cannot_be_flushed_needs_no_flush(tmp_path, monkeypatch, code):
    def fsync(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    if code == errno.EIO:
        with pytest.raises(OSError, match="Input/output"):
            flush(tmp_path)
    else:
        flush(tmp_path)
