"""Right-angled outlines: what changes, by how much at most, and that neighbours keep touching."""

from __future__ import annotations

import json

import geopandas
import numpy as np
import pytest
import shapely
from affine import Affine
from click.testing import CliRunner
from helpers.rasters import write_raster
from hypothesis import given
from hypothesis import strategies as st
from rasterio.features import rasterize
from rasterio.features import shapes as outlines
from shapely.affinity import rotate, translate

import geoprep as gp
from geoprep.classes.outlines import coverage_of
from geoprep.classes.right_angles import right_angled
from geoprep.cli.commands import cli

L_SHAPE = shapely.Polygon([(0, 0), (50, 0), (50, 20), (24, 20), (24, 40), (0, 40)])
METRES, DEGREES = ("EPSG:32637", 0.5, 0.5), ("EPSG:4326", 9e-6, 4.5e-6)  # at 60 degrees north


def placed(crs):
    """Return the transform of predictions in a CRS."""
    name, width, height = crs
    x, y = (30.0, 60.0) if name == "EPSG:4326" else (5e5, 6.65e6)
    return Affine(width, 0, x, 0, -height, y)


def predicted(path, shapes, crs=METRES, size=120):
    """Write a prediction with shapes of pixels, of class 1 or a given one, and return its path."""
    label = np.zeros((size, size), np.uint8)
    if shapes:
        pairs = [shape if isinstance(shape, tuple) else (shape, 1) for shape in shapes]
        label = rasterize(pairs, out=label)
    tags = {"CLASS_NAMES": json.dumps(["background", "house", "garage"])}
    more = {"names": ("class",), "nodata": 255, "tags": tags}
    return write_raster(path, label[None], crs=crs[0], transform=placed(crs), **more)


def turned(shape, degrees, x=55, y=55):
    """Return a shape turned about its middle, which lies at a pixel."""
    middle = shapely.box(*shape.bounds).centroid
    return translate(rotate(shape, degrees, origin=middle), x - middle.x, y - middle.y)


def directions(polygon):
    """Return the directions of all edges in degrees, 0..90."""
    angles = []
    for ring in shapely.get_rings(polygon):
        angles += np.angle(np.diff(shapely.get_coordinates(ring) @ [1, 1j]), deg=True).tolist()
    return np.mod(angles, 90)


def spread(angles):
    """Return how far the directions of edges lie from their mean at most, in degrees."""
    mean = np.angle(np.exp(4j * np.radians(angles)).sum()) / 4
    return np.abs(np.mod(angles - np.degrees(mean) + 45, 90) - 45).max()


def iou(a, b):
    common = shapely.area(shapely.intersection(a, b))
    return common / (shapely.area(a) + shapely.area(b) - common)


@pytest.mark.parametrize("angle", [0, 20, 45, 77])
def test_a_turned_building_gets_its_corners_back(tmp_path, angle):
    shape = turned(L_SHAPE, angle)
    (polygon,) = gp.polygonize(predicted(tmp_path / "a.tif", [shape]), square=True).geometry
    assert shapely.get_num_coordinates(polygon) == 7
    assert spread(directions(polygon)) < 1e-6
    assert directions(polygon)[0] == pytest.approx(-angle % 90, abs=1)
    truth = shapely.transform(shape, lambda xy: np.column_stack(placed(METRES) * xy.T))
    assert iou(polygon, truth) > 0.96


def test_angles_are_right_on_the_ground_where_degrees_are_not(tmp_path):
    path = predicted(tmp_path / "a.tif", [turned(L_SHAPE, 20)], DEGREES)
    frame = gp.polygonize(path, square=True)
    assert spread(directions(frame.geometry[0])) > 10
    assert spread(directions(frame.to_crs(32636).geometry[0])) < 0.1


def test_round_and_oblique_outlines_stay(tmp_path):
    triangle = shapely.Polygon([(10, 80), (60, 80), (20, 110)])
    path = predicted(tmp_path / "a.tif", [(shapely.Point(60, 40).buffer(19), 2), (triangle, 1)])
    plain, square = (gp.polygonize(path, square=given, background=True) for given in (False, True))
    assert square.geometry.geom_equals(plain.geometry).all()


def test_the_command_has_the_option_and_simplifies_at_least_by_a_pixel(tmp_path):
    path = predicted(tmp_path / "a.tif", [turned(L_SHAPE, 20)])
    given = ["polygonize", str(path), "--out", str(tmp_path / "a.gpkg"), "--square"]
    CliRunner().invoke(cli, [*given, "--simplify", "0"], catch_exceptions=False)
    assert (
        spread(directions(geopandas.read_file(tmp_path / "a.gpkg", layer="a").geometry[0])) < 1e-6
    )


def coverage(shapes):
    """Return the areas of shapes of pixels with common vertices, and which are buildings."""
    label = rasterize(shapes, out_shape=(120, 120), dtype="uint8")
    areas = [(shapely.geometry.shape(area), value) for area, value in outlines(label)]
    lines = shapely.union_all(shapely.boundary([area for area, _ in areas]))
    faces = shapely.get_parts(shapely.polygonize(shapely.get_parts(lines)))
    face, area = shapely.STRtree([area for area, _ in areas]).query(
        shapely.point_on_surface(faces), predicate="within"
    )
    return faces[face], np.array([areas[number][1] > 0 for number in area])


@given(
    boxes=st.lists(
        st.tuples(*[st.integers(20, 60)] * 2, *[st.integers(6, 40)] * 2, st.integers(1, 2)),
        min_size=1,
    ),
    angle=st.integers(0, 89),
    background=st.booleans(),
)
def test_limits_are_kept_and_neighbours_keep_touching(boxes, angle, background):
    shapes = [
        (rotate(shapely.box(x, y, x + width, y + height), angle, (60, 60)), kind)
        for x, y, width, height, kind in boxes
    ]
    exact, buildings = coverage(shapes)
    exact, buildings = exact[buildings | background], buildings[buildings | background]
    plain = shapely.coverage_simplify(exact, 1.0)
    order = np.argsort(-shapely.area(exact))
    plain, exact, buildings = plain[order], exact[order], buildings[order]
    found = coverage_of(exact, plain)
    places = right_angled(found, buildings, tolerance=1.0)
    square = found.polygons(np.arange(len(found.faces)), places)
    assert shapely.is_valid(square).all()
    assert shapely.coverage_is_valid(square)
    for number in np.flatnonzero(buildings):
        house, others = square[number], square[buildings & (np.arange(len(square)) != number)]
        if house.equals(plain[number]) or shapely.touches(house, others).any():
            continue  # it stays, or has a wall with a neighbour
        assert spread(directions(house)) < 1e-6
        assert house.area == pytest.approx(exact[number].area, rel=0.05)
        assert iou(house, exact[number]) >= 0.9


def test_a_wall_between_two_buildings_is_moved_once(tmp_path):
    left, right = (rotate(shapely.box(x, 40, x + 25, 75), 17, (60, 60)) for x in (35, 60))
    path = predicted(tmp_path / "a.tif", [(left, 1), (right, 2)])
    one, other = gp.polygonize(path, square=True).geometry
    assert one.intersection(other).length == pytest.approx(17.5, abs=0.5)
    assert [shapely.get_num_coordinates(polygon) for polygon in (one, other)] == [5, 5]
    assert spread(np.concatenate([directions(one), directions(other)])) < 1e-6
