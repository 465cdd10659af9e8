"""What a raster file states, in one record."""

import numpy as np
import pytest
import rasterio
from affine import Affine
from helpers.factory import PLACES, Place, texture, write_image
from PIL import Image
from rasterio.shutil import copy as copy_raster
from rasterio.vrt import WarpedVRT

from geoprep.errors import ImageError
from geoprep.imagery import Raster, describe
from geoprep.storage import joined, open_image

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


@pytest.fixture
def values():
    """Return 40 x 50 pixels, none of them nodata."""
    return texture(40, 50)


def test_bands_have_their_dtype_scale_offset_unit_and_nodata(tmp_path):
    path = write_image(tmp_path / "a.tif", texture(40, 50, 4, dtype="uint16"), PLACES["utm"])
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = (1.0, 0.0001, 1.0, 1.0), (0.0, -0.1, 0.0, 0.0)
        file.units, file.nodata = ("", "1", "", ""), 9
        file.set_band_description(2, "nir")
    raster = describe(str(path))
    band = raster.bands[1]
    assert (band.description, band.dtype, band.nodata) == ("nir", "uint16", 9)
    assert (band.scale, band.offset, band.unit, band.mask) == (0.0001, -0.1, "1", "nodata")
    assert raster.bands[0].scale == 1
    assert raster.states_nodata
    assert raster.nodata_of((2, 1)) == [9, 9]
    assert (raster.grid.shape, raster.grid.crs) == ((40, 50), PLACES["utm"].crs)
    assert raster.grid.transform == PLACES["utm"].transform
    assert raster.crs.startswith("PROJCS")
    assert (raster.gcps, raster.has_rpcs, raster.pages, raster.orientation) == (0, False, 1, 1)
    assert raster.files == (str(path),)
    assert raster == describe(str(path))


@pytest.mark.parametrize("kind", ["none", "data set", "alpha", "band"])
def test_masks_are_those_of_the_data_set_of_alpha_or_of_a_band(tmp_path, values, kind):
    where, mask = np.full((40, 50), 255, np.uint8), None
    where[:9] = 0
    if kind == "data set":
        mask = where != 0
    path = write_image(
        tmp_path / "a.tif", values, mask=mask, alpha=where if kind == "alpha" else None
    )
    if kind == "band":  # GDAL's sidecar of one mask per band
        flags = {f"INTERNAL_MASK_FLAGS_{number}": 0 for number in (1, 2, 3)}
        with rasterio.open(
            tmp_path / "a.tif.msk", "w", driver="GTiff", width=50, height=40, count=3, dtype="uint8"
        ) as file:
            file.update_tags(**flags)
            file.write(np.stack([where] * 3))
    raster = describe(str(path))
    assert raster.bands[0].mask == kind
    assert raster.has_mask == (kind == "data set")
    assert raster.alpha == (4 if kind == "alpha" else None)
    beside = () if kind in ("none", "alpha") else (f"{path}.msk",)
    assert raster.files == (str(path), *beside)


def test_the_files_of_a_vrt_and_a_stack_of_bands_and_the_pages_of_a_tiff(tmp_path, values):
    bands = [write_image(tmp_path / f"{i}.tif", values[..., i : i + 1]) for i in range(2)]
    vrt = tmp_path / "a.vrt"
    with rasterio.open(bands[0]) as file, WarpedVRT(file, width=25, height=20) as half:
        copy_raster(half, vrt, driver="VRT")
    assert describe(str(vrt)).files == (str(vrt), str(bands[0]))
    stack = joined([str(band) for band in bands])
    assert describe(stack).files == (stack,)
    assert describe(stack).default_bands == (1, 2)
    pages = [Image.fromarray(values) for _ in range(3)]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    assert describe(str(tmp_path / "pages.tif")).pages == 3


def test_an_open_file_is_described_like_its_path_and_a_palette_by_its_colours(tmp_path):
    path = write_image(tmp_path / "a.tif", texture(9, 9, 1))
    with rasterio.open(path, "r+") as file:
        file.write_colormap(1, {1: (9, 8, 7, 255), 2: (1, 2, 3, 255)})
    raster = describe(str(path))
    with open_image(str(path)) as dataset:
        assert Raster.of(dataset) == raster
    assert raster.bands[0].colour == "palette"
    assert raster.colours[:3].tolist() == [[0, 0, 0, 255], [9, 8, 7, 255], [1, 2, 3, 255]]
    assert not raster.states_nodata


def test_bands_are_named_by_description_colour_or_number(tmp_path, values):
    path = write_image(tmp_path / "a.tif", texture(40, 50, 4))
    with rasterio.open(path, "r+") as file:
        file.set_band_description(2, "red edge")
    assert describe(str(path)).band_names == ("band 1", "red edge", "band 3", "band 4")
    rgb = describe(str(write_image(tmp_path / "b.tif", values)))
    assert rgb.band_names == ("red", "green", "blue")


def test_an_image_that_is_stored_turned_is_refused(tmp_path, values):
    picture = Image.fromarray(values)
    exif = picture.getexif()
    for orientation in (1, 6):
        exif[274] = orientation
        picture.save(tmp_path / f"{orientation}.jpg", exif=exif)
    assert describe(str(tmp_path / "1.jpg")).dtype_of((1, 2, 3)) == "uint8"
    turned = describe(str(tmp_path / "6.jpg"))
    assert turned.orientation == 6
    with pytest.raises(ImageError) as error:
        turned.dtype_of((1, 2, 3))
    assert "6.jpg is stored turned (EXIF orientation 6)" in str(error.value)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (Place(None, PLACES["utm"].transform), "no CRS"),
        (Place("EPSG:32637", Affine.identity()), "no georeference"),
        (Place("EPSG:4326", Affine(0.1, 0, 0, 0, -0.1, 400.0)), "nowhere on Earth"),
        (Place('LOCAL_CS["x",UNIT["metre",1]]', Affine(1, 0, 0, 0, -1, 9)), "neither geographic"),
        (Place("EPSG:4978", PLACES["utm"].transform), "neither geographic nor projected"),
    ],
)
def test_images_without_georeference_are_refused_by_name(tmp_path, values, place, says):
    path = write_image(tmp_path / "stray.tif", values, place)
    with pytest.raises(ImageError, match=says) as error:
        describe(str(path)).placed()
    assert "stray.tif" in str(error.value)
    assert "gdal_edit.py" in str(error.value)
