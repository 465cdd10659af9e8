"""Equal pixels mean the same, whatever container and overviews a file has."""

import numpy as np
import pytest
import rasterio
import rasterio.shutil
from rasterio.enums import Resampling
from rasterio.windows import Window

from geoprep.classes.class_rasters import ClassPixels, read_classes
from geoprep.grid import Grid
from geoprep.imagery.values import open_values
from geoprep.roads.centrelines.opening import open_raster

SIDE = 2100
ROWS, COLUMNS = np.mgrid[:SIDE, :SIDE]
ROADS = [abs(ROWS - 700 - COLUMNS * 0.3) < 8, abs(COLUMNS - 1200 + ROWS * 0.2) < 6]
CONTAINERS = ("plain.tif", "tiled.tif", "average.tif", "cog.tif", "wavelet.jp2")


@pytest.fixture(scope="module")
def contained(tmp_path_factory):
    """Return a function that writes pixels (y, x) into a container."""
    folder = tmp_path_factory.mktemp("containers")

    def write(pixels, container, nodata=None, crs="EPSG:32633", **tags):
        plain, path = folder / "plain.tif", folder / container
        for old in folder.iterdir():
            old.unlink()
        profile = {"driver": "GTiff", "width": SIDE, "height": SIDE, "count": 1, "nodata": nodata}
        if crs:
            profile |= {"crs": crs, "transform": rasterio.Affine(0.5, 0, 6e5, 0, -0.5, 5e6)}
        with rasterio.open(plain, "w", dtype=pixels.dtype, **profile) as file:
            file.write(pixels, 1)
            file.update_tags(**tags)
        if container.startswith("average"):
            rasterio.shutil.copy(plain, path, driver="GTiff", tiled=True)
            with rasterio.open(path, "r+") as file:
                file.build_overviews([2, 4], Resampling.average)
        elif container != "plain.tif":
            driver, options = {
                "tiled.tif": ("GTiff", {"tiled": True}),
                "cog.tif": ("COG", {}),
                "wavelet.jp2": ("JP2OpenJPEG", {"QUALITY": 100, "REVERSIBLE": "YES"}),
            }[container]
            with rasterio.Env() as env:
                if driver not in env.drivers():
                    pytest.skip(f"GDAL was built without {driver}")
            rasterio.shutil.copy(plain, path, driver=driver, **options)
        with rasterio.open(path) as file:
            assert np.array_equal(file.read(1), pixels)
        return path

    return write


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(
    ("values", "kind"), [((1, 1), "mask"), ((40, 40), "mask"), ((25, 55), "speed")]
)
def test_the_meaning_of_a_raster_of_roads_is_that_of_its_pixels(contained, container, values, kind):
    path = contained(np.select(ROADS, values).astype(np.uint8), container)
    raster = open_raster(path)
    assert raster.kind == kind
    assert kind == "speed" or raster.full_value == values[0]


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_sample_has_no_values_of_overviews(contained, container):
    path = contained(np.select(ROADS, (25, 55)).astype(np.uint8), container)
    with open_values(str(path)) as raster:
        assert np.unique(raster.sample(1)).tolist() == [0, 25, 55]


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_sample_has_the_only_pixels_with_another_value(contained, container):
    pixels = np.zeros((SIDE, SIDE), np.uint8)
    pixels[1990:2000, 180:190] = 7  # between two windows
    with open_values(str(contained(pixels, container))) as raster:
        assert np.unique(raster.sample(1)).tolist() == [0, 7]


@pytest.mark.parametrize("container", CONTAINERS)
def test_nearest_pixels_are_those_of_the_file(contained, container):
    pixels = (ROWS * 7 + COLUMNS * 13).astype(np.uint8)
    with open_values(str(contained(pixels, container))) as raster:
        found = raster.nearest((333, 750), [1], Window(100, 600, 1500, 1000))
    ys, xs = 600 + (2 * np.arange(333) + 1) * 1000 // 666, 101 + 2 * np.arange(750)
    assert np.array_equal(found, pixels[None, ys][:, :, xs])


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_picture_does_not_mix_nodata_with_the_ground(contained, container):
    pixels = np.where(ROADS[0], 9000, 1000 + COLUMNS % 2 * 500).astype(np.uint16)
    path = contained(pixels, container, nodata=9000)
    with open_values(str(path)) as raster:
        found = raster.picture((700, 700), [1])
    nearest = pixels[1::3, 1::3]
    assert np.array_equal(found.values[..., 0], nearest)
    assert np.array_equal(found.valid != 0, nearest != 9000)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("crs", ["EPSG:32633", None])
def test_classes_on_a_coarser_grid_are_those_of_pixels(contained, container, crs):
    pixels = (ROWS // 3 % 2 + COLUMNS // 3 % 2 * 2).astype(np.uint8)
    path = contained(pixels, container, crs=crs, CLASS_NAMES='["a", "b", "c", "d"]')
    with rasterio.open(path) as file:
        grid = Grid(700, 700, file.transform * rasterio.Affine.scale(3), crs or "")
    like = ClassPixels(path, np.zeros(grid.shape, np.uint8), grid)
    found = read_classes(path, ("a", "b", "c", "d"), like=like)
    assert np.array_equal(found.label, pixels[1::3, 1::3])
