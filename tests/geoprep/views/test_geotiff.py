"""What is exported lies where the source lay, byte for byte."""

import json
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
import tifffile
from affine import Affine
from helpers.factory import Place, build_of, texture, write_scene
from helpers.stores import write_store
from rasterio.warp import transform_bounds

from geoprep.classes.class_rasters import class_names
from geoprep.cog.spool import Spool
from geoprep.errors import ImageError, OutputError, UsageError
from geoprep.palette import speed_colours
from geoprep.roads.centrelines.opening import open_raster
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import read_label
from geoprep.views.footprints import export_footprints
from geoprep.views.geotiff import export_scenes

LABELLED = ["city_border", "utm_north", "utm_south", "utm_small"]


@pytest.mark.parametrize("scene", [*LABELLED, "city_unlabelled"])
def test_image_is_the_source_pixel_for_pixel(store, sources, tmp_path, scene):
    image, *_ = export_scenes(store, scene, tmp_path / "out.tif")
    with rasterio.open(sources / f"{scene}.tif") as source, rasterio.open(image) as made:
        assert made.crs == source.crs
        assert made.shape == source.shape
        assert made.transform == source.transform
        assert made.nodata == 0
        assert made.descriptions == ("red", "green", "blue")
        np.testing.assert_array_equal(made.read(), source.read())


@pytest.mark.parametrize("scene", LABELLED)
def test_mask_has_every_tile_at_its_own_coordinates(store, tmp_path, scene):
    """Sampled through each tile's own affine: independent of how tiles are put together."""
    _, mask = export_scenes(store, scene, tmp_path / "out.tif")
    index = list(store.scenes.id).index(scene)
    rng = np.random.default_rng(0)
    with rasterio.open(mask) as made:
        assert made.nodata == 255
        pixels = made.read(1)
        for tile in np.flatnonzero(store.tiles.scene == index):
            y, x = rng.integers(0, 64, (2, 200))
            a, b, c, d, e, f = store.tiles.transform[tile]
            xs, ys = a * (x + 0.5) + b * (y + 0.5) + c, d * (x + 0.5) + e * (y + 0.5) + f
            rows, cols = rasterio.transform.rowcol(made.transform, xs, ys)
            rows, cols = np.asarray(rows), np.asarray(cols)
            inside = (rows < made.height) & (cols < made.width)
            expected = np.asarray(store.speed()[tile])[y, x]
            np.testing.assert_array_equal(pixels[rows[inside], cols[inside]], expected[inside])
            assert (expected[~inside] == 255).all()  # what pads a small scene


def test_an_export_is_a_cloud_optimised_geotiff_whose_overviews_leave_nodata_out(tmp_path):
    pixels = texture(1500, 1100)
    pixels[:400, :301] = 0
    scene = write_scene(
        tmp_path, "a", pixels, Place("EPSG:32637", Affine(0.5, 0, 4e5, 0, -0.5, 6e6))
    )
    store = build_of(tmp_path / "a.zarr", [scene], levels=1, rescale="none")
    image, *_ = export_scenes(store, "a", tmp_path / "out.tif")
    with tifffile.TiffFile(image) as file:
        firsts = [min(o for o in page.dataoffsets if o) for page in file.pages]
    assert firsts == sorted(firsts, reverse=True)  # the coarsest tiles come first
    with rasterio.open(image) as made:
        assert made.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert made.overviews(1) == [2, 4]
        np.testing.assert_array_equal(np.moveaxis(made.read(), 0, 2), pixels)
    four = pixels.reshape(750, 2, 550, 2, 3).astype(int)
    count = np.maximum((four != 0).sum(axis=(1, 3)), 1)
    with rasterio.open(image, overview_level=0) as half:
        wanted = np.floor(four.sum(axis=(1, 3)) / count + 0.5)
        np.testing.assert_array_equal(np.moveaxis(half.read(), 0, 2), wanted)


def test_a_file_cannot_be_opened_before_it_is_complete(store, tmp_path, monkeypatch):
    """A process may be killed at any time, so nothing but the last bytes may make it a TIFF."""
    states = []

    def copy_to(spool, file):
        file.flush()
        states.append(can_be_opened(Path(file.name)))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Spool, "copy_to", copy_to)
    with pytest.raises(OutputError, match=r"out\.tif"):
        export_scenes(store, "city_1", tmp_path / "out.tif", what="image")
    assert states == [False]
    assert list(tmp_path.glob("*.tif")) == list(tmp_path.glob(".*.partial*")) == []


def can_be_opened(path):
    try:
        with rasterio.open(path):
            return True
    except rasterio.errors.RasterioIOError:
        return False


def test_coarser_level_covers_the_same_ground(store, sources, tmp_path):
    image, mask = export_scenes(store, "city_2", tmp_path / "half.tif", level=32)
    with rasterio.open(image) as made, rasterio.open(sources / "city_2.tif") as source:
        assert made.shape == (75, 65)
        np.testing.assert_allclose(made.bounds, source.bounds, rtol=0, atol=1e-12)
        blocks = source.read().astype(int).reshape(3, 75, 2, 65, 2).sum(axis=(2, 4))
        np.testing.assert_array_equal(made.read(), (blocks + 2) // 4)
    with rasterio.open(mask) as made:
        np.testing.assert_array_equal(made.read(1), read_label(store, 2, 32))


def test_level_whose_tiles_do_not_line_up_is_refused(store, tmp_path):
    with pytest.raises(UsageError, match="Export level 64"):
        export_scenes(store, "utm_north", tmp_path / "out.tif", level=32)
    assert list(tmp_path.iterdir()) == []


def test_mask_shows_its_colours_in_a_gis(store, tmp_path):
    (mask,) = export_scenes(store, "city_2", tmp_path / "mask.tif", what="label")
    with rasterio.open(mask) as made:
        table = made.colormap(1)
        assert made.units == ("mph",)
    assert [table[mph][:3] for mph in range(256)] == [tuple(c) for c in speed_colours().tolist()]


def test_an_exported_label_of_classes_names_them_and_is_no_road_network(tmp_path):
    names = ("background", "slow", "fast")
    store = StoreReader.open(write_store(tmp_path / "a.zarr", classes=names))
    (label,) = export_scenes(store, str(store.scenes.id[0]), tmp_path / "a.tif", what="label")
    assert class_names(label) == names  # which polygonize reads
    with pytest.raises(ImageError, match="`geoprep polygonize` makes polygons of classes"):
        open_raster(label)


def test_files_are_named_after_out_or_after_the_scene(store, tmp_path):
    names = [p.name for p in export_scenes(store, "city_1", tmp_path / "a.tiff")]
    assert names == ["a.tiff", "a_speed.tiff"]
    names = [p.name for p in export_scenes(store, "north", tmp_path)]
    assert names == ["utm_north.tif", "utm_north_speed.tif"]
    (only,) = export_scenes(store, "unlabelled", tmp_path / "u.tif")
    assert only.name == "u.tif"
    written = sorted(p.name for p in tmp_path.iterdir())
    assert written == [
        *("a.tiff", "a_speed.tiff"),
        *("u.tif", "utm_north.tif", "utm_north_speed.tif"),
    ]


@pytest.mark.parametrize(
    ("scene", "out", "what", "message"),
    [
        ("city_black", "a.tif", "both", "no pixels of .*skipped by the build"),
        ("city_broken", "a.tif", "image", "failed by the build .*not readable as a vector"),
        ("city_unlabelled", "a.tif", "label", "unlabelled"),
        ("city_1", "a.png", "both", "ends in .tif, .tiff"),
        ("city_1", "nowhere/a.tif", "both", "create it first"),
        ("city_99", "a.tif", "both", "no scene"),
    ],
)
def test_export_that_cannot_be_is_refused(store, tmp_path, scene, out, what, message):
    with pytest.raises(UsageError, match=message):
        export_scenes(store, scene, tmp_path / out, what=what)
    assert list(tmp_path.iterdir()) == []


def _features(path) -> list[dict]:
    return json.loads(path.read_text())["features"]


def test_scene_footprints_are_the_bounds_of_the_sources(store, sources, tmp_path):
    features = _features(export_footprints(store, tmp_path / "f.geojson"))
    assert [f["properties"]["scene"] for f in features] == list(store.scenes.id)
    for feature in features:
        known = feature["properties"]
        if known["scene"] == "city_truncated":
            assert feature["geometry"] is None
            continue
        with rasterio.open(sources / f"{known['scene']}.tif") as source:
            left, bottom, right, top = transform_bounds(source.crs, "EPSG:4326", *source.bounds)
        polygon = shapely.geometry.shape(feature["geometry"])
        assert polygon.exterior.is_ccw
        lower, upper = sorted((bottom, top))
        np.testing.assert_allclose(polygon.bounds, (left, lower, right, upper), atol=2e-7)
    by_scene = {f["properties"]["scene"]: f["properties"] for f in features}
    assert by_scene["city_black"]["status"] == "skipped"
    assert "nodata" in by_scene["city_black"]["reason"]
    assert by_scene["city_empty"]["road_fraction"] == 0
    assert by_scene["utm_small"]["valid_fraction"] == 1  # padding is not missing imagery
    assert {p["split"] for p in by_scene.values()} == {"train", "val", "test"}


def test_tile_footprints_together_are_those_of_the_scenes(store, tmp_path):
    tiles = _features(export_footprints(store, tmp_path / "t.geojson", by="tile"))
    assert [f["properties"]["tile"] for f in tiles] == list(range(len(store.tiles)))
    scenes = _features(export_footprints(store, tmp_path / "s.geojson"))
    for scene in scenes:
        if scene["geometry"] is None:
            continue
        name, whole = scene["properties"]["scene"], shapely.geometry.shape(scene["geometry"])
        parts = [f for f in tiles if f["properties"]["scene"] == name]
        union = shapely.union_all([shapely.geometry.shape(f["geometry"]) for f in parts])
        assert union.symmetric_difference(whole).area < 1e-4 * whole.area
        assert {f["properties"]["split"] for f in parts} == {scene["properties"]["split"]}


def test_geopackage_holds_the_same_as_geojson(store, tmp_path):
    features = _features(export_footprints(store, tmp_path / "f.geojson", by="tile"))
    path = export_footprints(store, tmp_path / "f.gpkg", by="tile")
    meta, _, geometry, columns = pyogrio.raw.read(path)
    assert meta["crs"] == "EPSG:4326"
    assert pyogrio.list_layers(path).tolist() == [["tiles", "Polygon"]]
    for name, column in zip(meta["fields"], columns, strict=True):
        assert column.tolist() == [f["properties"][name] for f in features]
    for wkb, feature in zip(geometry, features, strict=True):
        if feature["geometry"] is None:
            assert wkb is None
            continue
        expected = shapely.geometry.shape(feature["geometry"])
        assert shapely.from_wkb(wkb).equals_exact(expected, 1e-8)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.geojson", "f.gpkg"]


def test_footprint_over_the_180th_meridian_is_cut_there(tmp_path):
    place = Affine(0.5, 0, 828_915, 0, -0.5, 1_106_909)  # zone 60: from 14 metres west of it
    scene = write_scene(tmp_path, "far", texture(64, 64), Place("EPSG:32660", place))
    store = build_of(tmp_path / "far.zarr", [scene], levels=1)
    (feature,) = _features(export_footprints(store, tmp_path / "f.geojson"))
    outline = shapely.geometry.shape(feature["geometry"])
    assert outline.geom_type == "MultiPolygon"
    assert sum(part.area for part in outline.geoms) == pytest.approx((32 / 111_000) ** 2, rel=0.05)
    (boxed,) = pyogrio.read_dataframe(export_footprints(store, tmp_path / "f.gpkg")).geometry
    assert boxed.area == pytest.approx(outline.area, rel=1e-3)
