"""Members of a gzipped archive are unpacked once: completely, and only into their folder."""

import gzip
import multiprocessing
import os
import signal
import zlib
from pathlib import Path

import pytest
from helpers.archives import write_tar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geoprep.errors import SourceError
from geoprep.sources.archives import unpacked

FILES = {f"set/{i}/{name}": f"{name} {i} ".encode() * 400 for i in range(3) for name in ("a", "b")}
WANTED = {name: data for name, data in FILES.items() if name.endswith("a")}


def unpack(archive, into, report=None):
    return unpacked(archive, into, "a", lambda name: name.endswith("a"), report)


@pytest.fixture
def archive(tmp_path):
    return write_tar(tmp_path / "x.tar.gz", FILES, "w:gz")


def tree(folder):
    """Return bytes by relative path of everything that is not hidden."""
    paths = (p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths}


def test_wanted_members_are_written_and_the_others_listed(archive, tmp_path):
    files, others = unpack(archive, tmp_path / "into")
    assert tree(tmp_path / "into") == WANTED
    assert files == [tmp_path / "into" / name for name in WANTED]
    assert sorted([*others, *WANTED]) == sorted(FILES)


def test_a_finished_extraction_is_not_repeated(archive, tmp_path):
    first = unpack(archive, tmp_path / "into")
    again = unpack(archive, tmp_path / "into", lambda *_: pytest.fail("read again"))
    assert again == first


def test_a_member_that_is_no_longer_whole_is_written_again(archive, tmp_path):
    broken = unpack(archive, tmp_path / "into")[0][1]
    broken.write_bytes(b"cut")
    unpack(archive, tmp_path / "into")
    assert tree(tmp_path / "into") == WANTED


def test_another_archive_of_the_same_name_is_extracted_anew(archive, tmp_path):
    unpack(archive, tmp_path / "into")
    newer = {name: data.upper() for name, data in [*FILES.items()][:4]}  # of equal sizes
    write_tar(archive, newer, "w:gz")
    os.utime(archive, ns=(1, 1))
    files, _ = unpack(archive, tmp_path / "into")
    assert [path.read_bytes() for path in files] == [newer["set/0/a"], newer["set/1/a"]]


def _unpack_until_killed(archive, into, after):
    seen = []

    def step(*args):
        seen.append(args)
        if len(seen) == after:
            os.kill(os.getpid(), signal.SIGKILL)

    unpack(archive, into, step)


def test_a_killed_extraction_begins_again(archive, tmp_path):
    into = tmp_path / "into"
    child = multiprocessing.get_context("fork").Process(
        target=_unpack_until_killed, args=(archive, into, 2)
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert len(tree(into)) == 2
    unpack(archive, into)
    assert tree(into) == WANTED


def test_a_link_planted_in_the_folder_is_not_written_through(archive, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    planted = tmp_path / "into" / "set/0/a"
    planted.parent.mkdir(parents=True)
    planted.symlink_to(victim)
    unpack(archive, tmp_path / "into")
    assert victim.read_bytes() == b"mine"
    assert tree(tmp_path / "into") == WANTED
    assert not planted.is_symlink()


damaged = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@damaged
@given(data=st.data())
def test_a_download_cut_anywhere_is_noticed(archive, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    raw = archive.read_bytes()
    cut = folder / archive.name
    cut.write_bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(SourceError, match="damaged or cut short"):
        unpack(cut, folder / "into")
    assert not (folder / "into" / f".{archive.name}.a.json").exists()


@damaged
@given(data=st.data())
def test_a_flipped_bit_is_noticed_wherever_it_changes_anything(archive, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("flip")
    raw = bytearray(archive.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    bad = folder / archive.name
    bad.write_bytes(raw)
    try:
        harmless = gzip.decompress(raw) == gzip.decompress(archive.read_bytes())
    except (OSError, EOFError, zlib.error):
        harmless = False
    if harmless:  # a time stamp, or another way to say the same
        assert len(unpack(bad, folder / "into")[0]) == len(WANTED)
    else:
        with pytest.raises(SourceError):
            unpack(bad, folder / "into")


def test_one_archive_may_be_unpacked_twice_at_the_same_time(archive, tmp_path):
    seen = []
    unpack(archive, tmp_path / "into", lambda *_: seen.append(unpack(archive, tmp_path / "into")))
    assert tree(tmp_path / "into") == WANTED
    assert seen == [unpack(archive, tmp_path / "into")] * len(WANTED)


def test_a_damaged_record_of_extraction_is_ignored(archive, tmp_path):
    first = unpack(archive, tmp_path / "into")
    for text in ("", "[]", "{", '{"archive": 1}'):
        Path(tmp_path / "into" / f".{archive.name}.a.json").write_text(text)
        assert unpack(archive, tmp_path / "into") == first
