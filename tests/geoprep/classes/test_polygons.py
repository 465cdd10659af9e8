"""Polygons of classes: the prediction when drawn again, no gaps, dissolved across borders."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import geopandas
import numpy as np
import pandas
import pytest
import rasterio
import shapely
import shapely.affinity
from affine import Affine
from click.testing import CliRunner
from helpers.rasters import write_raster
from pyproj import Geod
from rasterio.features import rasterize, shapes
from scipy.ndimage import gaussian_filter

import geoprep as gp
import geoprep.classes.polygons
import geoprep.classes.right_angles
from geoprep.classes.polygons import polygonize_rasters
from geoprep.cli.commands import cli
from geoprep.errors import ImageError, UsageError

NAMES = ("background", "house", "lake")
ALL = {"background": True, "min_area_m2": 0}
PLACE = Affine(0.5, 0, 4e5, 0, -0.5, 6e6)


def blobs(height, width, seed=0):
    """Return smooth areas of three classes, uint8 (y, x)."""
    noise = np.random.default_rng(seed).normal(size=(3, height, width))
    smooth = np.stack([gaussian_filter(layer, 4) for layer in noise])
    return smooth.argmax(0).astype(np.uint8)


def write(path, label, confidence=None, left=0, names=NAMES, crs="EPSG:32637", place=PLACE):
    bands = np.stack([label] if confidence is None else [label, confidence])
    place = place @ Affine.translation(left, 0) if crs else Affine.identity()
    more = {"names": ("class", "confidence")[: len(bands)], "nodata": 255}
    tags = {"CLASS_NAMES": json.dumps(names)}
    return write_raster(path, bands, crs=crs, transform=place, tags=tags, **more)


def drawn(frame, shape):
    """Return polygons as a raster on the grid of the prediction."""
    pairs = zip(frame.geometry, frame["value"], strict=True)
    return rasterize(pairs, out_shape=shape, transform=PLACE, fill=255, dtype="uint8")


def test_edges_of_pixels_give_the_prediction_back(tmp_path):
    label = blobs(60, 80)
    label[20:25, 30:70] = 255
    frame = gp.polygonize(write(tmp_path / "a.tif", label), simplify_m=0, **ALL)
    assert (drawn(frame, label.shape) == label).all()
    assert frame["area_m2"].sum() == pytest.approx((label != 255).sum() * 0.25, rel=2e-3)
    assert frame.geometry.is_valid.all()


@pytest.mark.parametrize(
    ("crs", "place"),
    [
        ("EPSG:32637", Affine(10, 0, 9.5e5, 0, -10, 6e6)),  # 8 degrees east of the meridian
        ("EPSG:4326", Affine(1e-4, 0, 37.0, 0, -1e-4, 70.0)),
        ("EPSG:4326", Affine(0.9, 0, -36.0, 0, -0.9, 60.0)),  # a continent
        ("EPSG:3857", Affine(20, 0, 4e6, 0, -20, 8e6)),
        ("EPSG:3413", Affine(10, 0, -2e5, 0, -10, 2e5)),  # 87 degrees north
        ("EPSG:3031", Affine(10, 0, 3e5, 0, -10, 3e5)),
        ("EPSG:32660", Affine(10, 0, 695_718, 0, -10, 5_999_800)),  # across 180 degrees
    ],
)
def test_areas_are_those_on_the_ellipsoid(tmp_path, crs, place):
    """Holes count once, whatever the direction of their rings."""
    label = np.zeros((60, 80), np.uint8)
    label[10:50, 10:70] = 1
    label[20:30, 20:30] = 2
    frame = gp.polygonize(
        write(tmp_path / "a.tif", label, crs=crs, place=place), simplify_m=0, **ALL
    )
    assert len(frame) == 3
    steps = frame.segmentize(abs(place.a) / 4 if crs == "EPSG:4326" else 1e9).to_crs("OGC:CRS84")
    for area, polygon in zip(frame["area_m2"], steps.geometry, strict=True):
        rings = [
            Geod(ellps="WGS84").geometry_area_perimeter(ring)
            for ring in map(shapely.Polygon, [polygon.exterior, *polygon.interiors])
        ]
        outer, *holes = [abs(signed) for signed, _ in rings]
        assert area == pytest.approx(outer - sum(holes), rel=2e-5)


@pytest.mark.parametrize(
    ("crs", "place"),
    [
        ("EPSG:32660", Affine(10, 0, 695_718, 0, -10, 5_999_800)),
        ("EPSG:4326", Affine(1e-4, 0, 179.9965, 0, -1e-4, 54.0)),
        ("EPSG:3832", Affine(10, 0, 3339584.7 - 350, 0, -10, 7e6)),
    ],
)
def test_geojson_is_cut_at_180_degrees(tmp_path, crs, place):
    label = np.zeros((60, 80), np.uint8)
    label[10:50, 10:70], label[20:30, 32:50] = 1, 0
    label[5:8, 1:5], label[5:8, 74:79] = 2, 2
    image = write(tmp_path / "a.tif", label, crs=crs, place=place)
    frame = gp.polygonize(image, out=tmp_path / "a.geojson", min_area_m2=0)
    house, *lakes = geopandas.read_file(tmp_path / "a.geojson").geometry
    assert house.geom_type == "MultiPolygon"
    west, east = house.bounds[::2]
    assert (west, east) == (-180, 180)
    assert all(part.bounds[2] - part.bounds[0] < 0.02 for part in house.geoms)
    assert sorted(round(lake.centroid.x / 180) for lake in lakes) == [-1, 1]
    halves = [shapely.Polygon(part.exterior, part.interiors) for part in house.geoms]
    areas = [
        abs(Geod(ellps="WGS84").geometry_area_perimeter(shapely.geometry.polygon.orient(half))[0])
        for half in halves
    ]
    assert sum(areas) == pytest.approx(frame["area_m2"][0], rel=1e-3)


@pytest.mark.parametrize("side", [0.2986, 0.1 + 1e-7, 2.7e-6])
def test_neighbours_are_joined_although_their_coordinates_differ(tmp_path, side):
    """In their last digits, as those of chips of a mosaic do."""
    crs = "EPSG:4326" if side < 1e-3 else "EPSG:32637"
    origin = (37.1, 55.7) if side < 1e-3 else (412_345.678, 6_174_321.123)
    label = blobs(40, 480)
    mosaic = Affine(side, 0, origin[0], 0, -side, origin[1])
    for chip in range(12):
        left, top = mosaic @ (chip * 40, 0)
        place = Affine(side, 0, round(left, 10), 0, -side, top)
        write(tmp_path / f"{chip:02}.tif", label[:, 40 * chip :][:, :40], crs=crs, place=place)
    whole = write(tmp_path / "whole" / "a.tif", label, crs=crs, place=mosaic)
    found, alone = (gp.polygonize(p, simplify_m=0, **ALL) for p in (tmp_path, whole))
    assert found["class"].tolist() == alone["class"].tolist()
    np.testing.assert_allclose(found["area_m2"], alone["area_m2"], rtol=1e-5)


def test_simplified_neighbours_keep_touching(tmp_path):
    label = blobs(60, 80)
    frame = gp.polygonize(write(tmp_path / "a.tif", label), simplify_m=1.0, **ALL)
    exact = gp.polygonize(tmp_path / "a.tif", simplify_m=0, **ALL)
    assert shapely.get_num_coordinates(frame.geometry).sum() < (
        0.7 * shapely.get_num_coordinates(exact.geometry).sum()
    )
    whole = shapely.union_all(frame.geometry)
    assert whole.area == pytest.approx(frame.area.sum(), rel=1e-9)  # no overlap
    assert not shapely.get_interior_ring(whole, 0)  # no gap
    assert (drawn(frame, label.shape) == label).mean() > 0.93
    assert shapely.coverage_is_valid(frame.geometry.to_numpy())


def test_areas_are_dissolved_across_predictions_and_overlaps_counted_once(tmp_path):
    label = blobs(50, 100)
    sure = np.full(label.shape, 100, np.uint8)
    sure[:, 55:] = 200
    write(tmp_path / "left.tif", label[:, :60], sure[:, :60])
    write(tmp_path / "right.tif", label[:, 50:], sure[:, 50:], left=50)
    frame = gp.polygonize(tmp_path, simplify_m=0, **ALL)
    whole = write(tmp_path / "whole" / "a.tif", label)
    alone = gp.polygonize(whole, simplify_m=0, **ALL)
    assert (drawn(frame, label.shape) == label).all()
    assert len(frame) == len(alone)
    weights = frame["area_m2"] / frame["area_m2"].sum()
    seen = np.where(np.arange(100) < 55, 100, 200) / 255
    assert (weights * frame["confidence"]).sum() == pytest.approx(seen.mean(), rel=1e-3)
    assert alone["confidence"].isna().all()


def test_geojson_in_capitals_is_in_degrees(tmp_path):
    label = np.zeros((40, 40), np.uint8)
    label[20:30, 10:30] = 2
    gp.polygonize(write(tmp_path / "a.tif", label), out=tmp_path / "A.GEOJSON")
    west, *_ = geopandas.read_file(tmp_path / "A.GEOJSON").total_bounds
    assert west == pytest.approx(37.4, abs=0.1)


def test_other_rasters_are_refused(tmp_path):
    plain = write(tmp_path / "plain.tif", blobs(9, 9), names=())
    with pytest.raises(UsageError, match="has no class names"):
        gp.polygonize(plain)
    one = write(tmp_path / "one.tif", blobs(9, 9))
    other = write(tmp_path / "other.tif", blobs(9, 9), names=("a", "b", "c"))
    with pytest.raises(UsageError, match="differ in their classes"):
        gp.polygonize([one, other])
    with pytest.raises(UsageError, match=r"nothing: no such file or folder; check the path"):
        gp.polygonize(tmp_path / "nothing")


def test_small_polygons_are_left_out_and_counted(tmp_path):
    label = np.zeros((40, 40), np.uint8)
    label[5:8, 5:8], label[20:30, 20:30] = 1, 2  # 9 and 100 pixels
    path = write(tmp_path / "a.tif", label)
    frame = gp.polygonize(path)
    assert frame["class"].tolist() == ["lake"]
    assert frame.attrs["min_area_m2"] is None
    assert frame.attrs["left_out"] == 1
    assert len(gp.polygonize(path, min_area_m2=0)) == 2
    shown = CliRunner().invoke(cli, ["polygonize", str(path), "--out", str(tmp_path / "a.gpkg")])
    assert "left out 1 polygon below 10 pixels; --min-area 0 keeps them" in shown.output


def test_a_prediction_without_georeference_needs_a_pixel_size(tmp_path):
    label = np.zeros((40, 40), np.uint8)
    label[20:30, 10:30] = 2
    path = write(tmp_path / "a.tif", label, crs=None)
    given = ["polygonize", str(path), "--out", str(tmp_path / "a.gpkg")]
    assert "Set --pixel-size" in str(CliRunner().invoke(cli, given).exception)
    assert CliRunner().invoke(cli, [*given, "--pixel-size", "2"]).exit_code == 0
    frame = geopandas.read_file(tmp_path / "a.gpkg", layer="a")
    assert frame["area_m2"].tolist() == [800]
    assert frame.total_bounds.tolist() == [20, -60, 60, -40]
    with pytest.raises(UsageError, match="Make its polygons alone"):
        gp.polygonize([path, write(tmp_path / "b.tif", label)], pixel_size=2)


@pytest.mark.parametrize("values", [np.float32([0, 1]), np.uint16([300, 301]), np.int16([-1, 0])])
def test_classes_that_are_no_bytes_are_refused_by_name(tmp_path, values):
    label = values[(np.indices((40, 40)).sum(axis=0) > 30).astype(int)]
    path = write(tmp_path / "a.tif", label)
    with pytest.raises(ImageError, match=f"a.tif has classes as {values.dtype} from"):
        gp.polygonize(path)


def test_metres_that_are_called_degrees_are_refused(tmp_path):
    path = write(tmp_path / "a.tif", blobs(60, 80), crs="EPSG:4326")
    done = CliRunner().invoke(cli, ["polygonize", str(path), "--out", str(tmp_path / "a.gpkg")])
    assert done.exit_code
    assert "nowhere on Earth" in str(done.exception)
    assert not (tmp_path / "a.gpkg").exists()


def test_a_geopackage_has_the_colours_and_names_of_the_classes_as_its_style(tmp_path):
    names = ("background", "it's <new>", "lake")
    path = write(tmp_path / "a.tif", blobs(60, 80), names=names)
    with rasterio.open(path, "r+") as file:
        file.update_tags(CLASS_COLORS=json.dumps(["#000000", "#FF0102", "#0405FF"]))
    gp.polygonize(path, out=tmp_path / "map.gpkg")
    (style,) = geopandas.read_file(tmp_path / "map.gpkg", layer="layer_styles").to_dict("records")
    assert (style["f_table_name"], style["useAsDefault"]) == ("map", True)
    qml = ElementTree.fromstring(style["styleQML"].partition(">")[2])
    rules = {rule.get("label"): rule for rule in qml.iter("rule")}
    assert list(rules) == list(names)
    assert rules[names[1]].get("filter") == "\"class\" = 'it''s <new>'"
    symbols = {symbol.get("name"): symbol for symbol in qml.iter("symbol")}
    colour = symbols[rules["lake"].get("symbol")].find(".//Option[@name='color']")
    assert colour.get("value") == "4,5,255,255"


def test_polygons_of_one_raster_have_the_edges_of_its_areas(tmp_path):
    """Of all areas that GDAL finds on the whole raster, each edge of a pixel on both sides."""
    label = blobs(90, 110, seed=3)
    label[::7, ::5] = 2  # many that touch at corners
    label[20:25, 30:70] = 255
    label[40:80] = np.random.default_rng(0).integers(0, 3, (40, 110))  # noise
    path = write(tmp_path / "a.tif", label)
    frame = gp.polygonize(path, simplify_m=0, **ALL)
    assert frame.geometry.is_valid.all()
    assert shapely.coverage_is_valid(frame.geometry.to_numpy())
    found = shapes(label, label != 255, connectivity=4, transform=PLACE)
    wanted = [(shapely.geometry.shape(shape), value) for shape, value in found]
    assert sorted(edges(frame.geometry, frame["value"])) == sorted(
        edges(*zip(*wanted, strict=True))
    )


def edges(polygons, values):
    """Yield the edges of pixels along polygons with the value of each."""
    for polygon, value in zip(polygons, values, strict=True):
        for ring in shapely.get_rings(polygon):
            steps = shapely.get_coordinates(shapely.segmentize(ring, 0.5)).round(3)
            for pair in zip(steps[:-1].tolist(), steps[1:].tolist(), strict=True):
                yield (*sorted(map(tuple, pair)), int(value))


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_each_raster_has_pixels_of_its_own(tmp_path, names):
    """Chips in degrees of two latitudes, each with a house of 24 x 12 m, turned, and specks."""
    step, geod, found = 2.7e-6, Geod(ellps="WGS84"), {}
    for name, lon, lat in zip(names, (-115.2, 2.25), (36.15, 49.02), strict=True):
        place = Affine(step, 0, lon, 0, -step, lat)
        east = geod.inv(lon, lat, lon + step, lat)[2]
        south = geod.inv(lon, lat, lon, lat - step)[2]
        house = shapely.affinity.rotate(shapely.box(-12, -6, 12, 6), 30)
        house = shapely.transform(house, lambda xy: xy / (east, south) + (100, 75))  # noqa: B023
        label = rasterize([house], out_shape=(150, 260), dtype="uint8")
        label[5:7, 5:55:10], label[5:7, 6:56:10] = 1, 1  # squares of 2 x 2 pixels
        label[20:22, 5:10], label[20:22, 15:24] = 1, 1  # of 10 and of 18
        label[30:33, 5:8] = 1  # of 9
        write(tmp_path / f"{name}.tif", label, crs="EPSG:4326", place=place)
        alone = gp.polygonize(tmp_path / f"{name}.tif", square=True)
        assert len(alone) == 3
        found[lat] = alone
    both = gp.polygonize(tmp_path, square=True)
    assert both.attrs["left_out"] == 2 * 6
    assert len(both) == 6
    for lat, alone in found.items():
        mine = both[(both.bounds["miny"] - lat).abs() < 1]
        assert mine.geometry.geom_equals_exact(alone.geometry, 1e-12, align=False).all()
        utm = alone.geometry[:1].to_crs(alone.estimate_utm_crs())
        x, y = shapely.get_coordinates(utm).T
        turns = np.diff(np.unwrap(np.angle(np.diff(x + 1j * y))))
        assert len(turns) == 3
        assert np.degrees(np.abs(turns)) == pytest.approx([90] * 3, abs=1)


@pytest.mark.parametrize("turn", [17.0, 45.0, 200.0])
def test_chips_of_a_turned_grid_are_joined(tmp_path, turn):
    label = blobs(60, 240, seed=5)
    mosaic = Affine.translation(412_345.678, 6_174_321.123) @ Affine.rotation(turn)
    mosaic = mosaic @ Affine.scale(0.2986, -0.2986)
    for chip in range(6):
        left, top = mosaic @ (40 * chip, 0)
        place = Affine(mosaic.a, mosaic.b, round(left, 6), mosaic.d, mosaic.e, round(top, 6))
        write(tmp_path / f"{chip}.tif", label[:, 40 * chip :][:, :40], place=place)
    alone = gp.polygonize(write(tmp_path / "w" / "a.tif", label, place=mosaic), simplify_m=0, **ALL)
    found = gp.polygonize(tmp_path, simplify_m=0, **ALL)
    assert found["class"].tolist() == alone["class"].tolist()
    np.testing.assert_allclose(found["area_m2"], alone["area_m2"], rtol=1e-4)


def test_right_angles_do_not_depend_on_the_order_of_rasters(tmp_path):
    """Of buildings of equal area, one leads its neighbours."""
    noise = np.random.default_rng(2).normal(size=(3, 120, 120))
    label = np.stack([gaussian_filter(layer, 1.2) for layer in noise]).argmax(0).astype(np.uint8)
    paths = [
        write(tmp_path / f"{left}.tif", label[:, left:][:, :40], left=left) for left in (0, 40, 80)
    ]
    one, other = (gp.polygonize(some, square=True, **ALL) for some in (paths, paths[::-1]))
    shapes_of = [sorted(shapely.to_wkt(shapely.normalize(f.geometry), 3)) for f in (one, other)]
    assert shapes_of[0] == shapes_of[1]


@pytest.mark.parametrize("square", [False, True])
def test_strips_are_joined(tmp_path, monkeypatch, square):
    label, sure = blobs(70, 60), np.random.default_rng(1).integers(0, 256, (70, 60), np.uint8)
    path = write(tmp_path / "a.tif", label, sure)
    whole = gp.polygonize(path, square=square, **ALL)
    monkeypatch.setattr(geoprep.classes.polygons, "_STRIP_ROWS", 9)
    done = []
    strips = polygonize_rasters(
        [path], square=square, **ALL, advance=lambda *counts: done.append(counts)
    )
    pandas.testing.assert_frame_equal(whole, strips)
    assert done[:2] == [(540, 8400), (1080, 8400)]
    assert done[-1] == (8400, 8400)


def test_the_count_ends_where_most_pixels_are_in_no_polygon(tmp_path):
    label = np.zeros((40, 50), np.uint8)
    label[5:9, 5:9] = 1
    done = []
    polygonize_rasters(
        [write(tmp_path / "a.tif", label)],
        **ALL | {"background": False},
        advance=lambda *counts: done.append(counts),
    )
    assert done[-1] == (4000, 4000)


def test_blocks_of_right_angles_are_one(tmp_path, monkeypatch):
    """Each block has the neighbours that its walls could overlap."""
    label = blobs(150, 160, seed=4)
    label[70:, 60:] = np.where(label[70:, 60:] == 1, 0, label[70:, 60:])
    path = write(tmp_path / "a.tif", label)
    whole = gp.polygonize(path, square=True, **ALL)
    plain = gp.polygonize(path, simplify_m=0.5, **ALL)
    assert not whole.geometry.geom_equals(plain.geometry).all()
    for name in ("_LINES", "_WALLS", "_BUILDINGS"):
        monkeypatch.setattr(geoprep.classes.right_angles, name, 7)
    monkeypatch.setattr(geoprep.classes.right_angles, "_BLOCK", 20)
    monkeypatch.setattr(geoprep.classes.polygons, "_MOST_POLYGONS", 5)
    parts = gp.polygonize(path, square=True, **ALL)
    pandas.testing.assert_frame_equal(
        whole.drop(columns="geometry"), parts.drop(columns="geometry")
    )
    assert shapely.equals_exact(whole.geometry, parts.geometry, 1e-6).all()
    assert shapely.coverage_is_valid(parts.geometry.to_numpy())


@pytest.mark.parametrize("turn", [0.0, 17.0])
def test_rasters_that_are_not_aligned_have_no_gaps_and_no_overlaps(tmp_path, turn):
    """The second one is shifted by parts of a pixel; where they overlap the first one counts."""
    label = blobs(60, 90, seed=6)
    place = Affine.translation(4e5, 6e6) @ Affine.rotation(turn) @ Affine.scale(0.5, -0.5)
    for name, left, top in (("a", 0, 0), ("b", 39.6, 0.3)):
        moved = place @ Affine.translation(left, top)
        write(tmp_path / f"{name}.tif", label[:, int(left) :][:, :50], place=moved)
    for square in (False, True):
        frame = gp.polygonize(tmp_path, square=square, **ALL)
        shapes_of = frame.geometry.to_numpy()
        assert shapely.is_valid(shapes_of).all()
        assert shapely.coverage_is_valid(shapes_of)
        whole = [place @ Affine.translation(x, y) for x, y in ((0, 0), (39.6, 0.3))]
        boxes = [
            shapely.affinity.affine_transform(
                shapely.box(0, 0, 50, 60), (m.a, m.b, m.d, m.e, m.c, m.f)
            )
            for m in whole
        ]
        assert shapely.area(shapes_of).sum() == pytest.approx(
            shapely.area(shapely.union_all(boxes)), rel=0.01
        )
