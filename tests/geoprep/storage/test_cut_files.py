"""A file whose end is missing is an error that names it, whatever its format."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
import rasterio
from helpers.factory import PLACES, texture, write_image
from PIL import Image
from rasterio.shutil import copy as copy_raster

from geoprep.errors import ImageError
from geoprep.storage.addresses import member_address
from geoprep.storage.inputs import open_header, open_image

FORMATS = {
    "raw.tif": ("GTiff", {}),
    "lzw.tif": ("GTiff", {"compress": "lzw"}),
    "tiled.tif": ("GTiff", {"compress": "deflate", "tiled": True}),
    "jpeg.tif": ("GTiff", {"compress": "jpeg"}),
    "cog.tif": ("COG", {}),
    "a.png": ("PNG", {}),
    "a.jpg": ("JPEG", {}),
    "a.jp2": ("JP2OpenJPEG", {}),
    "a.webp": ("WEBP", {}),
    "hfa.img": ("HFA", {}),
    "envi.img": ("ENVI", {}),
    "a.bmp": ("BMP", {}),
    "a.ntf": ("NITF", {}),
}
SHOWN_BY_ZEROS = ("lzw.tif", "tiled.tif", "cog.tif", "a.png", "a.jpg", "a.jp2")
"""Formats in which zeros are no pixels, so that zeros in place of the end are found."""


def written(folder, name):
    """Return an image of a format."""
    driver, options = FORMATS[name]
    source = write_image(folder / "source.tif", texture(300, 260), PLACES["utm"])
    copy_raster(source, folder / name, driver=driver, **options)
    return folder / name


def pixels(address):
    with open_image(str(address)) as dataset:
        return dataset.read()


def refused(address):
    with pytest.raises(ImageError, match="cannot be read as an image") as caught:
        pixels(address)
    assert Path(address).name in str(caught.value)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_without_its_end_is_refused(tmp_path, name):
    file = written(tmp_path, name)
    whole, values = file.read_bytes(), pixels(file)
    assert values.shape == (3, 300, 260)
    for left in (0.9, 0.5):
        file.write_bytes(whole[: int(len(whole) * left)])
        refused(file)
    file.write_bytes(whole)
    assert (pixels(file) == values).all()


def test_a_database_without_its_end_is_refused(tmp_path):
    name = "a.gpkg"
    source = write_image(tmp_path / "source.tif", texture(300, 260, 1), PLACES["utm"])
    copy_raster(source, tmp_path / name, driver="GPKG")
    whole = (tmp_path / name).read_bytes()
    assert pixels(tmp_path / name).any()
    for left in (0.99, 0.9, 0.5):
        (tmp_path / name).write_bytes(whole[: int(len(whole) * left)])
        refused(tmp_path / name)


@pytest.mark.parametrize("name", SHOWN_BY_ZEROS)
def test_zeros_in_place_of_the_end_are_refused(tmp_path, name):
    file = written(tmp_path, name)
    whole = file.read_bytes()
    for left in (0.99, 0.9, 0.5):
        kept = int(len(whole) * left)
        file.write_bytes(whole[:kept] + bytes(len(whole) - kept))
        refused(file)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("missing", [1, 12, 13, 100])
def test_a_png_needs_its_last_chunk(tmp_path, dtype, missing):
    file = tmp_path / "a.png"
    Image.fromarray(texture(70, 60, 1, dtype=dtype)[..., 0]).save(file)
    whole = file.read_bytes()
    file.write_bytes(whole[:-missing])
    refused(file)
    with pytest.raises(ImageError, match="no chunk IEND"), open_header(str(file)):
        pass
    file.write_bytes(whole + b"more")
    assert pixels(file).shape == (1, 70, 60)


def test_a_cut_png_in_a_tar_or_of_a_vrt_is_refused(tmp_path):
    file = written(tmp_path, "a.png")
    copy_raster(file, tmp_path / "a.vrt", driver="VRT")
    whole = file.read_bytes()
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(file, "a.png")
    with tarfile.open(tmp_path / "a.tar") as archive:
        start = archive.getmember("a.png").offset_data
    assert pixels(member_address(tmp_path / "a.tar", "a.png", start, len(whole))).any()
    refused(member_address(tmp_path / "a.tar", "a.png", start, len(whole) - 30))
    assert pixels(tmp_path / "a.vrt").any()
    file.write_bytes(whole[:-30])
    refused(tmp_path / "a.vrt")


def test_an_envi_file_may_have_a_header_before_its_pixels(tmp_path):
    file = written(tmp_path, "envi.img")
    values, header = pixels(file), file.with_suffix(".hdr")
    (tmp_path / "envi.img.aux.xml").unlink()  # GDAL's copy of the header
    file.write_bytes(bytes(64) + file.read_bytes())
    header.write_text(header.read_text().replace("header offset = 0", "header offset = 64"))
    assert (pixels(file) == values).all()
    file.write_bytes(file.read_bytes()[:-1])
    refused(file)
    with rasterio.open(file) as dataset:  # GDAL reads the missing pixel as 0
        assert np.count_nonzero(dataset.read() != values) == 1
