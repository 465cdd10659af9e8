import geopandas
import numpy as np
import pyproj
import pytest
import rasterio
import shapely
from affine import Affine
from helpers.united import burned_by_gdal, united
from hypothesis import given, settings
from hypothesis import strategies as st

from geoprep.crs import LONLAT, transformer, turn_of
from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid
from geoprep.labels import burning
from geoprep.labels.burning import LabelOutlines, burn
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.label_shapes import open_label_file, read_shapes
from geoprep.labels.vector_labels import LabelShapes
from geoprep.speed import BINNED_TABLE, CONTINUOUS_TABLE, to_byte

# affine 3 would rather have @, which affine 2 does not know.
pytestmark = pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")

TABLE_SPEEDS = [15, 18.75, 20, 22.5, 25, 26.25, 30, 33.75, 35, 41.25, 45, 48.75, 55, 65]
PLACES = {
    "Moscow": (37.6, 55.7),
    "Vegas": (-115.17, 36.24),
    "San Juan": (-66.1, 18.4),
    "São Paulo": (-46.63, -23.55),
    "Ushuaia": (-68.3, -54.8),
}
places = st.sampled_from(sorted(PLACES))
seeds = st.integers(0, 2**32 - 1)


def some_roads(place, speeds, seed=0, crs="OGC:CRS84"):
    """Return crooked, crossing roads of the given speeds within 100 m of a place."""
    lon, lat = PLACES[place]
    rng = np.random.default_rng(seed)
    metres = rng.uniform(-90, 90, (len(speeds), 4, 2))
    degrees = metres / (111_320 * np.cos(np.radians(lat)), 111_320) + (lon, lat)
    lines = shapely.linestrings(degrees)
    moved = geopandas.GeoSeries(lines, crs="OGC:CRS84").to_crs(crs)
    return LabelShapes(np.array(moved, dtype=object), to_byte(speeds), crs, {})


def roads_of(*lines, mph=30, crs="OGC:CRS84"):
    """Return roads of one speed, or of a speed each."""
    geometry = np.array([shapely.LineString(line) for line in lines], object)
    return LabelShapes(geometry, np.full(len(lines), to_byte(mph)), crs, {})


def square_degrees(place, pixel=2.7e-6 * 4, size=160):
    """Return the affine of a SpaceNet-like chip about a place: pixels square in degrees."""
    lon, lat = PLACES[place]
    return Affine(pixel, 0, lon - pixel * size / 2, 0, -pixel, lat + pixel * size / 2)


def grid_at(place, crs="EPSG:4326", size=160):
    """Return the grid of such a chip."""
    return Grid(size, size, square_degrees(place, size=size), crs)


def mask_of(roads, grid, **options):
    return burn(LabelOutlines.of(roads, grid, **options).within(grid), grid)


def by_geopandas(roads, image_crs):
    """Return (polygon, byte) ascending: the reference's recipe in its own words."""
    frame = geopandas.GeoDataFrame({"value": roads.value}, geometry=roads.lines, crs=roads.crs)
    lon = frame.to_crs("OGC:CRS84").geometry.union_all().centroid.x
    zone = int(np.floor((lon + 180) / 6) + 1)
    metric = frame.to_crs(f"+proj=utm +zone={zone} +datum=WGS84 +units=m")
    metric["geometry"] = metric.buffer(2.0, quad_segs=1)
    ground = metric.dissolve(by="value").to_crs(image_crs)
    return list(zip(ground.geometry, ground.index, strict=True))


# --- the published masks ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 99])
@pytest.mark.parametrize(
    ("coding", "table"), [("continuous", CONTINUOUS_TABLE), ("binned7", BINNED_TABLE)]
)
def test_real_chips_equal_the_reference_on_every_pixel(shared_data, number, coding, table):
    name = f"SN3_roads_train_AOI_2_Vegas_geojson_roads_speed_img{number}.geojson"
    roads = read_shapes(shared_data / "AOI_2_Vegas" / "geojson_roads_speed" / name)
    with rasterio.open(shared_data / "expected" / f"img{number}_{coding}.tif") as expected:
        mask = mask_of(roads, Grid(*expected.shape, expected.transform, expected.crs.to_string()))
        assert mask.any()
        assert np.array_equal(table[mask], expected.read(1))


# --- an independent rendition -------------------------------------------------------------------


@settings(max_examples=6)
@given(
    places,
    st.sampled_from(["OGC:CRS84", "EPSG:4326", "EPSG:3857"]),
    st.sampled_from(["EPSG:4326", "EPSG:3857", "EPSG:6933"]),
    seeds,
)
def test_labels_and_images_may_have_any_crs(place, label_crs, image_crs, seed):
    roads = some_roads(place, TABLE_SPEEDS, seed, label_crs)
    to_image = pyproj.Transformer.from_crs("OGC:CRS84", image_crs, always_xy=True)
    transform = square_degrees(place)
    left, bottom, right, top = to_image.transform_bounds(
        transform.c, transform.f + 160 * transform.e, transform.c + 160 * transform.a, transform.f
    )
    transform = Affine((right - left) / 160, 0, left, 0, (bottom - top) / 160, top)
    mask = mask_of(roads, Grid(160, 160, transform, image_crs))
    shapes = by_geopandas(roads, image_crs)
    assert mask.any()
    assert np.array_equal(mask, burned_by_gdal(shapes, transform, (160, 160)))


# --- united roads ---------------------------------------------------------------------------


def networks(rng, kind, size):
    """Return road lines in metres: crooked ones, a lattice with exact T-junctions, a network."""
    count = int(rng.integers(2, 40))
    if kind == "crossing":
        return [rng.uniform(-20, size + 20, (int(rng.integers(2, 6)), 2)) for _ in range(count)]
    if kind == "lattice":
        # Off the grid: GDAL has a rule of its own for outlines that run through pixel centres.
        corners = np.round(rng.uniform(0, size, (count, 2)) / 40) * 40 + 0.1234
        turns = rng.choice([0.0, 40.0, 80.0], (count, 2))
        pairs = zip(corners, turns, strict=True)
        return [np.array([at, at + turn, np.add(at, (120, 40))]) for at, turn in pairs]
    if kind == "walks":
        steps = [rng.normal(0, 25, (int(rng.integers(2, 12)), 2)) for _ in range(count)]
        return [rng.uniform(0, size, 2) + np.cumsum(each, axis=0) for each in steps]
    places = rng.uniform(0, size, (count + 1, 2))
    nearest = np.argsort(((places[:, None] - places) ** 2).sum(axis=2), axis=1)[:, 1:4]
    streets = {(min(i, j), max(i, j)) for i, each in enumerate(nearest.tolist()) for j in each}
    return [places[list(street)] for street in sorted(streets)]


@given(
    seeds,
    st.sampled_from(["crossing", "lattice", "walks", "streets"]),
    st.sampled_from([100.0, 400.0, 2000.0]),
    st.sampled_from(["EPSG:4326", "EPSG:3857", "EPSG:32611"]),
    st.integers(1, 4),
)
def test_lines_are_the_union_of_their_outlines_to_the_pixel(seed, kind, size, crs, speeds):
    rng = np.random.default_rng(seed)
    lines = [np.add(line, (665e3, 4011e3)) for line in networks(rng, kind, size)]
    mph = rng.choice(TABLE_SPEEDS[:speeds], len(lines))
    roads = roads_of(*lines, mph=mph, crs="EPSG:32611")
    left, bottom, right, top = transformer("EPSG:32611", crs).transform_bounds(
        665e3, 4011e3, 665e3 + size, 4011e3 + size
    )
    side = int(min(size / 0.3, 700))
    transform = Affine((right - left) / side, 0, left, 0, (bottom - top) / side, top)
    grid = Grid(side, side, transform, crs)
    expected = burned_by_gdal(united(roads, grid), transform, (side, side))
    assert np.array_equal(mask_of(roads, grid), expected)


def test_lines_that_are_too_many_to_unite_are_drawn_one_by_one(monkeypatch):
    monkeypatch.setattr(burning, "_MOST_CROSSINGS", 400)
    place = np.array((413_871.25, 6_180_032.5))
    ends = place + np.random.default_rng(0).uniform(0, 300, (120, 2, 2))
    roads = roads_of(*ends, mph=np.repeat([25.0, 45.0], 60), crs="EPSG:32637")
    grid = Grid(300, 300, Affine(1, 0, place[0], 0, -1, place[1] + 300), "EPSG:32637")
    outlines = LabelOutlines.of(roads, grid)
    assert len(outlines.within(grid)) == 120
    alone = shapely.buffer(roads.lines, 2.0, quad_segs=1)
    expected = burned_by_gdal(
        list(zip(alone, roads.value, strict=True)), grid.transform, grid.shape
    )
    np.testing.assert_array_equal(burn(outlines.within(grid), grid), expected)
    assert len(outlines.within(grid.window(-9, -9, 50, 2))) <= 2, "few enough"


@pytest.mark.parametrize(
    "shape", ["scribble", "walk", "zigzag"], ids=["10,000 crossings each", "on the spot", "dense"]
)
def test_a_vertex_bomb_is_burned(shape):
    rng = np.random.default_rng(0)
    place = (413_871.25, 6_180_032.5)
    points = (
        place
        + {
            "scribble": rng.uniform(0, 400, (10_000, 2)),
            "walk": np.cumsum(rng.normal(0, 1, (20_000, 2)), axis=0) + 200,
            "zigzag": np.column_stack([np.arange(4000) * 0.01, np.arange(4000) % 2 * 300]),
        }[shape]
    )
    usual = np.array([(10, -10), (30, 410)]) + place
    grid = Grid(400, 400, Affine(1, 0, place[0], 0, -1, place[1] + 400), "EPSG:32637")
    # 2 s; united, it takes from 75 s to hours
    mask = mask_of(roads_of(points, usual, mph=[25, 45], crs=grid.crs), grid)
    alone = mask_of(roads_of(usual, mph=45, crs=grid.crs), grid)
    assert np.array_equal(mask == 45, alone == 45)
    pixels = ((points - (place[0], place[1] + 400)) * (1, -1)).astype(int)
    columns, rows = pixels[((pixels >= 0) & (pixels < 400)).all(axis=1)].T
    assert (mask[rows, columns] >= 25).all()


# --- what a mask promises -----------------------------------------------------------------------


@settings(max_examples=15)
@given(places, seeds, st.data())
def test_a_window_is_the_slice_of_the_whole(place, seed, data):
    grid = grid_at(place)
    outlines = LabelOutlines.of(some_roads(place, TABLE_SPEEDS, seed), grid)
    row, col = (data.draw(st.integers(0, 150)) for _ in range(2))
    height, width = (data.draw(st.integers(1, 160 - start)) for start in (row, col))
    whole, window = burn(outlines.within(grid), grid), grid.window(row, col, height, width)
    mask = burn(outlines.within(window), window)
    assert np.array_equal(mask, whole[row : row + height, col : col + width])


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_road_is_four_metres_wide_on_the_ground(place):
    lon, lat = PLACES[place]
    line = shapely.LineString([(lon - 0.004, lat - 0.003), (lon + 0.004, lat + 0.003)])
    length = pyproj.Geod(ellps="WGS84").geometry_length(line)
    # On a grid of an equal-area projection, not of the one that the road was widened in.
    (x, y), metre = transformer("OGC:CRS84", "EPSG:6933").transform(lon, lat), 0.25
    grid = Grid(6000, 6000, Affine(metre, 0, x - 750, 0, -metre, y + 750), "EPSG:6933")
    ground = np.count_nonzero(mask_of(roads_of(line), grid)) * metre**2
    assert ground == pytest.approx(4 * length, rel=0.004)


@given(seeds, st.floats(-180, 180), st.floats(-20, 20))
def test_turned_and_sheared_grids_are_burned_as_gdal_burns_them(seed, angle, shear):
    roads = some_roads("Vegas", TABLE_SPEEDS, seed)
    about, turned = Affine.translation(80, 80), Affine.rotation(angle) * Affine.shear(shear)
    transform = square_degrees("Vegas") * about * turned * ~about
    grid = Grid(160, 160, transform, "EPSG:4326")
    mask = mask_of(roads, grid)
    assert mask.any()
    expected = burned_by_gdal(united(roads, grid), transform, (160, 160))
    assert np.array_equal(mask, expected)


# --- edges --------------------------------------------------------------------------------------


def test_a_line_round_the_world_in_the_label_moves_no_other_road():
    roads = some_roads("Moscow", TABLE_SPEEDS)
    long = shapely.LineString([(-170, 20), (-40, 60), (60, 10), (170, 30)])
    beside = roads_of(*roads.lines, long, mph=[*roads.value, 20])
    assert np.array_equal(*(mask_of(each, grid_at("Moscow")) for each in (roads, beside)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("image_crs", ["EPSG:4326", "EPSG:32637"])
def test_coordinates_that_are_nowhere_do_not_crash(image_crs):
    nowhere, somewhere = [(1e300, 1e300), (2e300, 2e300)], [(5e5, 6e6), (5e5, 6.001e6)]
    x, y = transformer("EPSG:32637", image_crs).transform(5e5, 6.0005e6)
    pixel = 1e-5 if image_crs == "EPSG:4326" else 1.0
    place = Affine(pixel, 0, x - 600 * pixel, 0, -pixel, y + 600 * pixel)
    grid = Grid(1200, 1200, place, image_crs)
    with pytest.raises(LabelError, match="EPSG:32637"):
        mask_of(roads_of(nowhere, crs="EPSG:32637"), grid)
    both = roads_of(nowhere, somewhere, crs="EPSG:32637")
    assert len(LabelOutlines.of(both, grid).value) == 1
    assert mask_of(both, grid).any()


def test_a_tangle_that_is_the_only_road_is_burned():
    """Driven to and fro thousands of times, as a recorder that was left on writes it."""
    roads, grid = some_roads("Moscow", [25]), grid_at("Moscow")
    there = shapely.get_coordinates(roads.lines[0])
    tangle, closed = np.tile(there, (2000, 1)), np.vstack([there, there[:1]])
    tangled, plain = (mask_of(roads_of(line, mph=25), grid) for line in (tangle, closed))
    assert (tangled == 25).any()
    np.testing.assert_array_equal(tangled, plain)


def test_a_line_of_no_length_does_not_crash():
    mask = mask_of(roads_of([PLACES["Moscow"], PLACES["Moscow"]]), grid_at("Moscow"))
    assert mask.sum() in range(30 * 40)


@pytest.mark.parametrize("buffer_m", [0, -2, float("nan")])
def test_a_buffer_that_leaves_no_road_is_refused(buffer_m):
    with pytest.raises(UsageError, match="buffer"):
        mask_of(roads_of([(0, 0), (1, 1)]), grid_at("Moscow"), buffer_m=buffer_m)


@pytest.mark.parametrize("turn", [0, 360, -360])
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:3857", "+proj=eqc +lat_ts=30 +towgs84=0,0,9"])
def test_roads_on_both_sides_of_the_180th_meridian_are_burned(tmp_path, turn, split, crs):
    """Whatever the label calls the other side; the meridian of Greenwich gives the same mask."""

    def scene_at(lon):
        x, y = transformer(LONLAT, crs).transform([0, 1e-5, 0], [-17, -17, -17 + 1e-5])
        across, up, centre = x[1] - x[0], y[2] - y[0], x[0] + lon * turn_of(crs) / 360
        return Grid(40, 100, Affine(across, 0, centre - 50 * across, 0, -up, y[0] + 20 * up), crs)

    def mask(name, lines, grid):
        path = tmp_path / name
        shapes = [shapely.LineString(line) for line in lines]
        columns = {"road_type": ["5"] * len(lines)}
        geopandas.GeoDataFrame(columns, geometry=shapes, crs="OGC:CRS84").to_file(path)
        rule = {"bounds_crs": grid.crs, "scene": grid.bounds}
        own = mask_of(read_shapes(path, **rule), grid)
        shared = mask_of(read_shapes(path, bounds=grid.bounds, bounds_crs=grid.crs), grid)
        np.testing.assert_array_equal(own, shared)
        assert open_label_file(path, SpeedRule()).covers(grid.bounds, grid.crs)
        return own

    y = -17.0
    west, east = [[-4e-4, y], [0, y]], [[0, y], [4e-4, y]]
    expected = mask("a.geojson", [west, east], scene_at(0.0))
    assert (expected[20, 12:88] == 25).all()
    beyond = [[x + (180 if turn > 0 else -180), y] for x, y in east]
    before = [[x + (180 if turn >= 0 else -180), y] for x, y in west]
    lines = [before, beyond] if split else [[*before, *beyond]]
    middle = 180.0 if turn >= 0 else -180.0
    np.testing.assert_array_equal(mask("b.geojson", lines, scene_at(middle)), expected)
