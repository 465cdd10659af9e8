"""Archives and files on a web server: taken once, and never out of their folder."""

import gzip
import zipfile
from pathlib import Path
from urllib.parse import quote

import pytest
import xxhash
from helpers.archives import write_archive
from helpers.web import served

from geoprep.errors import SourceError
from geoprep.sources.archives import archive_in_place, local_pattern
from geoprep.sources.local_copies import copy_path
from geoprep.sources.own_images import images_and_labels
from geoprep.storage.versions import content_digest, file_version, read_bytes

SIGNED = "key=a%2Fb%3D&n=1+2"
FILES = {
    "set/train/1_sat.jpg": b"one",
    "set/train/1_mask.png": b"mask",
    "set/train/2_sat.jpg": b"two" * 1000,
    "set/about.txt": b"words",
}


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.zip"])
def test_images_of_any_archive_are_found_in_place_or_unpacked(tmp_path, name):
    write_archive(tmp_path / name, FILES)
    into = tmp_path / "s.zarr.source"
    images, note = local_pattern(f"{tmp_path / name}!/set/train/*_sat.jpg", into)
    found = images_and_labels([images])
    assert [scene.id for scene in found.scenes] == ["1_sat", "2_sat"]
    for scene, member in zip(found.scenes, ("1_sat", "2_sat"), strict=True):
        assert read_bytes(scene.image) == FILES[f"set/train/{member}.jpg"]
        assert content_digest(scene.image) == xxhash.xxh3_128_hexdigest(read_bytes(scene.image))
        assert f"{len(read_bytes(scene.image))} bytes" in file_version(scene.image)
    unpacked = copy_path(str(tmp_path / name), into).with_name(f"{name}.unpacked")
    if name.endswith("gz"):
        assert str(unpacked) in note
        assert "4 files" in note
    else:
        assert not note
        assert not into.exists()
    whole, _ = local_pattern(str(tmp_path / name), into)  # an archive by its name alone: any depth
    assert len(images_and_labels([whole]).scenes) == 3


@pytest.mark.parametrize("name", ["a.tar", "a.zip"])
@pytest.mark.parametrize("beside", ["a.tfw", "a.tif.aux.xml", "a.tif.msk", "r.gdb/a00.gdbtable"])
def test_members_of_several_files_are_unpacked_with_them(tmp_path, name, beside):
    write_archive(tmp_path / name, {"in/a.tif": b"image", f"in/{beside}": b"beside"})
    images, note = local_pattern(f"{tmp_path / name}!/in/*.tif", tmp_path / "in")
    (scene,) = images_and_labels([images]).scenes
    assert Path(scene.image).with_name("in").parent.joinpath(beside).read_bytes() == b"beside"
    assert "2 files" in note


@pytest.mark.parametrize(
    "name", ["../out.tif", "/abs.tif", "a/../../b.tif", "a\\..\\b.tif", "C:x.tif"]
)
@pytest.mark.parametrize("archive", ["a.tar.gz", "a.zip"])
def test_a_member_that_climbs_out_is_refused(tmp_path, archive, name):
    write_archive(tmp_path / archive, {"fine.tif": b"x", name: b"evil"})
    into = tmp_path / "deep" / "in"
    with pytest.raises(SourceError, match=r"is refused \(its path leaves the folder\)"):
        local_pattern(str(tmp_path / archive), into)
    there = {p.name for p in tmp_path.rglob("*") if p.is_file() and not p.name.startswith(".")}
    assert there <= {archive, "fine.tif"}


def test_a_zip_of_windows_has_folders(tmp_path):
    write_archive(tmp_path / "a.zip", {"set\\a.tif": b"x", "set\\deep\\b.tif": b"y", "set\\": b""})
    place, _ = local_pattern(f"{tmp_path / 'a.zip'}!/set/**/*.tif", tmp_path / "in")
    found = images_and_labels([place])
    assert [read_bytes(scene.image) for scene in found.scenes] == [b"x", b"y"]
    in_place = images_and_labels([archive_in_place(f"{tmp_path / 'a.zip'}!/set/*.tif")])
    assert [scene.id for scene in in_place.scenes] == ["a"]


def test_links_and_damage_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "l.zip", "w") as packed:
        info = zipfile.ZipInfo("link.tif")
        info.external_attr = 0o120777 << 16
        packed.writestr(info, "/etc/passwd")
    with pytest.raises(SourceError, match=r"link.tif.*it is a link"):
        local_pattern(str(tmp_path / "l.zip"), tmp_path / "in")
    write_archive(tmp_path / "a.zip", FILES)
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[len(data) // 3 : len(data) // 3 + 40] = bytes(40)
    (tmp_path / "a.zip").write_bytes(data)
    found = images_and_labels([local_pattern(f"{tmp_path}/a.zip!/**/*.jpg", tmp_path / "in")[0]])
    whole, damaged = found.scenes  # a member that is damaged fails its scene
    assert read_bytes(whole.image) == b"one"
    with pytest.raises(SourceError, match=r"set/train/2_sat.jpg in .*a.zip: cannot be read"):
        read_bytes(damaged.image)
    data = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match=r"a.zip: damaged"):
        local_pattern(str(tmp_path / "a.zip"), tmp_path / "in")
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(b"no archive" * 100))
    with pytest.raises(SourceError, match=r"b.tar.gz"):
        local_pattern(str(tmp_path / "b.tar.gz"), tmp_path / "in")


def test_other_patterns_are_left_as_they_are(tmp_path):
    for pattern in ("scenes/*.tif", "s3://b/*.tif", str(tmp_path), "gone.zip"):
        assert local_pattern(pattern, tmp_path / "in") == (pattern, "")
    assert not (tmp_path / "in").exists()


def unsigned(method, path):
    """Return whether a request of a signed file has no signature, or is no GET."""
    return path.startswith("/signed") and not (method == "GET" and path.endswith(f"?{SIGNED}"))


@pytest.fixture
def server(tmp_path):
    """Yield the address of a web server, the folder that it shows, and paths that were read."""
    folder = tmp_path / "www"
    (folder / "signed").mkdir(parents=True)
    with served(folder, unsigned) as (address, gets):
        yield address, folder, gets


def test_files_and_archives_are_downloaded_from_a_web_server_once(tmp_path, server):
    address, folder, gets = server
    write_archive(folder / "a.zip", FILES)
    (folder / "roads.geojson").write_text("{}")
    into = tmp_path / "in"
    for _ in range(2):
        images, note = local_pattern(f"{address}/a.zip!/set/train/*_sat.jpg", into)
        assert len(images_and_labels([images]).scenes) == 2
        assert "downloaded to" in note
        roads, _ = local_pattern(f"{address}/roads.geojson", into)
        assert Path(roads).read_text() == "{}"
    assert sorted(gets) == ["/a.zip", "/roads.geojson"]
    with pytest.raises(SourceError, match=r"gone.zip: cannot be downloaded.*browser"):
        local_pattern(f"{address}/gone.zip", into)


def test_archives_of_equal_names_are_not_mixed_up(tmp_path):
    """Images and masks in two archives called train.zip, and a second archive of images."""
    for folder, body in (("images", b"image"), ("masks", b"mask"), ("more", b"more")):
        (tmp_path / folder).mkdir()
        members = {"set/1.png": body, f"set/{folder}.png": body}
        write_archive(tmp_path / folder / "train.zip", members)
        write_archive(tmp_path / folder / "train.tar.gz", members)
    into, unpacked = tmp_path / "in", []
    for suffix in ("zip", "tar.gz", "tar.gz"):
        found = {
            folder: local_pattern(
                f"{tmp_path / folder}/train.{suffix}!/set/1.png",
                into,
                lambda *step: unpacked.append(step),
            )[0]
            for folder in ("images", "masks", "more")
        }
        scenes = {folder: images_and_labels([found[folder]]).scenes for folder in found}
        read = {folder: [read_bytes(one.image) for one in scenes[folder]] for folder in found}
        assert read == {"images": [b"image"], "masks": [b"mask"], "more": [b"more"]}
    assert len(unpacked) == 6, "each archive is unpacked once"
    both = images_and_labels([found["images"], found["more"]], found["masks"], masks=True)
    assert len({scene.image for scene in both.scenes}) == 2
    assert all(read_bytes(scene.label) == b"mask" for scene in both.scenes)


def test_web_addresses_are_encoded_once(tmp_path, server):
    address, folder, _ = server
    for name in ("a b.tif", "a%20b.tif"):
        (folder / name).write_text(name)
    for name in ("a b.tif", "a%20b.tif"):
        copy, _ = local_pattern(f"{address}/{quote(name)}", tmp_path / "in")
        assert Path(copy).read_text() == name


def test_signed_addresses_are_read_with_their_query_and_without_other_methods(tmp_path, server):
    address, folder, gets = server
    write_archive(folder / "signed" / "a.zip", FILES)
    with pytest.raises(SourceError, match=r"a.zip: cannot be downloaded.*40[35]"):
        local_pattern(f"{address}/signed/a.zip?key=no", tmp_path)
    images, note = local_pattern(f"{address}/signed/a.zip?{SIGNED}!/set/train/*.jpg", tmp_path)
    assert len(images_and_labels([images]).scenes) == 2
    assert {get.partition("?")[2] for get in gets} == {"key=no", SIGNED}
    assert SIGNED not in note


def test_a_zipped_shapefile_is_one_road_file(tmp_path):
    parts = {f"roads/roads.{suffix}": b"x" for suffix in ("shp", "shx", "dbf", "prj")}
    write_archive(tmp_path / "roads_shp.zip", parts)
    labels, _ = local_pattern(str(tmp_path / "roads_shp.zip"), tmp_path / "in")
    assert labels.endswith("roads_shp.zip.unpacked/roads/roads.shp")
    (tmp_path / "a.tif").write_bytes(b"")
    found = images_and_labels([str(tmp_path / "a.tif")], labels)
    assert found.shared_label == labels
