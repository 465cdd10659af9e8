"""Images that other readers turn or invert are refused, with the command that writes them so."""

import numpy as np
import pytest
import rasterio
from helpers.factory import texture
from PIL import Image

from geoprep.errors import ImageError
from geoprep.imagery.headers import describe
from geoprep.storage.inputs import open_image

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def turned(path, orientation):
    """Write an image with an orientation in its EXIF."""
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(texture(30, 40)).save(path, exif=exif)
    return str(path)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpeg_that_is_stored_turned_is_refused(tmp_path, orientation):
    address = turned(tmp_path / "a.jpg", orientation)
    if orientation == 1:
        assert describe(address).grid.shape == (30, 40)
        return
    says = rf"a\.jpg is stored turned \(EXIF orientation {orientation}\).*mogrify -auto-orient FILE"
    with pytest.raises(ImageError, match=says):
        describe(address)
    with pytest.raises(ImageError, match=says), open_image(address):
        pass


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
