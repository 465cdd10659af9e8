"""Which pixels are nodata, of every combination of masks: as rasterio has it."""

import numpy as np
import pytest
import rasterio
from helpers.factory import texture, write_image
from helpers.rasters import write_raster
from rasterio.enums import ColorInterp
from rasterio.windows import Window

from geoprep.imagery.decoding import read_pixels
from geoprep.imagery.description import Raster
from geoprep.imagery.headers import describe
from geoprep.storage.inputs import open_image

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

HIDDEN = np.zeros((40, 50), bool)
HIDDEN[5:30, 8:33] = True
COLOURS = {0: (1, 2, 3), 1: (200, 100, 50), 2: (255, 255, 255), 3: (9, 8, 7)}


def file_of(folder, kind, stated, dtype):
    """Return an image of gray, rgb or palette in which ``stated`` hides pixels; and its bands."""
    values = texture(40, 50, 3 if kind == "rgb" else 1, dtype=dtype)
    if kind == "palette":
        values %= 4
    values[0, :5] = 0
    if stated == "tag":
        values[HIDDEN] = 2
    layers, colours = [*np.moveaxis(values, -1, 0)], [ColorInterp.gray]
    if kind == "rgb":
        colours = [ColorInterp.red, ColorInterp.green, ColorInterp.blue]
    if kind == "palette":
        colours = [ColorInterp.palette]
    if stated in ("alpha first", "alpha last"):
        place = 0 if stated == "alpha first" else len(layers)
        layers.insert(place, np.where(HIDDEN, 0, 1).astype(dtype))  # the rest is nearly transparent
        colours.insert(place, ColorInterp.alpha)
    path = folder / "a.tif"
    shape = {"width": 50, "height": 40, "count": len(layers), "dtype": dtype}
    tag = 2 if stated == "tag" else None
    options = {"photometric": "minisblack", "alpha": "no"} if len(layers) > 1 else {}
    if kind == "palette":
        options = {}
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=stated == "mask inside"),
        rasterio.open(path, "w", driver="GTiff", nodata=tag, **shape, **options) as file,
    ):
        file.colorinterp = colours
        file.write(np.array(layers))
        if kind == "palette":
            file.write_colormap(1, COLOURS)
        if stated in ("mask inside", "mask beside"):
            file.write_mask(~HIDDEN)
    if stated == "mask per band":
        write_band_masks(path, np.repeat(np.where(HIDDEN, 0, 255)[None], len(colours), 0))
    return path


def write_band_masks(path, masks):
    """Write GDAL's sidecar of one mask (band, y, x) per band."""
    flags = {f"INTERNAL_MASK_FLAGS_{band}": 0 for band in range(1, len(masks) + 1)}
    write_raster(path.with_name(f"{path.name}.msk"), masks.astype(np.uint8), tags=flags, crs=None)


STATED = ["tag", "mask inside", "mask beside", "mask per band", "alpha last", "alpha first"]
COMBINATIONS = [
    (kind, stated, dtype)
    for kind in ("gray", "rgb", "palette")
    for stated in STATED
    for dtype in ("uint8", "float32")
    if kind != "palette" or (dtype == "uint8" and stated != "alpha first")
]


@pytest.mark.parametrize(("kind", "stated", "dtype"), COMBINATIONS)
def test_nodata_is_where_rasterio_has_it(tmp_path, kind, stated, dtype):
    """In the whole image and in a window; a palette is read by its colours."""
    path = file_of(tmp_path, kind, stated, dtype)
    with open_image(str(path)) as dataset:
        raster = Raster.of(dataset)
        bands = raster.default_bands
        first = 1 if kind == "palette" else bands[0]
        expected = dataset.read_masks(first) != 0
        if "alpha" in stated:
            expected = dataset.read(raster.alpha) != 0
        whole = read_pixels(dataset, bands)
        part = read_pixels(dataset, bands, Window(10, 3, 30, 20))
        indexes = dataset.read(1)
    assert raster.states_nodata
    if dtype == "uint8":
        places = {"tag": "nodata", "mask inside": "data set", "mask beside": "data set"}
        places |= {"mask per band": "band", "alpha last": "alpha"}
        assert raster.bands[first - 1].mask == places.get(stated, "none")
    beside = (f"{path}.msk",) if stated in ("mask beside", "mask per band") else ()
    assert describe(str(path)).files == (str(path), *beside)
    assert len(bands) == (1 if kind == "gray" else 3)
    assert HIDDEN.sum() <= (~expected).sum() < HIDDEN.size
    assert whole.values.flags.c_contiguous
    np.testing.assert_array_equal(whole.valid != 0, expected)
    np.testing.assert_array_equal(part.valid != 0, expected[3:23, 10:40])
    if kind == "palette":
        colours = np.array([COLOURS[index] for index in range(4)], np.uint8)
        np.testing.assert_array_equal(whole.values, colours[indexes])


def test_a_pixel_is_valid_where_the_mask_of_a_band_that_is_read_says_so(tmp_path):
    values, masks = texture(40, 50), np.full((3, 40, 50), 255, np.uint8)
    masks[0, :20], masks[1, 10:30], masks[2, 10:] = 0, 0, 0
    path = write_image(tmp_path / "a.tif", values)
    write_band_masks(path, masks)
    with open_image(str(path)) as dataset:
        for bands in ((1, 2, 3), (2, 3), (1,)):
            expected = (masks[[band - 1 for band in bands]] != 0).any(axis=0)
            valid = read_pixels(dataset, bands).valid
            np.testing.assert_array_equal(np.ones((40, 50)) if valid is None else valid, expected)
            if bands == (1, 2, 3):
                np.testing.assert_array_equal(dataset.dataset_mask() != 0, expected)


@pytest.mark.parametrize("nodata", [None, 7])
def test_an_alpha_band_that_is_read_is_data(tmp_path, nodata):
    """As near infrared, which GDAL calls alpha by default; black is then decided as without it."""
    infrared = np.where(HIDDEN, 0, 90).astype(np.uint8)
    values = texture(40, 50)
    values[:3], infrared[:3] = 0, 0
    values[20, 40], infrared[20, 40] = 7, 7
    path = write_image(tmp_path / "a.tif", values, alpha=infrared, nodata=nodata)
    with open_image(str(path)) as dataset:
        pixels = read_pixels(dataset, (1, 2, 3, 4))
    np.testing.assert_array_equal(pixels.values[..., 3], infrared)
    expected = np.ones((40, 50))
    if nodata is None:
        expected[:3] = 0
    else:
        expected[20, 40] = 0
    np.testing.assert_array_equal(pixels.valid, expected)
    assert describe(str(path)).reading((1, 2, 3, 4)).states_nodata == (nodata is not None)
