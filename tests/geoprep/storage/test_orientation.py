"""Images that other readers turn or invert are refused, with the command that writes them so."""

import struct

import numpy as np
import pytest
import rasterio
from helpers.factory import PLACES, texture
from PIL import Image
from rasterio.shutil import copy as copy_raster

from geoprep.errors import ImageError
from geoprep.imagery.headers import describe
from geoprep.storage.inputs import open_image

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def turned(path, orientation, **options):
    """Write an image with an orientation in its EXIF, or in its tags."""
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(texture(30, 40)).save(path, exif=exif, **options)
    return str(path)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_that_is_stored_turned_is_refused(tmp_path, name, orientation):
    address = turned(tmp_path / name, orientation)
    if orientation == 1:
        assert describe(address).grid.shape == (30, 40)
        return
    says = rf"{name} is stored turned \(EXIF orientation {orientation}\).*mogrify -auto-orient FILE"
    with pytest.raises(ImageError, match=says):
        describe(address)
    with pytest.raises(ImageError, match=says), open_image(address):
        pass


@pytest.mark.parametrize("options", [{"big_tiff": True}, {"compression": "jpeg"}])
def test_tiffs_of_any_kind_tell_their_orientation(tmp_path, options):
    with pytest.raises(ImageError, match="EXIF orientation 8"):
        describe(turned(tmp_path / "a.tif", 8, **options))


def test_the_order_of_bytes_of_a_tiff_does_not_matter(tmp_path):
    tags = [(256, 3, 2), (257, 3, 1), (258, 3, 8), (262, 3, 1), (273, 4, 122), (274, 3, 3)]
    tags += [(277, 3, 1), (278, 3, 1), (279, 4, 2)]
    body = b"".join(
        struct.pack(">HHI", tag, kind, 1)
        + (struct.pack(">HH", value, 0) if kind == 3 else struct.pack(">I", value))
        for tag, kind, value in tags
    )
    head = b"MM\0*" + struct.pack(">I", 8) + struct.pack(">H", len(tags))
    (tmp_path / "a.tif").write_bytes(head + body + bytes(4) + b"\x05\x07")
    with rasterio.open(tmp_path / "a.tif") as file:
        assert file.read().tolist() == [[[5, 7]]]
    with pytest.raises(ImageError, match="EXIF orientation 3"):
        describe(str(tmp_path / "a.tif"))


def test_what_a_vrt_is_of_counts_and_a_georeference_is_upright(tmp_path):
    address = turned(tmp_path / "a.tif", 6)
    copy_raster(address, tmp_path / "a.vrt", driver="VRT")
    with pytest.raises(ImageError, match=r"a\.vrt is stored turned"):
        describe(str(tmp_path / "a.vrt"))
    with rasterio.open(address, "r+") as file:
        file.crs, file.transform = PLACES["utm"].crs, PLACES["utm"].transform
    assert describe(address).grid.georeferenced


@pytest.mark.parametrize(("dtype", "most"), [("uint8", 255), ("uint16", 65535)])
def test_an_image_whose_smallest_value_is_white_is_refused(tmp_path, dtype, most):
    values = texture(30, 40, 1, dtype)[..., 0]
    options = {"driver": "GTiff", "width": 40, "height": 30, "count": 1, "dtype": dtype}
    for name in ("miniswhite", "minisblack"):
        with rasterio.open(tmp_path / f"{name}.tif", "w", photometric=name, **options) as file:
            file.write(values, 1)
    says = rf"miniswhite\.tif shows its smallest value white.*-scale 0 {most} {most} 0 IN OUT`"
    with pytest.raises(ImageError, match=says):
        describe(str(tmp_path / "miniswhite.tif"))
    with open_image(str(tmp_path / "minisblack.tif")) as dataset:
        np.testing.assert_array_equal(dataset.read(1), values)
    # Of one bit, GDAL turns the values over itself, into a palette.
    bits = Image.fromarray(values > np.median(values))
    bits.save(tmp_path / "b.tif", tiffinfo={262: 0})
    with open_image(str(tmp_path / "b.tif")) as dataset:
        colours = np.array([dataset.colormap(1)[key][0] for key in (0, 1)])
        np.testing.assert_array_equal(colours[dataset.read(1)] > 0, values > np.median(values))
