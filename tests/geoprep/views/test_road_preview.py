"""A network is drawn where it lies, in the colours of its speeds."""

import numpy as np
import pytest
from affine import Affine
from helpers.rasters import write_raster
from helpers.roads import network
from PIL import Image

from geoprep.errors import ImageError, UsageError
from geoprep.palette import BACKGROUND_COLOUR, SPEED_COLOURS
from geoprep.views.network_preview import preview_network


def has(picture, colour):
    return (np.abs(picture.astype(int) - colour).max(axis=-1) < 6).any()


def lonlat_image(path, bands=3):
    values = np.full((bands, 200, 400), 90, np.uint8)
    return write_raster(path, values, transform=Affine(1, 0, 400_000, 0, -1, 6_000_000))


def test_roads_lie_where_they_are_in_the_image(tmp_path):
    image = lonlat_image(tmp_path / "image.tif")
    made = network([(400_000, 5_999_850), (400_400, 5_999_850)], speeds=[25], crs="EPSG:32637")
    out = preview_network(made, tmp_path / "roads.png", over=image)
    picture = np.asarray(Image.open(out).convert("RGB"))
    assert picture.shape == (800, 1600, 3)
    assert np.abs(picture[600, 800].astype(int) - SPEED_COLOURS[2]).max() < 6
    assert tuple(picture[300, 1200]) == (90, 90, 90)


def test_a_network_without_roads_is_its_image(tmp_path):
    image = lonlat_image(tmp_path / "image.tif")
    out = preview_network(network(crs="EPSG:32637"), tmp_path / "roads.png", over=image)
    assert tuple(np.asarray(Image.open(out).convert("RGB"))[300, 1200]) == (90, 90, 90)


def test_without_an_image_the_ground_is_dark(tmp_path):
    lines = [[(0, 0), (100, 0)], [(0, 50), (100, 50)]]
    out = preview_network(network(*lines, speeds=[65, np.nan]), tmp_path / "roads.png")
    picture = np.asarray(Image.open(out).convert("RGB"))
    assert has(picture, SPEED_COLOURS[6])
    assert has(picture, (210, 213, 220))
    assert tuple(picture[-3, -3]) == BACKGROUND_COLOUR


def test_images_of_any_type_and_pixels_without_a_place(tmp_path):
    image = write_raster(
        tmp_path / "i.tif", np.arange(5000, dtype=np.uint16).reshape(50, 100), crs=None
    )
    made = network([(0, -12.5), (50, -12.5)], speeds=[25])
    out = preview_network(made, tmp_path / "roads.png", over=image, pixel_size_m=0.5)
    picture = np.asarray(Image.open(out).convert("RGB"))
    assert np.abs(picture[400, 800].astype(int) - SPEED_COLOURS[2]).max() < 6


def test_what_cannot_be_drawn_is_named(tmp_path):
    made = network([(0, 0), (100, 0)])
    with pytest.raises(UsageError, match=r"ends in \.png"):
        preview_network(made, tmp_path / "roads.gpkg")
    image = lonlat_image(tmp_path / "image.tif")
    with pytest.raises(UsageError, match="pixel_size"):
        preview_network(made, tmp_path / "roads.png", over=image)
    (tmp_path / "no.tif").write_text("no")
    with pytest.raises(ImageError, match=r"no\.tif"):
        preview_network(made, tmp_path / "roads.png", over=tmp_path / "no.tif")
    assert not (tmp_path / "roads.png").exists()


def test_the_legend_counts_what_the_picture_shows(tmp_path):
    image = lonlat_image(tmp_path / "image.tif")
    y = 5_999_850
    made = network([(399_000, y), (400_300, y)], speeds=[25], crs="EPSG:32637")
    out = preview_network(made, tmp_path / "roads.svg", over=image)
    assert "21–30 mph  (0.3 km)" in out.read_text()
