"""Networks and polygons are drawn where they lie, in the colours of speeds and of classes."""

import geopandas as gpd
import numpy as np
import pytest
import rasterio
import shapely
from affine import Affine
from helpers.rasters import write_raster
from helpers.roads import network
from PIL import Image

import geoprep as gp
from geoprep.errors import ImageError, SourceError, UsageError
from geoprep.palette import BACKGROUND_COLOUR, SPEED_COLOURS
from geoprep.views.network_preview import preview_network

PLACE = Affine(1, 0, 400_000, 0, -1, 6_000_000)


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB"))


def has(picture, colour):
    return (np.abs(picture.astype(int) - colour).max(axis=-1) < 6).any()


def grey_image(path):
    return write_raster(path, np.full((3, 200, 400), 90, np.uint8), transform=PLACE)


def test_roads_lie_where_they_are_in_the_image(tmp_path):
    image = grey_image(tmp_path / "image.tif")
    made = network([(400_000, 5_999_850), (400_400, 5_999_850)], speeds=[25], crs="EPSG:32637")
    out = preview_network(made, tmp_path / "roads.png", over=image)
    picture = pixels(out)
    assert picture.shape == (800, 1600, 3)
    assert np.abs(picture[600, 800].astype(int) - SPEED_COLOURS[2]).max() < 6
    assert tuple(picture[300, 1200]) == (90, 90, 90)


def test_a_network_without_roads_is_its_image(tmp_path):
    image = grey_image(tmp_path / "image.tif")
    out = preview_network(network(crs="EPSG:32637"), tmp_path / "roads.png", over=image)
    assert tuple(pixels(out)[300, 1200]) == (90, 90, 90)


def test_without_an_image_the_ground_is_dark(tmp_path):
    lines = [[(0, 0), (100, 0)], [(0, 50), (100, 50)]]
    out = preview_network(network(*lines, speeds=[65, np.nan]), tmp_path / "roads.png")
    picture = pixels(out)
    assert has(picture, SPEED_COLOURS[6])
    assert has(picture, (210, 213, 220))
    assert tuple(picture[-3, -3]) == BACKGROUND_COLOUR


def test_images_of_any_type_and_pixels_without_a_place(tmp_path):
    image = write_raster(
        tmp_path / "i.tif", np.arange(5000, dtype=np.uint16).reshape(50, 100), crs=None
    )
    made = network([(0, -12.5), (50, -12.5)], speeds=[25])
    out = preview_network(made, tmp_path / "roads.png", over=image, pixel_size_m=0.5)
    picture = pixels(out)
    assert np.abs(picture[400, 800].astype(int) - SPEED_COLOURS[2]).max() < 6


def test_what_cannot_be_drawn_is_named(tmp_path):
    made = network([(0, 0), (100, 0)])
    with pytest.raises(UsageError, match=r"ends in \.png"):
        preview_network(made, tmp_path / "roads.gpkg")
    image = grey_image(tmp_path / "image.tif")
    with pytest.raises(UsageError, match="pixel_size"):
        preview_network(made, tmp_path / "roads.png", over=image)
    away = network([(7e5, 5e6), (7e5, 5_000_100)], crs="EPSG:32637")
    with pytest.raises(UsageError, match=r"image\.tif does not overlap the roads"):
        preview_network(away, tmp_path / "roads.png", over=image)
    (tmp_path / "no.tif").write_text("no")
    with pytest.raises(ImageError, match=r"no\.tif"):
        preview_network(made, tmp_path / "roads.png", over=tmp_path / "no.tif")
    assert not (tmp_path / "roads.png").exists()


def test_the_legend_counts_what_the_picture_shows(tmp_path):
    image = grey_image(tmp_path / "image.tif")
    y = 5_999_850
    made = network([(399_000, y), (400_300, y)], speeds=[25], crs="EPSG:32637")
    out = preview_network(made, tmp_path / "roads.svg", over=image)
    assert "21–30 mph  (0.3 km)" in out.read_text()


@pytest.mark.parametrize("name", ["areas.gpkg", "areas.geojson", "plain.gpkg"])
def test_polygons_are_drawn_in_the_colours_of_their_classes(tmp_path, name):
    image = grey_image(tmp_path / "image.tif")
    x, y = (0, 0) if name == "plain.gpkg" else (400_000, 6_000_000)  # plain: not georeferenced
    yard = shapely.box(x + 40, y - 160, x + 160, y - 40) - shapely.box(
        x + 80, y - 120, x + 120, y - 80
    )
    away = shapely.MultiPolygon([shapely.box(x + 240, y - 160, x + 360, y - 40)])
    frame = gpd.GeoDataFrame(
        {"class": ["house", "shed"]}, geometry=[yard, away], crs=None if x == 0 else 32637
    )
    (frame.to_crs(4326) if name.endswith("json") else frame).to_file(tmp_path / name)
    given = {"over": image, "pixel_size": 1.0} if x == 0 else {"over": image}
    out = gp.preview(tmp_path / name, tmp_path / "areas.png", **given)
    picture = pixels(out).astype(int)
    for at, colour in (((400, 240), (0xE6, 0x9F, 0x00)), ((400, 1200), (0x56, 0xB4, 0xE9))):
        assert np.abs(picture[at] - (0.4 * np.array(colour) + 0.6 * 90)).max() < 6
    assert tuple(picture[400, 400]) == tuple(picture[400, 800]) == (90, 90, 90)  # yard, between
    assert gp.preview(tmp_path / name, tmp_path / "dark.svg").read_text().count("shed") == 1


def test_polygons_without_classes_are_named_by_their_layer(tmp_path):
    frame = gpd.GeoDataFrame(geometry=[shapely.box(0, 0, 9, 9)], crs=32637)
    frame.to_file(tmp_path / "labels.gpkg", layer="footprints")
    out = gp.preview(tmp_path / "labels.gpkg", tmp_path / "labels.svg")
    assert "footprints" in out.read_text()


def test_lines_without_speeds_and_polygons_elsewhere_are_refused(tmp_path):
    shapes = {"lines": shapely.LineString([(0, 0), (1, 1)]), "areas": shapely.box(0, 0, 1, 1)}
    for name, shape in shapes.items():
        gpd.GeoDataFrame(geometry=[shape], crs=4326).to_file(tmp_path / f"{name}.geojson")
    with pytest.raises(SourceError, match="no field speed_mph"):
        gp.preview(tmp_path / "lines.geojson", tmp_path / "x.png")
    image = grey_image(tmp_path / "image.tif")
    with pytest.raises(UsageError, match="does not overlap the polygons"):
        gp.preview(tmp_path / "areas.geojson", tmp_path / "x.png", over=image)
    metres = shapely.box(400_000, 6_170_000, 400_050, 6_180_000)
    gpd.GeoDataFrame(geometry=[metres], crs=4326).to_file(tmp_path / "metres.gpkg")
    with pytest.raises(UsageError, match="not on Earth by its CRS"):
        gp.preview(tmp_path / "metres.gpkg", tmp_path / "x.png")


def test_land_that_ends_beyond_the_zone_of_an_image_is_drawn_over_it(tmp_path):
    image = grey_image(tmp_path / "image.tif")
    land = shapely.box(-170, -90, 180, 90)
    gpd.GeoDataFrame({"class": ["land"]}, geometry=[land], crs=4326).to_file(tmp_path / "land.gpkg")
    out = gp.preview(tmp_path / "land.gpkg", tmp_path / "x.svg", over=image)
    assert "land" in out.read_text()


def square(folder, name="a"):
    """Return a file with one polygon in the lower right corner of an image of 200 x 200 pixels."""
    shape = shapely.box(400_180, 5_999_805, 400_195, 5_999_820)
    path = folder / "areas.gpkg"
    gpd.GeoDataFrame({"class": [name]}, geometry=[shape], crs="EPSG:32637").to_file(path)
    return path


def over(folder, values, **how):
    """Return the picture of a polygon over an image, uint8 (y, x, 3) of 200 x 200 pixels."""
    image = write_raster(folder / "image.tif", values, transform=PLACE, **how)
    gp.preview(square(folder), out=folder / "a.png", over=image)
    return np.asarray(Image.open(folder / "a.png").convert("RGB").resize((200, 200)))


@pytest.mark.parametrize(("dtype", "nodata"), [("float32", -9999), ("uint16", 65535)])
def test_nodata_of_an_image_does_not_take_its_contrast(tmp_path, dtype, nodata):
    values = np.full((1, 200, 200), 0.1 if dtype == "float32" else 300).astype(dtype)
    values[:, 100:, :100] *= 3
    values[:, :, 100:] = nodata
    seen = over(tmp_path, values, nodata=nodata).astype(int)
    assert seen[180, 50].mean() - seen[95, 50].mean() > 150


def test_bands_are_shown_by_name_and_palettes_by_colour(tmp_path):
    values = np.zeros((3, 200, 200), np.uint8) + np.uint8([200, 100, 50])[:, None, None]
    seen = over(tmp_path, values, names=("blue", "green", "red"))
    np.testing.assert_allclose(seen[150, 50], (50, 100, 200), atol=2)
    image = write_raster(tmp_path / "p.tif", np.ones((1, 200, 200), np.uint8), transform=PLACE)
    with rasterio.open(image, "r+") as file:
        file.write_colormap(1, {0: (0, 0, 0, 255), 1: (10, 220, 30, 255)})
    gp.preview(square(tmp_path), out=tmp_path / "b.png", over=image)
    seen = pixels(tmp_path / "b.png")
    np.testing.assert_allclose(seen[1200, 400], (10, 220, 30), atol=2)


def test_names_of_classes_are_shown_as_they_are(tmp_path):
    for name in (r"$\x$ $2", "_hidden"):
        gp.preview(square(tmp_path, name), out=tmp_path / "a.svg", overwrite=True)
        text = (tmp_path / "a.svg").read_text()
        assert f"<!-- {name} -->" in text  # matplotlib's comment beside the outlines of the letters
