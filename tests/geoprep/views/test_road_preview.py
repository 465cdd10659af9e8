"""Networks and polygons are drawn where they lie, in the colours of speeds and of classes."""

import geopandas as gpd
import numpy as np
import pytest
import shapely
from affine import Affine
from helpers.rasters import write_raster
from helpers.roads import network
from PIL import Image

import geoprep as gp
from geoprep.errors import ImageError, SourceError, UsageError
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


@pytest.mark.parametrize("name", ["areas.gpkg", "areas.geojson", "plain.gpkg"])
def test_polygons_are_drawn_in_the_colours_of_their_classes(tmp_path, name):
    image = lonlat_image(tmp_path / "image.tif")
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
    picture = np.asarray(Image.open(out).convert("RGB")).astype(int)
    for at, colour in (((400, 240), (0xE6, 0x9F, 0x00)), ((400, 1200), (0x56, 0xB4, 0xE9))):
        assert np.abs(picture[at] - (0.4 * np.array(colour) + 0.6 * 90)).max() < 6
    assert tuple(picture[400, 400]) == tuple(picture[400, 800]) == (90, 90, 90)  # yard, between
    assert gp.preview(tmp_path / name, tmp_path / "dark.svg").read_text().count("shed") == 1
    frame[["geometry"]].to_file(tmp_path / "labels.gpkg", layer="footprints")
    out = gp.preview(tmp_path / "labels.gpkg", tmp_path / "labels.svg")
    assert "footprints" in out.read_text()


def test_lines_without_speeds_and_polygons_elsewhere_are_refused(tmp_path):
    shapes = {"lines": shapely.LineString([(0, 0), (1, 1)]), "areas": shapely.box(0, 0, 1, 1)}
    for name, shape in shapes.items():
        gpd.GeoDataFrame(geometry=[shape], crs=4326).to_file(tmp_path / f"{name}.geojson")
    with pytest.raises(SourceError, match="no field speed_mph"):
        gp.preview(tmp_path / "lines.geojson", tmp_path / "x.png")
    image = lonlat_image(tmp_path / "image.tif")
    with pytest.raises(UsageError, match="does not overlap the polygons"):
        gp.preview(tmp_path / "areas.geojson", tmp_path / "x.png", over=image)
