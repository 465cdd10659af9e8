"""What is read from an image, what of it is valid, and how values become bytes."""

import numpy as np
import pytest
import rasterio
from helpers.factory import texture, truncate, write_image
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from rasterio.windows import Window

from geoprep.building.options import parse_rescale
from geoprep.errors import ImageError, UsageError
from geoprep.imagery.band_names import band_numbers
from geoprep.imagery.counts import count_source
from geoprep.imagery.decoding import ImageWindow, find_valid, read_pixels
from geoprep.imagery.description import Raster
from geoprep.imagery.headers import describe
from geoprep.imagery.rescale import lookup_tables, percentile_limits
from geoprep.storage.inputs import open_image

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def read(path, bands=(1, 2, 3), window=None, **more):
    with open_image(str(path)) as dataset:
        return read_pixels(dataset, bands, window, **more)


def valid_of(pixels):
    return pixels.valid if pixels.valid is not None else np.ones(pixels.values.shape[:2], np.uint8)


@pytest.fixture
def values():
    """Return 40 x 50 pixels, none of them nodata."""
    return texture(40, 50)


def test_without_any_tag_black_that_hangs_together_with_the_edge_is_nodata(tmp_path):
    values = texture(200, 300)
    values[:, :3] = 0
    values[150:160, 3:120] = 0
    values[20:90, 100:170] = 0  # 4,900 pixels of water
    values[5, 6, 0] = 0  # one band only: a pixel
    pixels = read(write_image(tmp_path / "a.tif", values))
    expected = np.ones((200, 300), np.uint8)
    expected[:, :3] = expected[150:160, 3:120] = 0
    np.testing.assert_array_equal(pixels.valid, expected)
    assert pixels.valid_pixels == expected.sum()
    assert pixels.black_pixels == (expected == 0).sum()


def test_a_window_is_told_where_black_is_nodata(tmp_path, values):
    values[3:8, 4:9] = 0
    path, window = write_image(tmp_path / "a.tif", values), Window(2, 1, 20, 15)
    black = (values[1:16, 2:22] == 0).all(axis=2)
    mask = np.ones((15, 20), np.uint8)
    mask[:4] = 0
    alone, told = read(path, window=window), read(path, window=window, mask=mask)
    np.testing.assert_array_equal(alone.valid == 0, black)
    np.testing.assert_array_equal(alone.black, black)
    np.testing.assert_array_equal(told.valid, mask)
    assert told.black is None


@pytest.mark.parametrize("nodata", [200, 0])
def test_nodata_that_is_given_comes_before_what_the_file_says(tmp_path, values, nodata):
    values[3, 4], values[9, 9], values[5, 6] = 200, 0, 7
    path = write_image(tmp_path / "a.tif", values, nodata=7)
    pixels = read(path, nodata=nodata)
    np.testing.assert_array_equal(pixels.valid, (values != nodata).any(axis=2))


@given(st.integers(0, 10**6), st.sampled_from([0.0, 3.0, 255.0, 3.5, 300.0, -9999.0, np.nan]))
def test_nodata_is_where_no_band_differs(seed, nodata):
    values = np.random.default_rng(seed).choice([0, 3, 7, 255], (6, 5, 3)).astype(np.uint8)
    if nodata in (0, 3, 255):
        values[2, 2] = nodata
    found = find_valid(values, nodata)
    expected = (values.astype(float) != nodata).any(axis=2)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bands", [(1, 2, 3), (3, 1)])
def test_a_palette_is_read_by_its_colours(tmp_path, bands):
    indexes = np.random.default_rng(0).integers(0, 4, (30, 40)).astype(np.uint8)
    colours = {0: (10, 20, 30), 1: (200, 100, 50), 2: (255, 255, 255), 3: (1, 2, 3)}
    path = write_image(tmp_path / "a.tif", indexes[..., None])
    with rasterio.open(path, "r+") as file:
        file.write_colormap(1, {index: (*colour, 255) for index, colour in colours.items()})
    with open_image(str(path)) as dataset:
        raster = Raster.of(dataset)
        assert raster.default_bands == (1, 2, 3)
        assert raster.band_names == ("red", "green", "blue")
        assert raster.dtype_of(bands) == "uint8"
        pixels = read_pixels(dataset, bands)
        with pytest.raises(ImageError, match="no band 4"):
            band_numbers((4,), raster.names, raster.name)
    expected = np.array([colours[i] for i in range(4)], np.uint8)[indexes][..., np.array(bands) - 1]
    np.testing.assert_array_equal(pixels.values, expected)
    assert valid_of(pixels).all()


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_every_band_has_its_own_nodata_as_in_rasterio(tmp_path, dtype):
    """Of bands with nodata 7, 8 and 9, as a VRT has them."""
    values = np.full((4, 6, 3), 50, dtype)
    values[0, 0] = 7, 8, 9  # nodata
    values[0, 1] = 7, 7, 7  # band 1's value in all bands
    values[0, 2] = 8, 9, 7
    path = write_image(tmp_path / "a.tif", values)
    bands = "".join(
        f'<VRTRasterBand dataType="{"Byte" if dtype == "uint8" else "Int16"}" band="{k}">'
        f"<NoDataValue>{k + 6}</NoDataValue><SimpleSource><SourceFilename>{path}</SourceFilename>"
        f"<SourceBand>{k}</SourceBand></SimpleSource></VRTRasterBand>"
        for k in (1, 2, 3)
    )
    vrt = tmp_path / "a.vrt"
    vrt.write_text(f'<VRTDataset rasterXSize="6" rasterYSize="4">{bands}</VRTDataset>')
    with rasterio.open(vrt) as file:
        expected = file.dataset_mask() != 0
    valid = valid_of(read(vrt))
    assert expected.sum() == 23
    if dtype == "int16":  # one band of nodata suffices
        expected[0, 1] = False
    np.testing.assert_array_equal(valid != 0, expected)
    np.testing.assert_array_equal(valid_of(read(vrt, (2, 3)))[0, :3], [0, 1, 1])


def test_a_palette_of_16_bits_is_refused(tmp_path):
    shape = {"driver": "GTiff", "width": 9, "height": 9, "count": 1, "dtype": "uint16"}
    with rasterio.open(tmp_path / "a.tif", "w", photometric="palette", **shape) as file:
        file.write_colormap(1, {1: (9, 9, 9, 255)})
    with pytest.raises(ImageError, match=r"a\.tif has a palette of uint16 values.*-expand rgb"):
        describe(str(tmp_path / "a.tif")).dtype_of((1,))


@pytest.mark.parametrize("clear", [(), (3,), (1, 3)])
def test_every_transparent_entry_of_a_palette_is_nodata(tmp_path, clear):
    indexes = np.tile(np.arange(4, dtype=np.uint8), (5, 3))
    picture = Image.fromarray(indexes).convert("P")
    picture.putpalette([0, 0, 0, 9, 9, 9, 255, 255, 255, 5, 5, 5])
    alpha = bytes(0 if index in clear else 255 for index in range(256))
    picture.save(tmp_path / "a.png", **({"transparency": alpha} if clear else {}))
    expected = ~np.isin(indexes, clear or (0,))  # without any, black at the edge
    np.testing.assert_array_equal(valid_of(read(tmp_path / "a.png")) != 0, expected)
    white = read(tmp_path / "a.png", nodata=255)
    assert describe(str(tmp_path / "a.png")).states_nodata == bool(clear)
    np.testing.assert_array_equal(white.valid != 0, indexes != 2)  # the colour, not the index


def test_alpha_comes_before_the_nodata_tag(tmp_path, values):
    values[:] = 7
    alpha = np.full((40, 50), 255, np.uint8)
    pixels = read(write_image(tmp_path / "a.tif", values, alpha=alpha, nodata=7))
    assert pixels.valid_pixels == 2000


def test_a_truncated_file_says_which_and_what_gdal_said(tmp_path):
    path = write_image(tmp_path / "cut.tif", texture(300, 300))
    truncate(path)
    with pytest.raises(ImageError, match=r"cut\.tif") as error:
        read(path)
    assert "previous exception" not in str(error.value)


# Values to bytes


def limits_of(pixels):
    return percentile_limits(count_source(pixels))


@given(
    hnp.arrays(
        st.sampled_from([np.uint8, np.uint16]),
        st.tuples(st.integers(1, 30), st.integers(1, 30), st.just(1)),
        elements=st.integers(0, 255),
        fill=st.nothing(),
    )
)
@example(np.zeros((2, 2, 1), np.uint8))
@example(np.full((2, 2, 1), 9, np.uint16))
@example(np.arange(100, dtype=np.uint16).reshape(10, 10, 1))
@example(np.arange(65536, dtype=np.uint16).reshape(256, 256, 1))
@example(np.array([[[1], [255]]], np.uint8))
def test_limits_are_numpys_percentiles_to_the_last_bit(values):
    pixels = ImageWindow(values)
    above = values[values > 0]
    if above.size == 0:
        assert limits_of(pixels).tolist() == [[1.0, 2.0]]
        return
    low, high = np.percentile(above, (2, 98))
    low = max(1.0, low)
    assert limits_of(pixels).tolist() == [[low, high if high > low else low + 1]]


def test_limits_leave_nodata_out():
    values = np.random.default_rng(1).integers(100, 900, (60, 60, 2)).astype(np.uint16)
    values[:30] = 60000
    valid = np.ones((60, 60), np.uint8)
    valid[:30] = 0
    limits = limits_of(ImageWindow(values, valid))
    expected = [np.percentile(values[30:, :, k], (2, 98)) for k in (0, 1)]
    np.testing.assert_array_equal(limits, expected)


@given(st.floats(1, 60000), st.floats(0.5, 5000), st.sampled_from(["uint8", "uint16"]))
def test_tables_are_the_reference_but_never_nodata(low, width, dtype):
    table = lookup_tables(np.array([[low, low + width]]), dtype)
    values = np.arange(np.iinfo(dtype).max + 1, dtype=np.float64)
    expected = np.clip(np.floor((values - low) * 255 / width + 0.5), 1, 255)
    np.testing.assert_array_equal(table[0], expected)
    assert table.dtype == np.uint8


@pytest.mark.parametrize(
    "text", ["", "5", "5,1", "1,1", "1,2,3", "a,b", "nan,nan", "0,inf", "best"]
)
def test_other_rules_are_refused(text):
    with pytest.raises(UsageError, match="`rescale`"):
        parse_rescale(text)
