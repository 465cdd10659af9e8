"""A plain tar is read where it lies; anything odd in an archive is refused by name."""

import os
import shutil
import struct
import tarfile
from pathlib import Path

import pytest
from helpers.archives import write_tar
from hypothesis import given
from hypothesis import strategies as st

from geoprep.errors import SourceError
from geoprep.sources.archives import index_tar, is_compressed, members_of
from geoprep.storage.versions import read_bytes

IMAGE = "AOI_7_Moscow/PS-RGB/SN5_roads_train_AOI_7_Moscow_PS-RGB_chip1.tif"


def listed(path):
    return members_of(path, "all", lambda _: True)


def member_of_type(kind, link=""):
    info = tarfile.TarInfo("AOI_7_Moscow/PS-RGB/x.tif")
    info.type = kind
    info.linkname = link
    return info


def test_members_are_found_where_their_bytes_lie(tmp_path):
    contents = {IMAGE: os.urandom(5000), "a/" + "long" * 60 + ".tif": b"x" * 512, "empty": b""}
    folder = tarfile.TarInfo("AOI_7_Moscow")
    folder.type = tarfile.DIRTYPE
    path = write_tar(tmp_path / "x.tar", [(folder, b""), *contents.items()])
    raw = path.read_bytes()
    found = {name: raw[at : at + size] for name, (at, size) in index_tar(path).items()}
    assert found == contents


@pytest.mark.parametrize("packed", ["tar", "gztar"])
def test_a_tar_of_the_folder_itself_has_the_names_in_it(tmp_path, packed):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a.tif").write_bytes(b"image")
    path = Path(shutil.make_archive(str(tmp_path / "x"), packed, tmp_path / "in"))
    assert [*index_tar(path)] == ["deep/a.tif"]
    (place,) = listed(path)
    assert read_bytes(place) == b"image"


@pytest.mark.parametrize("fmt", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_all_tar_dialects_are_read(tmp_path, fmt):
    path = write_tar(tmp_path / "x.tar", [(IMAGE, b"one"), ("two", b"2")], format=fmt)
    assert [(name, size) for name, (_, size) in index_tar(path).items()] == [(IMAGE, 3), ("two", 1)]


def test_of_two_members_of_one_name_the_later_counts(tmp_path):
    path = write_tar(tmp_path / "x.tar", [(IMAGE, b"old"), (IMAGE, b"newer")])
    offset, size = index_tar(path)[IMAGE]
    assert path.read_bytes()[offset:][:size] == b"newer"


@pytest.mark.parametrize(
    ("member", "fault"),
    [
        (tarfile.TarInfo("/etc/cron.d/x"), "leaves the folder"),
        (member_of_type(tarfile.SYMTYPE, "/etc/passwd"), "link"),
        (member_of_type(tarfile.LNKTYPE, "x"), "link"),
        (member_of_type(tarfile.CHRTYPE), "neither a plain file"),
        (member_of_type(tarfile.BLKTYPE), "neither a plain file"),
        (member_of_type(tarfile.FIFOTYPE), "neither a plain file"),
        (member_of_type(b"Z"), "neither a plain file"),
    ],
)
def test_hostile_members_are_refused_by_name(tmp_path, member, fault):
    path = write_tar(tmp_path / "x.tar", [(IMAGE, b"fine"), (member, b"")])
    with pytest.raises(SourceError) as error:
        listed(path)
    assert str(path) in str(error.value)
    assert repr(member.name) in str(error.value)
    assert fault in str(error.value)


def with_size(path, size):
    """Rewrite the size of the first header, base-256 as GNU tar writes large ones."""
    raw = bytearray(path.read_bytes())
    raw[124:136] = b"\x80\0\0\0" + struct.pack(">q", size) if size >= 0 else b"\xff" * 12
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    path.write_bytes(raw)


@pytest.mark.parametrize("size", [1 << 50, -1])
def test_absurd_sizes_are_refused(tmp_path, size):
    path = write_tar(tmp_path / "x.tar", [(IMAGE, b"fine")])
    with_size(path, size)
    with pytest.raises(SourceError, match=r"claims|ends behind"):
        listed(path)


def test_a_negative_size_in_an_extended_header_does_not_loop(tmp_path):
    info = tarfile.TarInfo(IMAGE)
    info.pax_headers = {"size": "-1024"}
    with pytest.raises(SourceError, match=r"claims -1,024 bytes|damaged"):
        listed(write_tar(tmp_path / "x.tar", [("a", b"1"), (info, b"")]))


def test_an_absurd_extended_header_is_not_read_into_memory(tmp_path):
    info = tarfile.TarInfo("x" * 200)
    path = write_tar(tmp_path / "x.tar", [(info, b"")], format=tarfile.GNU_FORMAT)
    with_size(path, 1 << 45)
    with pytest.raises(SourceError, match="damaged or cut short"):
        listed(path)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("tar") / "x.tar"
    return write_tar(path, {f"m{i}": bytes([i]) * 700 for i in range(4)})


@given(data=st.data())
def test_an_archive_cut_anywhere_is_noticed(good, tmp_path_factory, data):
    raw = good.read_bytes()
    end = 4 * (512 + 1024)
    cut = tmp_path_factory.mktemp("cut") / "x.tar"
    cut.write_bytes(raw[: data.draw(st.integers(0, end))])
    with pytest.raises(SourceError, match="damaged or cut short"):
        listed(cut)


@given(data=st.data())
def test_a_damaged_header_is_noticed(good, tmp_path_factory, data):
    raw = bytearray(good.read_bytes())
    header = data.draw(st.integers(0, 3)) * 1536
    raw[header + data.draw(st.integers(0, 99))] ^= data.draw(st.integers(1, 127))
    bad = tmp_path_factory.mktemp("bad") / "x.tar"
    bad.write_bytes(raw)
    with pytest.raises(SourceError, match="damaged or cut short"):
        listed(bad)


def test_compression_is_recognised_by_content(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"\x1f\x8b\x08")
    (tmp_path / "b.tar.gz").write_bytes(b"abc")
    assert is_compressed(tmp_path / "a.tar")
    assert not is_compressed(tmp_path / "b.tar.gz")
    with pytest.raises(SourceError, match=r"none\.tar"):
        listed(tmp_path / "none.tar")
