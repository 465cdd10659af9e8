"""Images and labels are opened by address; errors name the address."""

import os
import pickle
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import rasterio
from helpers.rasters import write_raster

from geoprep.errors import ImageError, SourceError
from geoprep.sources.archives import index_tar
from geoprep.storage.addresses import member_address
from geoprep.storage.inputs import open_image
from geoprep.storage.versions import content_digest, read_bytes


def pixels(seed=0):
    return np.random.default_rng(seed).integers(0, 255, (3, 64, 64), np.uint8)


@pytest.fixture
def image(tmp_path):
    return write_raster(tmp_path / "scene.tif", pixels())


@pytest.fixture
def packed(tmp_path, image):
    """Two images in one tar, as addresses."""
    write_raster(tmp_path / "other.tif", pixels(seed=1))
    (tmp_path / "odd, 50%25!").mkdir()
    with tarfile.open(tmp_path / "odd, 50%25!/name!.tar", "w") as tar:
        tar.add(image, "AOI/PS-RGB/scene.tif")
        tar.add(tmp_path / "other.tif", "AOI/PS-RGB/other.tif")
    archive = tmp_path / "odd, 50%25!/name!.tar"
    return [member_address(archive, name, *at) for name, at in index_tar(archive).items()]


def test_a_member_of_a_tar_is_read_in_place(packed):
    for address, seed in zip(packed, (0, 1), strict=True):
        with open_image(pickle.loads(pickle.dumps(address))) as source:
            np.testing.assert_array_equal(source.read(), pixels(seed))
    assert [PurePosixPath(address).stem for address in packed] == ["scene", "other"]


def test_bytes_of_files_and_members(image, packed):
    assert read_bytes(str(image)) == image.read_bytes()
    assert read_bytes(packed[0]) == image.read_bytes()


def test_in_an_archive_an_image_is_read_alone(packed, image):
    Path(str(image.parent / "odd, 50%25!/name!.tar") + ".msk").write_bytes(b"not a mask")
    with open_image(packed[0]) as source:
        assert source.read_masks(1).all()


def test_the_folder_is_not_listed_and_settings_are_restored(image):
    with rasterio.Env(GDAL_DISABLE_READDIR_ON_OPEN="FALSE", GDAL_NUM_THREADS="ALL_CPUS"):
        with open_image(str(image)):
            inside = rasterio.env.getenv()
            assert inside["GDAL_DISABLE_READDIR_ON_OPEN"] == "TRUE"
            assert inside["GDAL_NUM_THREADS"] == "1"
        assert rasterio.env.getenv()["GDAL_NUM_THREADS"] == "ALL_CPUS"


@pytest.mark.parametrize("data", [b"", b"hello", b"II*\0" + b"\xff" * 60])
def test_something_that_is_no_image_is_named(tmp_path, data):
    path = tmp_path / "bad.tif"
    path.write_bytes(data)
    complaint = pytest.raises(ImageError, match=r"bad\.tif: cannot be read as an image \(.+\)")
    with complaint, open_image(str(path)):
        pass


@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
def test_pipes_devices_and_link_loops_are_refused(tmp_path, kind):
    path = tmp_path / "odd.tif"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    with pytest.raises(ImageError, match=r"odd\.tif: "), open_image(str(path)):
        pass
    for read in (read_bytes, content_digest):
        with pytest.raises(SourceError, match=r"odd\.tif: cannot be read"):
            read(str(path))


def test_a_missing_file_is_named(tmp_path, packed):
    with (
        pytest.raises(ImageError, match=r"none\.tif: no such file"),
        open_image(str(tmp_path / "none.tif")),
    ):
        pass
    with pytest.raises(SourceError, match=r"none\.geojson: cannot be read"):
        read_bytes(str(tmp_path / "none.geojson"))
    (tmp_path / "odd, 50%25!/name!.tar").unlink()
    with (
        pytest.raises(ImageError, match=r"AOI/PS-RGB/scene\.tif in .*50%25!/name!\.tar: no such"),
        open_image(packed[0]),
    ):
        pass
    with pytest.raises(SourceError, match=r"scene\.tif in "):
        read_bytes(packed[0])


def test_an_archive_cut_since_it_was_listed_is_noticed(packed, tmp_path):
    archive = tmp_path / "odd, 50%25!/name!.tar"
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(SourceError, match="has changed"):
        read_bytes(packed[1])


def test_errors_of_the_caller_pass_through(image):
    with pytest.raises(ZeroDivisionError), open_image(str(image)):
        raise ZeroDivisionError
