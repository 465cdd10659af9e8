"""Extraction of one product from a gzipped archive: complete, and only into its folder."""

import errno
import gzip
import io
import multiprocessing
import os
import signal
import tarfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geoprep.errors import OutputError, SourceError
from geoprep.sources import extraction
from geoprep.sources.cities import CITIES
from geoprep.sources.extraction import extract

MOSCOW = CITIES["moscow"]
# As in the real archive, which was packed from a folder far away.
ROOT = "nfs/data/cosmiq/spacenet/competitions/SN5_roads/tiles_upload/train/AOI_7_Moscow"


def contents(chips=3):
    files = {}
    for number in range(chips):
        for product in ("MS", "PAN", "PS-MS", "PS-RGB"):
            name = MOSCOW.file_name(product, number)
            files[f"{ROOT}/{product}/{name}"] = f"{product} {number} ".encode() * 400
        label = MOSCOW.file_name("geojson_roads_speed", number)
        files[f"{ROOT}/geojson_roads_speed/{label}"] = b'{"features": []}'
    files[f"{ROOT}/train_AOI_7_Moscow_geojson_roads_speed_wkt_weighted_raw.csv"] = b"ImageId\n"
    return files


def write_archive(path, files):
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def archive(tmp_path):
    return write_archive(tmp_path / "SN5_roads_train_AOI_7_Moscow.tar.gz", contents())


def tree(folder):
    """Return bytes by relative path of everything that is not hidden."""
    paths = (p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths}


def test_only_the_product_and_the_labels_are_written(archive, tmp_path):
    done = extract(archive, MOSCOW, "PS-RGB", tmp_path / "into")
    wanted = {k: v for k, v in contents().items() if "/PS-RGB/" in k or k.endswith(".geojson")}
    assert tree(tmp_path / "into") == wanted
    assert done.files == {name: len(data) for name, data in wanted.items()}
    assert done.products == {"MS": 3, "PAN": 3, "PS-MS": 3, "PS-RGB": 3}


def test_progress_counts_bytes_of_the_archive(archive, tmp_path):
    seen = []
    done = extract(archive, MOSCOW, "PAN", tmp_path / "into", lambda *step: seen.append(step))
    assert len(seen) == len(done.files)
    assert {total for _, total in seen} == {archive.stat().st_size}
    assert all(0 < read <= total for read, total in seen)


def test_a_finished_extraction_is_not_repeated(archive, tmp_path):
    into = tmp_path / "into"
    first = extract(archive, MOSCOW, "PS-RGB", into)
    archive.chmod(0)  # root may read it all the same, so the callback is the witness
    again = extract(archive, MOSCOW, "PS-RGB", into, lambda *_: pytest.fail("read again"))
    assert again == first


def test_a_second_product_joins_the_first(archive, tmp_path):
    into = tmp_path / "into"
    extract(archive, MOSCOW, "PS-RGB", into)
    done = extract(archive, MOSCOW, "PAN", into)
    assert any("/PAN/" in name for name in tree(into))
    assert not any("/PS-RGB/" in name for name in done.files)


def test_a_member_that_is_no_longer_whole_is_written_again(archive, tmp_path):
    into = tmp_path / "into"
    done = extract(archive, MOSCOW, "PS-RGB", into)
    broken = into / list(done.files)[1]
    broken.write_bytes(b"cut")
    extract(archive, MOSCOW, "PS-RGB", into)
    assert broken.read_bytes() == contents()[broken.relative_to(into).as_posix()]


def test_another_archive_of_the_same_name_is_extracted_anew(archive, tmp_path):
    into = tmp_path / "into"
    extract(archive, MOSCOW, "PS-RGB", into)
    newer = {name: data.upper() for name, data in contents(chips=2).items()}  # of equal sizes
    write_archive(archive, newer)
    os.utime(archive, ns=(1, 1))
    done = extract(archive, MOSCOW, "PS-RGB", into)
    assert len(done.files) == 4  # nothing of the older archive is counted
    assert all((into / name).read_bytes() == newer[name] for name in done.files)


def _extract_until_killed(archive, into, after):
    seen = []

    def step(*args):
        seen.append(args)
        if len(seen) == after:
            os.kill(os.getpid(), signal.SIGKILL)

    extract(archive, MOSCOW, "PS-RGB", into, step)


def test_a_killed_extraction_begins_again(archive, tmp_path):
    into = tmp_path / "into"
    child = multiprocessing.get_context("fork").Process(
        target=_extract_until_killed, args=(archive, into, 3)
    )
    child.start()
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    assert len(tree(into)) == 3
    done = extract(archive, MOSCOW, "PS-RGB", into)
    assert tree(into) == {name: contents()[name] for name in done.files}
    assert len(done.files) == 6


@pytest.mark.parametrize(
    "name",
    [f"../{ROOT}/PS-RGB/{MOSCOW.file_name('PS-RGB', 9)}", f"/tmp/{MOSCOW.file_name('PS-RGB', 9)}"],
)
def test_a_member_that_leaves_the_folder_is_refused(tmp_path, name):
    archive = write_archive(tmp_path / "x.tar.gz", {**contents(1), name: b"evil"})
    with pytest.raises(SourceError, match=r"chip9\.tif' is refused"):
        extract(archive, MOSCOW, "PS-RGB", tmp_path / "deep" / "into")
    assert not list(tmp_path.rglob("*chip9*"))


def test_a_link_is_refused_and_nothing_is_written_through_it(tmp_path):
    path = tmp_path / "x.tar.gz"
    outside = tmp_path / "outside"
    outside.mkdir()
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("AOI_7_Moscow")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        tar.addfile(link)
        info = tarfile.TarInfo(f"AOI_7_Moscow/PS-RGB/{MOSCOW.file_name('PS-RGB', 1)}")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    with pytest.raises(SourceError, match="it is a link"):
        extract(path, MOSCOW, "PS-RGB", tmp_path / "into")
    assert not list(outside.iterdir())


def test_a_link_planted_in_the_cache_is_not_written_through(archive, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    planted = tmp_path / "into" / next(n for n in contents() if "/PS-RGB/" in n)
    planted.parent.mkdir(parents=True)
    planted.symlink_to(victim)
    with pytest.raises(SourceError, match="is not a plain file"):
        extract(archive, MOSCOW, "PS-RGB", tmp_path / "into")
    assert victim.read_bytes() == b"mine"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(data=st.data())
def test_a_download_cut_anywhere_is_noticed(archive, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    raw = archive.read_bytes()
    cut = folder / archive.name
    cut.write_bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(SourceError, match="damaged or cut short"):
        extract(cut, MOSCOW, "PS-RGB", folder / "into")
    assert not (folder / "into" / f".{archive.name}.PS-RGB.json").exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
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
        assert len(extract(bad, MOSCOW, "PS-RGB", folder / "into").files) == 6
    else:
        with pytest.raises(SourceError):
            extract(bad, MOSCOW, "PS-RGB", folder / "into")


def test_a_stream_that_is_no_tar_is_refused(tmp_path):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(b"hello" * 1000))
    with pytest.raises(SourceError, match="damaged or cut short"):
        extract(path, MOSCOW, "PS-RGB", tmp_path / "into")


def test_a_full_disk_is_named_and_leaves_no_halves(archive, tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(extraction.shutil, "copyfileobj", full)
    with pytest.raises(OutputError, match="no space left on the disk"):
        extract(archive, MOSCOW, "PS-RGB", tmp_path / "into")
    assert not list((tmp_path / "into").rglob("*.partial*"))
    monkeypatch.undo()
    assert len(extract(archive, MOSCOW, "PS-RGB", tmp_path / "into").files) == 6


def test_two_extractions_into_one_folder_are_not_mixed(archive, tmp_path):
    into = tmp_path / "into"

    def second(*_args):
        with pytest.raises(SourceError, match="another process is extracting"):
            extract(archive, MOSCOW, "PAN", into)

    assert extract(archive, MOSCOW, "PS-RGB", into, second).files


def test_a_damaged_mark_only_costs_time(archive, tmp_path):
    into = tmp_path / "into"
    first = extract(archive, MOSCOW, "PS-RGB", into)
    for text in ("", "[]", "{", '{"archive": 1}'):
        Path(into / f".{archive.name}.PS-RGB.json").write_text(text)
        assert extract(archive, MOSCOW, "PS-RGB", into) == first
