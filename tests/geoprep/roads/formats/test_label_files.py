"""Label files read as networks, as for APLS."""

import numpy as np
import pytest
import shapely
from helpers.roads import degree_counts, lengths

from geoprep.roads.formats.lines import joined, network_of_labels
from geoprep.roads.names import scene_key
from geoprep.roads.network import RoadGraph

LABEL = "SN3_roads_train_AOI_2_Vegas_geojson_roads_speed_img{}.geojson"


def made(*lines, speeds=None, **options) -> RoadGraph:
    shapes = np.array([shapely.LineString(line) for line in lines], object)
    speed = np.full(len(lines), 30.0) if speeds is None else np.array(speeds, float)
    return joined(network_of_labels(shapes, speed, None, **options))


RING = [(0, 0), (40, 0), (40, 40), (0, 40), (0, 0)]
LENS = [(0, 0), (20, 20), (40, 0)], [(0, 0), (20, -20), (40, 0)]


@pytest.mark.parametrize(
    ("lines", "long", "degrees"),
    [
        ([[(0, 0), (50, 0), (100, 0)], [(50, 0), (50, 40)]], [40, 50, 50], {1: 3, 3: 1}),
        ([[(0, 0), (100, 0)], [(50, -50), (50, 50)]], [100, 100], {1: 4}),
        ([[(0, 0), (50, 0)], [(50, 1e-9), (100, 0)]], [100], {1: 2}),
        ([[(0, 0), (0, 0), (50, 0), (50, 0)]], [50], {1: 2}),
        ([RING], [160], {2: 1}),
        ([RING, [(0, 0), (-30, 0)]], [30, 160], {1: 1, 3: 1}),
        ([*LENS, [(0, 0), (-9, 0)], [(40, 0), (49, 0)]], [9, 9, *[56.568542] * 2], {1: 2, 3: 2}),
        ([], [], {}),
    ],
    ids=["shared point", "bridge", "nearly equal", "repeated", "ring", "loop", "parallel", "none"],
)
def test_lines_join_where_they_share_a_point(lines, long, degrees):
    found = made(*lines)
    assert (lengths(found), degree_counts(found)) == (long, degrees)


def test_segments_are_merged_and_keep_their_travel_time():
    whole = made([(0, 0), (60, 0)], [(60, 0), (60, 30), (90, 30)], speeds=[20, 60])
    assert lengths(whole) == [120]
    assert list(whole.lines[0].coords) in (
        [(0, 0), (60, 0), (60, 30), (90, 30)],
        [(90, 30), (60, 30), (60, 0), (0, 0)],
    )
    assert whole.speed_mph[0] == pytest.approx(30)


def test_a_segment_of_two_lines_is_one_edge_with_the_higher_speed():
    shared = made(
        [(0, 0), (50, 0), (80, 0)], [(0, 9), (0, 0), (50, 0), (50, 9)], [(80, 0), (80, 9)],
        speeds=[20, 40, np.nan],
    )  # fmt: skip
    assert lengths(shared) == [9, 39, 59]
    assert shared.speed_mph[shared.length_m == 59] == pytest.approx(40)


def test_components_without_a_path_of_five_metres_are_left_out():
    road = [(0, 0), (100, 0)]
    assert lengths(made(road, [(0, 50), (4.9, 50)])) == [100]
    assert lengths(made(road, [(0, 50), (5.1, 50)])) == [5.1, 100]
    wound = [(0, 50), (3, 50), (3, 53), (0, 53)]  # a path of 9 m in a box of 3 m
    assert lengths(made(road, wound)) == [9, 100]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("AOI_7_Moscow_chip996", "aoi_7_moscow_chip996"),
        ("SN5_roads_test_public_AOI_9_San_Juan_chip98", "aoi_9_san_juan_chip98"),
        ("SN5_roads_train_AOI_7_Moscow_PS-MS_chip0.tif", "aoi_7_moscow_chip0"),
        (LABEL.format(0), "aoi_2_vegas_img0"),
        ("SN3_roads_train_AOI_4_Shanghai_geojson_roads_img12.geojson", "aoi_4_shanghai_img12"),
        ("spacenetroads_AOI_2_Vegas_img10.geojson", "aoi_2_vegas_img10"),
        ("RGB-PanSharpen_AOI_2_Vegas_img10.tif", "aoi_2_vegas_img10"),
        ("AOI_2_Vegas_img10_speed.geojson", "aoi_2_vegas_img10"),
        ("My Town.v2.gpkg", "my town.v2"),
    ],
)
def test_all_names_of_a_scene_have_one_key(name, key):
    assert scene_key(name) == key
