import os
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import geopandas
import numpy as np
import pyproj
import pytest
import shapely
from affine import Affine
from helpers.roads import network as road_network
from hypothesis import given, settings
from hypothesis import strategies as st

from geoprep.errors import LabelError
from geoprep.grid import Grid
from geoprep.labels import label_shapes as reading
from geoprep.labels.burning import LabelOutlines, burn
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.label_shapes import read_shapes
from geoprep.roads.formats.files import write_network

MOSCOW = (37.6, 55.7)
UTM = "EPSG:32637"
MPH = {"1": 55.0, "3": 35.0, "5": 25.0}


def local_crs(centre):
    return f"+proj=aeqd +lon_0={centre[0]} +lat_0={centre[1]} +datum=WGS84 +units=m"


def network(centre=MOSCOW, count=40, **columns):
    """Return a frame of crooked roads in a square of 2 km about a place."""
    rng = np.random.default_rng(0)
    starts = rng.uniform(-1000, 1000, (count, 1, 2))
    xy = np.concatenate([starts, starts + rng.normal(0, 150, (count, 3, 2))], axis=1)
    road_type = np.resize(list(MPH), count)
    table = {"road_type": road_type, "lane_numbe": ["2"] * count, "paved": ["1"] * count} | columns
    return geopandas.GeoDataFrame(table, geometry=shapely.linestrings(xy), crs=local_crs(centre))


def scene(crs, east, north, side=300, centre=MOSCOW):
    """Return the bounds of a square on the ground, some metres from a place."""
    to = pyproj.Transformer.from_crs(local_crs(centre), crs, always_xy=True)
    return to.transform_bounds(east, north, east + side, north + side)


@pytest.fixture(scope="module")
def road_files(tmp_path_factory):
    """Return a function that writes the network once per format and CRS."""
    folder = tmp_path_factory.mktemp("roads")

    def write(crs, suffix="gpkg"):
        path = folder / f"roads_{crs[5:]}.{suffix}"
        if not path.exists():
            network().to_crs(crs).to_file(path)
        return path

    return write


# --- which roads --------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["gpkg", "geojson", "shp", "fgb"])
@pytest.mark.parametrize("crs", ["EPSG:4326", UTM, "EPSG:3857", "EPSG:28407"])
def test_roads_of_a_scene_come_out_of_every_format_and_crs(road_files, suffix, crs):
    bounds = scene(UTM, east=100, north=-200)
    roads = read_shapes(road_files(crs, suffix), bounds=bounds, bounds_crs=UTM)

    everything = network().to_crs(UTM)
    within, near = (
        everything[everything.intersects(shapely.box(*bounds).buffer(distance))]
        for distance in (0, 20)
    )
    chosen = Counter(roads.value.tolist())
    assert len(within) > 3
    assert Counter(within.road_type.map(MPH)) <= chosen <= Counter(near.road_type.map(MPH))
    assert roads.notes == {}


@settings(max_examples=10)
@given(
    east=st.integers(-1200, 1000),
    north=st.integers(-1200, 1000),
    file_crs=st.sampled_from(["EPSG:4326", UTM, "EPSG:32636", "EPSG:3857"]),
    scene_crs=st.sampled_from(["EPSG:4326", UTM, "EPSG:3857"]),
)
def test_roads_chosen_by_bounds_burn_like_all_roads(road_files, east, north, file_crs, scene_crs):
    path = road_files(file_crs)
    left, bottom, right, top = bounds = scene(scene_crs, east, north)
    transform = Affine((right - left) / 200, 0, left, 0, (bottom - top) / 200, top)
    grid = Grid(200, 200, transform, scene_crs)
    chosen = read_shapes(path, bounds=bounds, bounds_crs=scene_crs)
    masks = [
        burn(LabelOutlines.of(roads, grid).within(grid), grid)
        for roads in (chosen, read_shapes(path))
    ]
    # A road outside may cross one that reaches in: its vertex there moves an edge by a hair.
    assert (masks[0] != masks[1]).sum() <= 2


def test_a_road_that_reaches_in_by_its_margin_alone_is_chosen(tmp_path):
    path = tmp_path / "roads.gpkg"
    line = shapely.LineString([(500_000, 6_000_301.9), (500_300, 6_000_301.9)])
    geopandas.GeoDataFrame({"road_type": [5]}, geometry=[line], crs=UTM).to_file(path)
    bounds = (500_000, 6_000_000, 500_300, 6_000_300)
    for margin_m, count in ((2.0, 1), (1.5, 0)):
        roads = read_shapes(path, bounds=bounds, bounds_crs=UTM, margin_m=margin_m)
        assert len(roads.lines) == count


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:32601", "EPSG:3832"])
def test_roads_are_found_on_both_sides_of_the_180th_meridian(tmp_path, crs):
    path = tmp_path / "fiji.gpkg"
    beside = [[(179.999, -17), (179.9995, -17)], [(-179.999, -17), (-179.9995, -17)]]
    far = [[(0.0, -17), (0.001, -17)], [(179.9, -17), (179.901, -17)]]
    lines = shapely.linestrings(beside + far)
    roads = geopandas.GeoDataFrame({"road_type": [1, 3, 5, 5]}, geometry=lines, crs="EPSG:4326")
    roads.to_file(path)
    bounds = scene(crs, -300, -300, side=600, centre=(180.0, -17.0))
    found = read_shapes(path, bounds=bounds, bounds_crs=crs)
    assert sorted(found.value.tolist()) == [35, 55]


def test_a_scene_where_the_crs_of_the_roads_does_not_reach_has_no_roads(road_files):
    roads = read_shapes(road_files(UTM), bounds=(-141, 0, -140.9, 0.1), bounds_crs="EPSG:4326")
    assert len(roads.lines) == 0


# --- notes --------------------------------------------------------------------------------------


def test_notes_are_those_of_the_scene_alone(tmp_path):
    lines = shapely.linestrings([[(0, 0), (9, 9)], [(0, 9), (9, 0)], [(5000, 0), (5009, 9)]])
    kinds = ["primary", "footway", "moon_road"]
    frame = geopandas.GeoDataFrame({"highway": kinds}, geometry=lines, crs=local_crs(MOSCOW))
    path = tmp_path / "roads.gpkg"
    frame.to_crs(UTM).to_file(path)
    here = read_shapes(path, bounds=scene(UTM, 0, 0), bounds_crs=UTM)
    assert here.notes == {"lanes missing": 1, "not driveable": 1, "surface missing": 1}
    assert here.value.tolist() == [45]
    there = read_shapes(path, bounds=scene(UTM, 4900, 0), bounds_crs=UTM)
    assert there.notes["highway unknown: moon_road"] == 1
    assert there.value.tolist() == [20]


def test_features_without_a_line_belong_to_no_scene_and_are_told_apart(tmp_path):
    path = tmp_path / "mixed.gpkg"
    shapes = [
        shapely.LineString([(0, 0), (9, 9)]),
        shapely.MultiLineString([[(0, 0), (9, 9)], [(20, 0), (30, 9)]]),
        shapely.Point(1, 1),
        shapely.LineString(),
        None,
    ]
    frame = geopandas.GeoDataFrame({"road_type": [5] * 5}, geometry=shapes, crs=local_crs(MOSCOW))
    frame.to_crs(UTM).to_file(path)
    expected = {f"geometry {what}": 1 for what in ("Point", "empty", "missing")}
    roads = read_shapes(path, bounds=scene(UTM, 0, 0), bounds_crs=UTM)
    assert len(roads.lines) == 3
    assert reading.open_label_file(path, SpeedRule()).table.lineless() == expected
    assert not any(note.startswith("geometry") for note in roads.notes)
    assert expected.items() <= read_shapes(path).notes.items()


# --- one reading a process ----------------------------------------------------------------------


def test_a_file_is_read_once_by_all_threads_and_again_when_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "roads.gpkg"
    network().to_crs(UTM).to_file(path)
    reads = []
    read = reading.read_label_table
    monkeypatch.setattr(reading, "read_label_table", lambda *a: reads.append(a) or read(*a))
    bounds = scene(UTM, 0, 0, side=2000)

    def count(_):
        return len(read_shapes(path, bounds=bounds, bounds_crs=UTM).lines)

    with ThreadPoolExecutor(4) as pool:
        (before,) = set(pool.map(count, range(16)))
    assert len(reads) == 1

    path.unlink()
    network().head(0).to_crs(UTM).to_file(path)
    os.utime(path, ns=(1, 1))
    assert before > 3
    assert count(0) == 0
    assert len(reads) == 2


# --- files that cannot be used ------------------------------------------------------------------


def test_a_file_without_a_crs_is_an_error_with_the_way_out(tmp_path):
    path = tmp_path / "roads.shp"
    network().to_crs(UTM).to_file(path)
    (tmp_path / "roads.prj").unlink()
    with pytest.raises(LabelError, match=r"roads\.shp: has no CRS.*-a_srs.*\.prj"):
        read_shapes(path)


def test_a_file_without_lines_is_an_error_that_lists_its_layers(tmp_path):
    path = tmp_path / "houses.gpkg"
    houses = network().assign(geometry=network().centroid)
    houses.to_crs(UTM).to_file(path, layer="houses")
    with pytest.raises(LabelError, match=r"no layer of lines.*houses \(Point\)"):
        read_shapes(path)


@pytest.mark.parametrize("suffix", ["gpkg", "shp", "txt"])
@pytest.mark.parametrize("content", [b"", b"not a road file at all" * 9])
def test_a_file_that_gdal_cannot_read_is_an_error_that_names_it(tmp_path, suffix, content):
    path = tmp_path / f"roads.{suffix}"
    path.write_bytes(content)
    with pytest.raises(LabelError, match=f"roads.{suffix}"):
        read_shapes(path, bounds=(0, 0, 1, 1), bounds_crs=UTM)


@pytest.mark.parametrize(
    ("part", "keep", "says"),
    [
        (".shp", 0.5, r"truncated, \d+ of \d+ bytes"),
        (".shp", 0.999, r"truncated, \d+ of \d+ bytes"),
        (".dbf", 0.5, r"truncated, \d+ of \d+ bytes"),
        (".dbf", 0.0, r"roads_part\.dbf: truncated"),
        (".dbf", None, r"its attribute file roads_part\.dbf is missing"),
        (".shx", None, r"roads_part\.shp"),
    ],
)
def test_a_shapefile_of_which_a_part_is_lost_is_an_error(tmp_path, part, keep, says):
    path = tmp_path / "roads_part.shp"
    network().to_crs(UTM).to_file(path)
    lost = path.with_suffix(part)
    whole = lost.read_bytes()
    lost.unlink()
    if keep is not None:
        lost.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(LabelError, match=says):
        read_shapes(path, bounds=scene(UTM, 0, 0), bounds_crs=UTM)


def test_a_broken_geometry_is_left_out_and_counted(road_files, tmp_path):
    path = tmp_path / "roads.gpkg"
    path.write_bytes(road_files(UTM).read_bytes())
    with sqlite3.connect(path) as database:
        (table,) = database.execute("select table_name from gpkg_geometry_columns").fetchone()
        triggers = "select name from sqlite_master where type = 'trigger'"
        for (trigger,) in database.execute(triggers).fetchall():
            database.execute(f'drop trigger "{trigger}"')
        database.execute(f'update "{table}" set geom = ? where fid = 1', (b"GP\x00\x01\x00",))
    database.close()
    roads = read_shapes(path)
    assert len(roads.lines) == 39
    assert roads.notes == {"geometry missing": 1}


def test_a_scene_that_is_no_place_on_earth_has_no_roads(road_files):
    nowhere = (1.77e7, -1.2e7, 1.78e7, -1.19e7)
    path = road_files(UTM)
    assert len(read_shapes(path, bounds=nowhere, bounds_crs=UTM).lines) == 0
    assert not reading.open_label_file(path, SpeedRule()).covers(nowhere, UTM)
    with pytest.raises(LabelError, match=r"the scene is at .* not on Earth"):
        read_shapes(path, scene=nowhere, bounds_crs=UTM)


def test_geoparquet_is_read_like_any_other_format(tmp_path, road_files):
    path = tmp_path / "roads.parquet"
    frame = network().to_crs(UTM)
    frame["surface"] = None
    frame.to_parquet(path)
    here = {"bounds": scene(UTM, 0, 0, side=2000), "bounds_crs": UTM}
    expected = read_shapes(road_files(UTM), **here)
    for rule in (SpeedRule(), SpeedRule(layer="roads")):
        roads = read_shapes(path, rule=rule, **here)
        assert {line.wkb for line in roads.lines} == {line.wkb for line in expected.lines}
        assert sorted(roads.value) == sorted(expected.value)


def test_a_network_of_vectorize_is_a_label(tmp_path):
    """`vectorize --out roads.parquet` writes what `build-zarr --labels roads.parquet` reads."""
    ends = [(412_000, 6_174_000), (412_100, 6_174_050)]
    write_network(road_network(ends, speeds=[35], crs=UTM), tmp_path / "roads.parquet")
    roads = read_shapes(tmp_path / "roads.parquet", rule=SpeedRule(speed_from="field"))
    assert roads.value.tolist() == [35.0]
    assert roads.crs == UTM


def test_broken_geoparquet_is_named(tmp_path):
    path = tmp_path / "roads.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(LabelError, match=r"roads\.parquet: not readable as GeoParquet"):
        read_shapes(path)


def test_lines_and_areas_of_geometry_collections_are_read(tmp_path):
    line, area = shapely.LineString([(0, 0), (9, 9)]), shapely.box(0, 0, 5, 5)
    inner = shapely.GeometryCollection([area, shapely.MultiLineString([line, line])])
    shapes = [shapely.GeometryCollection([line, shapely.Point(1, 1), inner]), line]
    shapes += [shapely.GeometryCollection([shapely.Point(1, 1)])]
    frame = geopandas.GeoDataFrame({"road_type": [5, 2, 1]}, geometry=shapes, crs=UTM)
    frame.to_file(tmp_path / "roads.gpkg")
    roads = read_shapes(tmp_path / "roads.gpkg")
    kinds = Counter(
        zip(shapely.get_type_id(roads.lines).tolist(), roads.value.tolist(), strict=True)
    )
    assert kinds == {(1, 25.0): 3, (3, 25.0): 1, (1, 45.0): 1}
    assert roads.notes["geometry GeometryCollection"] == 1
