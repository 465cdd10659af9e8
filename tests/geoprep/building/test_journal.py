"""What a build refuses to touch, and who may build at a time."""

import errno
import fcntl
import os

import pytest
import zarr
from helpers.factory import build_of, plan_of, row_of_scenes, tree_digest

from geoprep.building.journal import Journal
from geoprep.building.run import build
from geoprep.errors import StoreError, UsageError
from geoprep.executors.threads import Threads


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return scenes and their finished store, which no test changes."""
    folder = tmp_path_factory.mktemp("done")
    scenes = row_of_scenes(folder / "scenes", 3, 64)
    build_of(folder / "a.zarr", scenes)
    return scenes, folder / "a.zarr"


def times(folder):
    return {str(path): path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def beside(out):
    return [path.name for path in out.parent.iterdir() if path.name.startswith(out.name)]


@pytest.mark.parametrize(("overwrite", "state"), [(False, "unchanged"), (True, "built")])
def test_a_finished_store_is_left_alone_unless_it_is_overwritten(done, overwrite, state):
    scenes, out = done
    before, bytes_before = times(out), tree_digest(out)
    assert build(plan_of(scenes), out, Threads(1), overwrite=overwrite).state == state
    assert (times(out) != before) == overwrite
    assert tree_digest(out) == bytes_before
    assert beside(out) == ["a.zarr"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tile": 32}, "tile was 64, now 32"),
        ({"rescale": "scene"}, "rescale was none, now scene"),
        ({"val": 0.5}, "val was 0.2, now 0.5"),
        ({"bands": (1, 2)}, "bands"),
    ],
)
def test_other_parameters_are_refused_and_named(done, options, says):
    scenes, out = done
    before = tree_digest(out)
    with pytest.raises(StoreError, match=says) as error:
        build(plan_of(scenes, **options), out, Threads(1))
    assert "`overwrite`" in str(error.value)
    assert tree_digest(out) == before
    assert beside(out) == ["a.zarr"], "nor is anything left beside it"


@pytest.mark.parametrize("kind", ["file", "folder", "group", "broken"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_others_are_never_touched(done, tmp_path, kind, overwrite):
    out = tmp_path / "mine.zarr"
    if kind == "group":
        zarr.create_array(out, name="data", shape=(3,), dtype="u1")
    elif kind == "file":
        out.write_text("precious")
    else:
        out.mkdir()
        (out / ("thesis.txt" if kind == "folder" else "zarr.json")).write_text("not JSON")
    before = out.read_bytes() if out.is_file() else tree_digest(out)
    with pytest.raises(StoreError, match="not a geoprep store"):
        build(plan_of(done[0]), out, Threads(1), overwrite=overwrite)
    assert (out.read_bytes() if out.is_file() else tree_digest(out)) == before
    assert beside(out) == ["mine.zarr"]


def test_an_empty_folder_is_a_place_for_a_store(done, tmp_path):
    (tmp_path / "a.zarr").mkdir()
    assert build(plan_of(done[0]), tmp_path / "a.zarr", Threads(1)).state == "built"
    assert tree_digest(tmp_path / "a.zarr") == tree_digest(done[1])


@pytest.mark.parametrize("blocker", ["a.zarr.build", "."])
def test_an_unwritable_place_is_refused(done, tmp_path, blocker):
    folder = tmp_path / "folder"
    if blocker == ".":
        folder.write_text("a file where the folder should be")
    else:
        folder.mkdir()
        (folder / blocker).write_text("")
    with pytest.raises(UsageError, match=r"a\.zarr\.build cannot be written"):
        build(plan_of(done[0]), folder / "a.zarr", Threads(1))


# Two at once


def test_a_second_build_of_a_store_is_refused_while_the_first_runs(done, tmp_path):
    scenes, _ = done
    out, refusals = tmp_path / "a.zarr", []

    def try_another(progress):
        try:
            build(plan_of(scenes), out, Threads(1))
        except StoreError as error:
            refusals.append(str(error))

    assert build(plan_of(scenes), out, Threads(1), report=try_another).state == "built"
    assert refusals
    assert all(f"being built by process {os.getpid()}" in text for text in refusals)
    assert tree_digest(out) == tree_digest(done[1])


def test_a_file_system_without_locks_has_builds_too(done, tmp_path, monkeypatch):
    def flock(handle, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert build(plan_of(done[0]), tmp_path / "a.zarr", Threads(1)).state == "built"
    assert tree_digest(tmp_path / "a.zarr") == tree_digest(done[1])


@pytest.mark.parametrize("torn", [b'{"shard": 2', b"\x00\x00\xff", b"[1, 2]"])
def test_a_truncated_journal_line_costs_no_other_line(tmp_path, torn):
    with Journal(tmp_path / "a.zarr") as journal:
        journal.write({"shard": 1})
    with (tmp_path / "a.zarr.build/journal.jsonl").open("ab") as lines:
        lines.write(torn)
    with Journal(tmp_path / "a.zarr") as journal:
        assert list(journal.entries()) == [{"shard": 1}]
        journal.write({"shard": 3})
        journal.write({"shard": 4})
        assert list(journal.entries()) == [{"shard": 1}, {"shard": 3}, {"shard": 4}]


def test_the_lock_is_given_back_even_if_the_disk_is_full(tmp_path):
    """Closing a file flushes it, which fails once more."""

    def flush():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = Journal(tmp_path / "a.zarr").__enter__()
    journal.write({"shard": 1})
    journal._open.callback(flush)
    with pytest.raises(OSError, match="No space"):
        journal.__exit__(None, None, None)
    with Journal(tmp_path / "a.zarr") as again:
        assert list(again.entries()) == [{"shard": 1}]
