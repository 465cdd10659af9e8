"""Test that a city cut into tiles by any grid has the network of the city in one piece."""

from itertools import pairwise

import numpy as np
import pytest
import rasterio
import shapely
from affine import Affine
from helpers.rasters import write_raster
from helpers.roads import degree_counts, drawn, network
from rasterio.warp import reproject as resample

from geoprep.errors import UsageError
from geoprep.roads.centrelines import rasters
from geoprep.roads.options import RasterOptions
from geoprep.roads.scoring.apls import apls
from geoprep.roads.tracing.vectorization import rasters_in, vectorize

SIDE = 600
STREETS = {
    30: [[(-10, -100), (610, -130)], [(120, 10), (100, -610)], [(500, 10), (505, -610)]],
    25: [[(-10, -300), (610, -290)], [(205, -125), (195, -300)]],
    35: [[(300, 10), (310, -610)], [(-10, -520), (610, -440)]],
}
MOTORWAY = [(-10, -30), (400, -210), (610, -560)]
TINY = tuple(range(0, 601, 100))


@pytest.fixture(scope="module")
def city():
    """Return speeds of streets, and of a motorway that crosses six of them on bridges."""
    burned = [drawn(lines, (SIDE, SIDE), width=5, value=mph) for mph, lines in STREETS.items()]
    return np.maximum.reduce([*burned, drawn([MOTORWAY], (SIDE, SIDE), width=8, value=65)])


def written(folder, city, windows, off=0.0):
    """Write windows (top, left, bottom, right) as rasters of 1 m, every other one off the grid."""
    folder.mkdir()
    for number, (top, left, bottom, right) in enumerate(windows):
        x, y = (places + off * (number % 2) for places in (left, top))
        place = Affine(1, 0, 400_000 + x, 0, -1, 6_000_000 - y)
        write_raster(folder / f"{number:03}.tif", city[top:bottom, left:right], transform=place)
    return rasters_in(folder)


@pytest.fixture(scope="module")
def whole(city, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    made = vectorize(written(folder / "tiles", city, [(0, 0, SIDE, SIDE)]))
    # Six streets cross the motorway, eight more crossings and four forks are junctions.
    assert degree_counts(made)[1] == 14
    assert np.isfinite(made.speed_mph).all()
    return made


@pytest.mark.parametrize("side", [SIDE, SIDE // 2])
def test_rasters_read_by_windows_give_the_same_network(city, tmp_path, monkeypatch, side):
    edges = range(0, SIDE + 1, side)
    tiles = written(tmp_path / "tiles", city, cut(edges, edges, overlap=8))
    decoded = vectorize(tiles)
    monkeypatch.setattr(rasters, "_MOST_DECODED", 0)
    made = vectorize(tiles)
    assert shapely.equals_exact(made.lines, decoded.lines).all()
    assert np.array_equal(made.speed_mph, decoded.speed_mph)


def cut(rows, columns, overlap=0):
    """Return the windows of a grid, each grown by an overlap."""
    return [
        (max(a - overlap, 0), max(c - overlap, 0), min(b + overlap, SIDE), min(d + overlap, SIDE))
        for a, b in pairwise(rows)
        for c, d in pairwise(columns)
    ]


CUTS = {
    "even": ((0, 200, 400, 600),) * 2,
    "odd": ((0, 137, 290, 451, 600),) * 2,
    "tiny": (TINY, TINY),
    "at junctions": ((0, 106, 297, 455, 600), (0, 112, 200, 305, 502, 600)),
    "at bridges": ((0, 86, 166, 290, 388, 600), (0, 114, 303, 385, 503, 600)),
    "along roads": ((0, 114, 122, 295, 600), (0, 110, 305, 600)),
}


@pytest.mark.parametrize(
    ("cuts", "overlap"), [*((cuts, 0) for cuts in CUTS), ("odd", 23), ("along roads", 23)]
)
def test_tiles_have_the_network_of_the_whole(tmp_path, city, whole, cuts, overlap):
    made = vectorize(written(tmp_path / "tiles", city, cut(*CUTS[cuts], overlap)))
    assert degree_counts(made) == degree_counts(whole)
    assert made.length_m.sum() == pytest.approx(whole.length_m.sum(), rel=5e-4)
    for weight in ("length", "time"):
        assert apls(whole, made, weight=weight).score >= 0.999


def test_tiles_off_the_grid_have_the_same_roads(tmp_path, city, whole):
    made = vectorize(written(tmp_path / "tiles", city, cut(TINY, TINY), off=0.4))
    assert degree_counts(made) == degree_counts(whole)
    assert apls(whole, made).score >= 0.98


def test_the_number_of_workers_does_not_change_the_network(tmp_path, city):
    apart = [(0, 0, 150, 150), (0, 300, 150, 450), (300, 0, 450, 150), (300, 150, 450, 300)]
    paths = written(tmp_path / "tiles", city, apart)
    one, three = (vectorize(paths, workers=workers) for workers in (1, 3))
    assert shapely.to_wkb(one.lines).tolist() == shapely.to_wkb(three.lines).tolist()
    assert np.array_equal(one.speed_mph, three.speed_mph)


def test_a_road_continues_across_a_gap_of_pixels_between_tiles(tmp_path):
    road = drawn([[(-10, -45), (310, -55)]], (100, 300), width=5)
    near = vectorize(written(tmp_path / "a", road, [(0, 0, 100, 100), (0, 104, 100, 300)]))
    assert degree_counts(near) == {1: 2}
    far = vectorize(written(tmp_path / "b", road, [(0, 0, 100, 60), (0, 104, 100, 300)]))
    assert degree_counts(far) == {1: 4}


def test_roads_end_at_the_border_of_missing_tiles(tmp_path):
    lines = [[(-10, -150), (310, -150)], [(150, 10), (150, -310)]]
    mask = drawn(lines, (300, 300), width=5)
    windows = [(0, 0, 100, 100), (0, 100, 100, 200), (100, 0, 200, 100), (100, 200, 200, 300)]
    windows += [(100, 100, 200, 200), (200, 0, 300, 100), (200, 200, 300, 300)]
    made = vectorize(written(tmp_path / "tiles", mask, windows), reading=RasterOptions(kind="mask"))
    truth = network(
        [(400_000, 5_999_850), (400_150, 5_999_850)],
        [(400_300, 5_999_850), (400_150, 5_999_850)],
        [(400_150, 6_000_000), (400_150, 5_999_850)],
        [(400_150, 5_999_800), (400_150, 5_999_850)],
        crs="EPSG:32637",
    )
    assert degree_counts(made) == {1: 4, 4: 1}
    assert apls(truth, made).score > 0.99
    assert made.length_m.sum() == pytest.approx(500, abs=2)


def test_tiles_with_one_speed_are_speeds_among_others(tmp_path, city):
    """A tile with a single street looks like a mask by itself."""
    made = vectorize(written(tmp_path / "tiles", city, [(60, 0, 140, 90), (60, 90, 140, 330)]))
    assert np.isfinite(made.speed_mph).all()


def test_an_empty_raster_among_others(tmp_path):
    road = drawn([[(20, -50), (180, -50)]], (300, 200), width=5)
    windows = [(200, 0, 300, 200), (0, 0, 100, 200), (0, 100, 100, 200)]
    paths = written(tmp_path / "tiles", road, windows)
    write_raster(paths[0].with_name("far.tif"), road[200:], transform=Affine(1, 0, 9e5, 0, -1, 6e6))
    assert degree_counts(vectorize(paths, reading=RasterOptions(kind="mask"))) == {1: 2}
    empty = [paths[0], paths[0].with_name("far.tif")]
    assert not len(vectorize(empty, reading=RasterOptions(kind="mask")).lines)


@pytest.mark.parametrize("kind", ["mask", "probability"])
@pytest.mark.parametrize("nodata", [None, 255])
def test_tiles_of_other_grids_are_resampled_onto_the_first(tmp_path, kind, nodata):
    """The right half has pixels of 0.7 m, is turned by 3 degrees, and has no data around it."""
    lines = [[(-10, -150), (610, -140)], [(150, 10), (150, -310)], [(450, 10), (440, -310)]]
    value = 200 if kind == "probability" else 1
    city = drawn(lines, (300, 600), width=8, value=value)
    whole = written(tmp_path / "whole", city, [(0, 0, 300, 600)])
    left = written(tmp_path / "left", city, [(0, 0, 300, 300)])
    turned = Affine(1, 0, 400_290, 0, -1, 6_000_020) * Affine.rotation(3) * Affine.scale(0.7)
    shape = (520, 480)
    right = np.full(shape, 0 if nodata is None else nodata, np.uint8)
    with rasterio.open(whole[0]) as file:
        resample(rasterio.band(file, 1), right, dst_transform=turned, dst_crs=file.crs,
                 dst_nodata=nodata, init_dest_nodata=nodata is not None)  # fmt: skip
    write_raster(tmp_path / "right.tif", right, transform=turned, nodata=nodata)
    made = vectorize([*left, tmp_path / "right.tif"], reading=RasterOptions(kind=kind))
    expected = vectorize(whole, reading=RasterOptions(kind=kind))
    assert apls(expected, made).score > 0.98
    assert made.length_m.sum() == pytest.approx(expected.length_m.sum(), rel=0.02)


def test_touching_tiles_whose_pixels_mean_different_things_are_refused(tmp_path):
    road = drawn([[(-10, -50), (210, -50)]], (100, 200), width=5)
    mask, speeds = written(tmp_path / "a", road, [(0, 0, 100, 100), (0, 100, 100, 200)])
    both = np.where(road > 0, 30, 0).astype(np.uint8)
    both[:9] = np.where(road[:9] > 0, 30, 55)
    with rasterio.open(speeds, "r+") as file:
        file.write(both[:, 100:], 1)
        file.set_band_description(1, "road")
    with pytest.raises(UsageError, match=r"000.tif and .*001.tif touch, but their pixels mean"):
        vectorize([mask, speeds])
