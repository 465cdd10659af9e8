import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from rasterio.features import rasterize

from geoprep.labels.scanline import fill_polygons

seeds = st.integers(0, 2**32 - 1)


def filled(polygon, shape, value=1):
    raster = np.zeros(shape, np.uint8)
    rings = shapely.get_rings(shapely.get_parts(polygon))
    xy, ring = shapely.get_coordinates(rings, return_index=True)
    first, values = np.array([0, len(xy)]), np.array([value], np.uint8)
    fill_polygons(xy[:, 0].copy(), xy[:, 1].copy(), ring, first, values, raster)
    return raster


def by_gdal(polygon, shape, value=1):
    return rasterize([(polygon, value)], out_shape=shape, dtype="uint8")


def polygon_of(rng, points, spread, holes=0):
    ring = rng.uniform(-spread, 40 + spread, (points, 2))
    polygon = shapely.Polygon(ring).buffer(0)
    for _ in range(holes):
        centre = rng.uniform(0, 40, 2)
        polygon -= shapely.Point(centre).buffer(rng.uniform(1, 9), quad_segs=2)
    return polygon


@given(seeds, st.integers(3, 12), st.sampled_from([0, 10, 1000]), st.integers(0, 3))
def test_any_polygon_is_filled_as_gdal_fills_it(seed, points, spread, holes):
    polygon = polygon_of(np.random.default_rng(seed), points, spread, holes)
    if polygon.is_empty:
        return
    assert np.array_equal(filled(polygon, (40, 30)), by_gdal(polygon, (40, 30)))


@given(seeds, st.integers(4, 12))
def test_rings_that_cross_themselves_are_filled_by_the_even_odd_rule(seed, points):
    ring = np.random.default_rng(seed).uniform(0, 40, (points, 2))
    polygon = shapely.Polygon(ring)
    assert np.array_equal(filled(polygon, (40, 40)), by_gdal(polygon, (40, 40)))


def test_edges_exactly_on_pixel_centres_give_one_side_only():
    square = shapely.box(2.5, 2.5, 6.5, 6.5)
    raster = filled(square, (10, 10))
    assert raster.sum() == 16
    assert filled(shapely.box(6.5, 2.5, 9.5, 6.5), (10, 10))[raster == 1].sum() == 0


@pytest.mark.parametrize("far", [1e9, 1e18, 1e300])
def test_polygons_far_away_or_larger_than_any_integer_are_clipped(far):
    assert filled(shapely.box(-far, -far, far, far), (8, 9)).all()
    beside = (far, 0, 2 * far, 8), (-2 * far, 0, -far, 8)
    for box in (*beside, (0, far, 9, 2 * far), (0, -2 * far, 9, -far)):
        assert not filled(shapely.box(*box), (8, 9)).any()
