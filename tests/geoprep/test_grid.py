"""Where tiles lie: everything here is arithmetic, and exact."""

from itertools import pairwise

import numpy as np
import pyproj
import pytest
import shapely
from affine import Affine
from helpers.factory import PLACES
from hypothesis import assume, given
from hypothesis import strategies as st
from rasterio.features import rasterize

from geoprep.errors import UsageError
from geoprep.grid import Grid, auto_tile, level_sides, shard_tiles, tile_offsets, utm_crs_of

GEOD = pyproj.Geod(ellps="WGS84")


def grid_at(place: str, height: int = 1300, width: int = 1300) -> Grid:
    return Grid(height, width, PLACES[place].transform, PLACES[place].crs or "")


places = st.sampled_from(sorted(PLACES))
sides = st.integers(1, 3000)


@st.composite
def cuts(draw):
    tile = draw(st.integers(1, 700))
    return draw(sides), tile, draw(st.integers(0, tile - 1))


@given(cuts())
def test_tiles_cover_every_pixel_only_the_last_is_shifted_and_none_is_superfluous(cut):
    length, tile, overlap = cut
    offsets = tile_offsets(length, tile, overlap)
    step = tile - overlap
    assert offsets[0] == 0
    assert all(at == i * step for i, at in enumerate(offsets[:-1]))
    if length >= tile:
        assert offsets[-1] + tile == length, "the last tile ends at the edge"
    if len(offsets) > 1:
        assert offsets[-2] + tile < length, "without the last one the edge would be missing"
        assert offsets[-2] < offsets[-1] <= (len(offsets) - 1) * step


@pytest.mark.parametrize("overlap", [-1, 512, 600])
def test_an_overlap_that_makes_no_sense_is_refused(overlap):
    with pytest.raises(UsageError, match="`overlap`"):
        tile_offsets(1300, 512, overlap)


@given(places, sides, sides, st.floats(-50, 3000), st.floats(-50, 3000))
def test_pixels_and_coordinates_are_inverse(place, height, width, col, row):
    grid = grid_at(place, height, width)
    xy = grid.to_xy(np.array([(col, row)]))
    np.testing.assert_allclose(xy[0], grid.transform * (col, row), rtol=1e-15)
    np.testing.assert_allclose(grid.to_pixels(xy)[0], (col, row), atol=2e-3)
    np.testing.assert_allclose(grid.corners[2], grid.transform * (width, height), rtol=1e-15)
    assert grid.has_corners_of(grid, 0.01)
    assert not grid.window(0.5, 0, height, width).has_corners_of(grid, 0.01)
    assert grid.outline().exterior.is_ccw
    assert grid.outline().bounds == grid.bounds


@given(
    st.floats(0, 360).filter(lambda angle: abs(angle % 90 - 45) > 1),
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.floats(0.1, 10),
    st.floats(0.1, 10),
)
def test_the_shape_follows_from_bounds(angle, height, width, right, down):
    grid = Grid(height, width, Affine.rotation(angle) * Affine.scale(right, -down), "")
    assume(np.linalg.cond(np.abs(np.array(grid.transform[:6]).reshape(2, 3)[:, :2])) < 1e4)
    assert grid.shape_within(grid.bounds) == grid.shape


@given(places, st.integers(10, 200), st.integers(10, 200), st.integers(0, 40), st.integers(0, 40))
def test_the_box_around_a_window_is_that_window(place, height, width, row, col):
    grid = grid_at(place)
    window = grid.window(row, col, height, width)
    box = np.array(grid.box_around(window))
    inner = np.array((row, col, row + height, col + width))
    assert (np.abs(box - inner) <= 1).all(), "rounding may add a pixel"
    assert (box[:2] <= inner[:2]).all()
    assert (box[2:] >= inner[2:]).all()


def test_the_box_around_a_grid_in_degrees_continues_across_the_antimeridian():
    first = Grid(100, 100, Affine(1e-5, 0, 179.9995, 0, -1e-5, 10), "EPSG:4326")
    beyond = Grid(100, 100, Affine(1e-5, 0, -179.9995, 0, -1e-5, 10), "EPSG:4326")
    top, left, bottom, right = first.box_around(beyond)
    assert abs(left - 100) <= 1
    assert abs(right - 200) <= 1
    assert (top, bottom) == (0, 100)
    assert utm_crs_of(first, beyond) == utm_crs_of(first)
    assert first.box_around(Grid(9, 9, Affine(1e6, 0, 1e9, 0, -1e6, 0), "EPSG:32637")) is None


def test_a_coarser_level_begins_at_the_same_corner_and_covers_the_extent():
    grid = Grid(401, 600, Affine(0.5, 0, 412_000, 0, -0.5, 6_174_000), "EPSG:32637")
    half = grid.coarser(2)
    assert half.shape == (201, 300)
    assert half.transform == Affine(1, 0, 412_000, 0, -1, 6_174_000)
    xs, ys = half.centres()
    assert xs[:2].tolist() == [412_000.5, 412_001.5]
    assert ys[-1] == 6_174_000 - 200.5


@pytest.mark.parametrize("place", sorted(PLACES))
def test_ground_sample_distance_is_that_of_the_ellipsoid(place):
    grid = grid_at(place, 400, 600)
    to_lonlat = pyproj.Transformer.from_crs(grid.crs, "EPSG:4326", always_xy=True)
    centre = to_lonlat.transform(*(grid.transform * (300, 200)))
    for end, measured in zip([(301, 200), (300, 201)], grid.gsd_m(), strict=True):
        _, _, metres = GEOD.inv(*centre, *to_lonlat.transform(*(grid.transform * end)))
        assert measured == pytest.approx(metres, rel=1e-9)


@given(places, st.floats(0.05, 5.0))
def test_resampling_meets_the_distance_to_half_a_pixel_a_side(place, metres):
    grid = grid_at(place, 1300, 900)
    gsd_x, gsd_y = grid.gsd_m()
    resampled = grid.at_gsd(metres)
    assert abs(resampled.height - 1300 * gsd_y / metres) <= 0.5 or resampled.height == 1
    assert abs(resampled.width - 900 * gsd_x / metres) <= 0.5 or resampled.width == 1
    np.testing.assert_allclose(resampled.bounds, grid.bounds, rtol=1e-12)


@pytest.mark.parametrize(
    ("shape", "overlap", "divisor", "tile"),
    [
        ((1300, 1300), 0, 2, 650),  # SpaceNet's chips: 2 x 2, nothing padded
        ((1300, 1300), 0, 1, 650),
        ((1024, 2048), 0, 2, 512),
        ((325, 325), 0, 1, 325),
        ((325, 325), 0, 2, 326),  # odd: padded to what can be halved
        ((128, 128), 0, 2, 128),  # a small scene is one tile
        ((200, 300), 0, 2, 300),
        ((1301, 1303), 0, 2, 512),  # primes: shifted inwards
        ((1000, 1000), 24, 2, 512),  # 488 + 512
    ],
)
def test_auto_tile_of_scenes_of_one_shape(shape, overlap, divisor, tile):
    assert auto_tile([shape, shape], overlap, divisor) == tile


def test_auto_tile_of_mixed_scenes_is_512_or_the_largest_scene():
    assert auto_tile([(1300, 1300), (1300, 1306)], 0, 2) == 512
    assert auto_tile([(200, 100), (131, 301)], 0, 2) == 302
    assert auto_tile([(1300, 1306), *[(1300, 1300)] * 2], 0, 2) == 650  # most have one shape


@given(sides, sides, st.sampled_from([1, 2, 4, 8]), st.integers(0, 64))
def test_auto_tile_can_be_halved_and_wastes_nothing(height, width, divisor, overlap):
    tile = auto_tile([(height, width)], overlap, divisor)
    assert tile % divisor == 0
    assert tile <= max(1024, divisor)
    if tile != 512 and tile <= min(height, width) and tile > overlap:
        for length in (height, width):
            offsets = tile_offsets(length, tile, overlap)
            assert all(at % (tile - overlap) == 0 for at in offsets), "nothing is shifted"


@given(st.integers(1, 1300), st.integers(1, 8))
def test_levels_halve_exactly_or_are_refused(tile, levels):
    if tile % 2 ** (levels - 1):
        with pytest.raises(UsageError, match="`tile`"):
            level_sides(tile, levels)
        return
    got = level_sides(tile, levels)
    assert got[0] == tile
    assert all(a == 2 * b for a, b in pairwise(got))
    assert len(got) == levels


def test_the_tile_that_a_refusal_proposes_works():
    with pytest.raises(UsageError) as error:
        level_sides(650, 3)
    proposed = int(str(error.value).split("use a `tile` of ")[1].split(",")[0])
    assert abs(proposed - 650) <= 2
    assert level_sides(proposed, 3)[2] * 4 == proposed


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 20))
def test_shards_hold_whole_scenes_when_scenes_are_alike(count, preferred, scenes):
    size = shard_tiles([count] * scenes, preferred)
    assert size >= 1
    if count <= 2 * preferred:
        assert size % count == 0, "no scene lies in two shards"
        assert size <= 2 * preferred
        assert size > preferred / 2 or size == count
    else:
        assert size == preferred


def grid_around(lon: float, lat: float, crs: str, pixel: float, side: int = 60) -> Grid:
    x, y = pyproj.Transformer.from_crs("OGC:CRS84", crs, always_xy=True).transform(lon, lat)
    half = side / 2 * pixel
    return Grid(side, side, Affine(pixel, 0, x - half, 0, -pixel, y + half), crs)


GRIDS = {
    "at 180 degrees": grid_around(179.9995, -17.0, "EPSG:32760", 5.0),
    "the same in degrees": grid_around(179.9995, -17.0, "EPSG:4326", 5e-5),
    "Moscow": grid_around(37.0, 55.0, "EPSG:32637", 10.0),
    "Moscow, Web Mercator": grid_around(37.0, 55.0, "EPSG:3857", 10.0),
    "North of Greenland": grid_around(-40.0, 83.5, "EPSG:3413", 100.0),
    "the Earth": Grid(45, 90, Affine(4, 0, -180, 0, -4, 90), "EPSG:4326"),
}
AREAS = {
    "the Earth": shapely.box(-180, -90, 180, 90),
    "nearly": shapely.box(-170.5, -60.5, 170.5, 75.5),
    "land": shapely.box(-180, -60.5, 180, 75.5),
    "across 180 degrees": shapely.box(179.999, -17.001, 180.001, -16.999),
    "a long box": shapely.box(20, 50, 60, 55.0001),
    "a long triangle": shapely.Polygon([(-40, 40), (37.001, 55), (100, 54)]),
    "a spike": shapely.Polygon([(36.9, 54.9), (37, 55), (37, 56), (37, 55), (37.1, 54.9)]),
    "two and a hole": shapely.union_all(
        [shapely.box(36, 54, 37, 55), shapely.box(37.0005, 55, 38, 56).difference(
            shapely.Point(37.002, 55.001).buffer(0.0005))]
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", GRIDS)
@pytest.mark.parametrize("name", AREAS)
def test_areas_are_drawn_where_the_longitude_and_latitude_of_pixels_lie_in_them(place, name):
    """Each pixel's centre is asked by itself; longitudes are a ring."""
    grid, area = GRIDS[place], AREAS[name]
    _, near = grid.areas_near(np.array([shapely.box(1, 1, 2, 2), area]), "OGC:CRS84")
    assert near.is_valid
    drawn = np.zeros(grid.shape, bool)
    if not near.is_empty:
        drawn = rasterize([near], out_shape=grid.shape, transform=grid.transform) > 0
    cols, rows = np.meshgrid(np.arange(grid.width) + 0.5, np.arange(grid.height) + 0.5)
    lon, lat = grid.to_crs(np.column_stack([cols.ravel(), rows.ravel()]), "OGC:CRS84").T
    whole = shapely.make_valid(area)
    inside = np.any([shapely.contains_xy(whole, lon + turn, lat) for turn in (-360, 0, 360)], 0)
    assert np.count_nonzero(drawn.ravel() != inside) <= 1


def test_points_outside_of_the_domain_of_a_grid_are_left_out():
    grid = GRIDS["Moscow"]
    ring = [(399_000, 6_000_000), (np.inf, 6_000_000), (401_000, 6_000_000), (401_000, 7_000_000)]
    corrupt = shapely.Polygon([*ring, (399_000, 7_000_000)])
    (polygons,) = grid.areas_near(np.array([corrupt], object), grid.crs)
    assert polygons.is_valid
    inside = shapely.intersection(shapely.box(399_000, 6e6, 401_000, 7e6), grid.outline())
    assert polygons.intersection(grid.outline()).area == inside.area
