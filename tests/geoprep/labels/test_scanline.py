import numpy as np
import pytest
import shapely

from geoprep.labels.scanline import fill_polygons


def filled(polygon, shape):
    raster = np.zeros(shape, np.uint8)
    rings = shapely.get_rings(shapely.get_parts(polygon))
    xy, ring = shapely.get_coordinates(rings, return_index=True)
    first, values = np.array([0, len(xy)]), np.array([1], np.uint8)
    fill_polygons(xy[:, 0].copy(), xy[:, 1].copy(), ring, first, values, raster)
    return raster


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
