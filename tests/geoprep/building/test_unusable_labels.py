"""A label that says nothing about its scene is no "no road": the scene fails and says why."""

import os
from pathlib import Path

import numpy as np
import pytest
from helpers.factory import PLACES, build_of, plan_of, row_of_scenes, texture, write_scene
from helpers.geojson import feature, write_features

from geoprep.building.run import build
from geoprep.errors import LabelError
from geoprep.executors.threads import Threads
from geoprep.sources.scene import Scene, SourceScenes
from geoprep.store.reader import StoreReader

SIDE = 96
SN3 = {"road_type": "5", "lane_numbe": "2", "paved": "1"}


def corner(place=PLACES["degrees"]):
    """Return the middle of a scene of SIDE pixels."""
    return place.transform * (SIDE / 2, SIDE / 2)


def line(*points, **properties):
    return feature(points, **SN3 | properties)


X, Y = corner()
STEP = 5e-5
HERE = line((X - STEP, Y), (X + STEP, Y))
POINT = feature([X, Y], "Point", **SN3)
COLLECTION = {"type": "GeometryCollection", "geometries": [POINT["geometry"]]}
SAYS_NOTHING = {
    "elsewhere": ([line((X + 1, Y), (X + 1.1, Y))], "intersects the scene; its lines are at lon"),
    "swapped": ([line((Y, X + 90), (Y, X + 90.1))], "intersects the scene"),
    "utm": ([line((664_000.0, 4_011_000.0), (664_100.0, 4_011_000.0))], "coordinates in degrees"),
    "points": ([POINT], "none of its 1 feature is a line or area"),
    "collection": ([POINT | {"geometry": COLLECTION}], "is a line or area"),
    "nan": ([line((X, float("nan")), (X, Y))], "is a line or area"),
    "neighbour": ([line((X + SIDE * 2.7e-6 / 2, Y), (X + 1, Y))], "intersects the scene"),
}


@pytest.fixture
def labelled(tmp_path):
    """Return a function that writes a scene whose label has these features."""

    def write(name, features, **members):
        scene = write_scene(tmp_path, name, texture(SIDE, SIDE))
        write_features(Path(scene.label), features, **members)
        return scene

    return write


@pytest.mark.parametrize("case", SAYS_NOTHING)
def test_a_label_with_nothing_in_the_scene_fails_it_alone(labelled, tmp_path, case):
    features, says = SAYS_NOTHING[case]
    scenes = [labelled(case, features), labelled("good", [HERE])]
    store = build_of(tmp_path / "a.zarr", scenes, tile=48, shard_tiles=3)
    assert store.scenes.status.tolist() == ["failed", "ok"]
    assert says in store.scenes.reason[0]
    assert f"{case}.geojson" in store.scenes.reason[0]
    assert (store.speed()[...][store.tiles.scene == 0] == 255).all()
    assert store.speed()[...][store.tiles.scene == 1].any()


@pytest.mark.parametrize(
    "feature",
    [line((X - STEP, Y), (X, Y, 7.0), (X + STEP, Y)), line((X - STEP, Y, 1.0), (X + STEP, Y))],
)
def test_points_with_and_without_a_height_in_one_line_are_a_road(labelled, tmp_path, feature):
    store = build_of(tmp_path / "a.zarr", [labelled("mixed", [feature]), labelled("flat", [HERE])])
    assert store.scenes.status.tolist() == ["ok", "ok"]
    np.testing.assert_array_equal(store.speed()[...][0], store.speed()[...][1])


def test_ways_that_no_car_takes_in_the_scene_mean_no_roads(labelled, tmp_path):
    way = HERE | {"properties": {"highway": "footway"}}
    store = build_of(tmp_path / "a.zarr", [labelled("park", [way])], schema="osm")
    assert store.scenes.status.tolist() == ["ok"]
    assert not store.speed()[...].any()


def test_the_tags_of_openstreetmap_asked_of_spacenet_3_fail_the_scene(labelled, tmp_path):
    scene = labelled("vegas", [HERE])
    store = build_of(tmp_path / "a.zarr", [scene], schema="osm")
    assert store.scenes.status.tolist() == ["failed"]
    assert "no field highway, fclass or class" in store.scenes.reason[0]


@pytest.mark.parametrize(
    "crs", ['LOCAL_CS["site",UNIT["metre",1]]', "IAU_2015:30100", "ESRI:104903"]
)
def test_a_crs_that_is_local_or_on_the_moon_fails_the_scene_alone(labelled, tmp_path, crs):
    member = {"type": "name", "properties": {"name": crs}}
    scenes = [labelled("moon", [HERE], crs=member), labelled("good", [HERE])]
    store = build_of(tmp_path / "a.zarr", scenes)
    assert store.scenes.status.tolist() == ["failed", "ok"]
    assert "has a CRS that is not on Earth" in store.scenes.reason[0]


def test_a_label_whose_name_is_no_utf8_fails_the_scene_alone(tmp_path):
    good = row_of_scenes(tmp_path, 2, SIDE)
    label = tmp_path / os.fsdecode(b"caf\xe9.gpkg")
    label.write_bytes(b"")
    store = build_of(tmp_path / "a.zarr", [*good, Scene("bad", good[0].image, str(label))])
    assert store.scenes.status.tolist() == ["ok", "ok", "failed"]
    assert "caf\\udce9.gpkg" in store.scenes.reason[2]


# One file of roads for all scenes


def build_with_roads(out, scenes, features):
    roads = write_features(out.with_name("roads.geojson"), features)
    bare = tuple(Scene(scene.id, scene.image, None) for scene in scenes)
    found = SourceScenes(bare, "x", shared_label=str(roads))
    plan = plan_of(found)
    return plan, build(plan, out, Threads(1))


def test_scenes_outside_the_one_file_of_roads_fail_and_the_others_are_built(tmp_path):
    """As where one chip's own label is taken for the roads of all."""
    scenes = row_of_scenes(tmp_path, 6, SIDE)
    west, width = PLACES["degrees"].transform.c, SIDE * 2.7e-6
    cut = line((west + 2 * width, Y), (west + 3 * width, Y))  # at the edge, as SpaceNet's are
    plan, summary = build_with_roads(tmp_path / "a.zarr", scenes, [cut])
    assert summary.statuses == {"failed": 5, "ok": 1}
    assert all("outside the extent of its features" in reason for _, _, reason in summary.issues)
    assert "is the label of all 6 scenes; those that fail outside its extent: 5" in plan.notes[0]
    assert plan.scenes[2].failure == ""
    store = StoreReader.open(tmp_path / "a.zarr")
    assert (store.speed()[...][0] == 255).all()


def test_a_scene_without_a_road_within_the_extent_of_the_one_file_has_none(tmp_path):
    scenes = row_of_scenes(tmp_path, 3, SIDE)
    width = SIDE * 2.7e-6
    features = [line((x, Y - width), (x, Y + width)) for x in (X, X + 2 * width)]
    plan, summary = build_with_roads(tmp_path / "a.zarr", scenes, features)
    assert summary.statuses == {"ok": 3}
    assert plan.notes == ()
    assert StoreReader.open(tmp_path / "a.zarr").tiles.road_fraction[1] == 0


def test_an_empty_file_for_all_scenes_means_no_roads(tmp_path):
    _, summary = build_with_roads(tmp_path / "a.zarr", row_of_scenes(tmp_path, 2, SIDE), [])
    assert summary.statuses == {"ok": 2}
    assert summary.road_fraction == 0


@pytest.mark.parametrize("case", sorted(SAYS_NOTHING.keys() - {"neighbour"}))
def test_one_file_that_covers_no_scene_stops_the_build(tmp_path, case):
    scenes = row_of_scenes(tmp_path, 2, SIDE)
    features, reason = SAYS_NOTHING[case]
    says = "Check its CRS" if "intersects the scene" in reason else reason
    with pytest.raises(LabelError, match=rf"roads.geojson covers none of the scenes: .*{says}"):
        build_with_roads(tmp_path / "a.zarr", scenes, features)
    assert not (tmp_path / "a.zarr").exists()


def test_features_of_the_one_file_that_are_no_roads_are_told_once(tmp_path):
    scenes = row_of_scenes(tmp_path, 1, SIDE)
    plan, _ = build_with_roads(tmp_path / "a.zarr", scenes, [HERE, POINT, POINT])
    told = [note for note in plan.notes if "left out" in note]  # the other is of the split
    assert told == [f"{tmp_path}/roads.geojson: features left out (geometry Point: 2)"]
