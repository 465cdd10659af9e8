"""Outlines of areas: those of GDAL and GEOS, whatever the height of the strips."""

from __future__ import annotations

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from rasterio.features import shapes
from scipy.ndimage import gaussian_filter

from geoprep.classes.outlines import outlines_of

ZONES = {"seed": st.integers(0, 2**32), "height": st.integers(1, 40), "width": st.integers(1, 40)}


def classes(seed, height, width):
    """Return areas from single pixels to smooth ones, some without a class, and confidences."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(rng.integers(2, 5), height, width))
    smooth = rng.choice([0.0, 0.7, 1.5, 3.0])
    label = np.stack([gaussian_filter(layer, smooth) for layer in noise]).argmax(0)
    label[rng.random(label.shape) < rng.choice([0.0, 0.02, 0.3])] = 255
    return label.astype(np.uint8), rng.integers(0, 256, label.shape).astype(np.float32)


def outlines(label, confidence, rows):
    """Return the outlines from strips, of which each has the columns with classes alone."""
    strips = []
    for top in range(0, len(label), rows):
        strip = slice(top, top + rows)
        used = np.flatnonzero((label[strip] != 255).any(axis=0))
        first, stop = (used[0], used[-1] + 1) if len(used) else (0, 0)
        strips.append((label[strip, first:stop], confidence[strip, first:stop], int(first)))
    return outlines_of(strips, label.shape[1], (0, 0))


def reference(label):
    """Return polygons of GDAL with common vertices of GEOS, in order, and their values."""
    found = shapes(label, label != 255, connectivity=4)
    areas, values = zip(*((shapely.geometry.shape(s), int(v)) for s, v in found), strict=True)
    edges = shapely.union_all(shapely.boundary(areas), grid_size=1.0)
    faces = shapely.get_parts(shapely.polygonize(shapely.get_parts(edges)))
    face, area = shapely.STRtree(areas).query(shapely.point_on_surface(faces), predicate="within")
    faces, values = shapely.normalize(faces[face]), np.array(values)[area]
    order = np.lexsort(shapely.bounds(faces).T)
    return faces[order], values[order]


@given(**ZONES, tolerance=st.sampled_from([0.0, 0.5, 1.0, 1.3, 2.0, 6.0]), rows=st.integers(1, 15))
def test_polygons_are_those_of_gdal_and_geos(seed, height, width, tolerance, rows):
    label, confidence = classes(seed, height, width)
    if (label == 255).all():
        label[0, 0] = 0
    faces, values = reference(label)
    found = outlines(label, confidence, rows)
    everything = np.arange(len(found.areas))
    assert found.areas["value"].tolist() == values.tolist()
    assert found.areas["pixels"].tolist() == shapely.area(faces).tolist()
    assert found.areas["confidence"].sum() == confidence[label != 255].sum()
    if tolerance:
        faces = shapely.coverage_simplify(faces, tolerance)
        exact = found.polygons(everything)
        found.simplify(tolerance)
        assert shapely.equals_exact(found.polygons(everything, exact=True), exact).all()
    mine = found.polygons(everything)
    assert shapely.equals_exact(shapely.normalize(mine), shapely.normalize(faces)).all()


@given(**ZONES, tolerance=st.floats(0.3, 5), rows=st.integers(1, 40))
def test_strips_of_any_height_give_the_polygons_of_one(seed, height, width, tolerance, rows):
    label, confidence = classes(seed, height, width)
    one, other = (outlines(label, confidence, each) for each in (height, rows))
    for found in (one, other):
        found.simplify(tolerance)
    everything = np.arange(len(one.areas))
    assert one.areas.tolist() == other.areas.tolist()
    assert shapely.equals_exact(one.polygons(everything), other.polygons(everything)).all()


def test_a_raster_without_classes_has_no_outlines():
    found = outlines(np.full((5, 7), 255, np.uint8), np.zeros((5, 7), np.float32), 2)
    found.simplify(1.0)
    assert not len(found.areas)
    assert not len(found.polygons(np.arange(0)))


@pytest.mark.parametrize("flipped", [False, True])
def test_rings_of_an_area_that_touch_do_not_cross(flipped):
    """An area around another one closes at a corner: a ring and a hole, as OGC wants them."""
    label = np.zeros((6, 6), np.uint8)
    label[1:5, 1:5] = 1
    label[2:4, 2:4] = 0
    label[1, 1], label[2, 2] = 0, 1
    label[4, 4], label[5, 5] = 0, 1
    label = label[:, ::-1].copy() if flipped else label
    found = outlines(label, np.zeros((6, 6), np.float32), 4)
    polygons = found.polygons(np.arange(len(found.areas)))
    assert shapely.is_valid(polygons).all()
    assert shapely.area(polygons).tolist() == found.areas["pixels"].tolist()
