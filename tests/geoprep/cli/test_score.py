"""The command `geoprep score`."""

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.towns import make_town, write_labels

from geoprep.roads.formats.files import read_labels, write_network


@pytest.fixture
def town(tmp_path):
    """Three scenes side by side, the last without roads, and one network over all of them."""
    return make_town(tmp_path)


@pytest.fixture
def given(town):
    """Return the options that score the network."""
    return "--truth", town / "labels", "--proposal", town / "city.gpkg"


@pytest.fixture
def scores_of(geoprep):
    """Return a function that returns scores as JSON."""
    return lambda *options: json.loads(geoprep("score", *options, "--json").out)


def test_score_prints_a_table_or_json(geoprep, given, scores_of):
    table = geoprep("score", *given).out
    assert "aoi_7_moscow_chip10" in table
    assert "mean of 2" in table
    document = scores_of(*given, "--snap", "5")
    assert document["settings"]["snap_m"] == 5
    assert document["mean"]["apls"] == pytest.approx(1, abs=1e-4)
    assert [scene["apls"] is None for scene in document["scenes"]] == [False, False, True]


def test_quiet_prints_the_mean_and_no_scene(geoprep, given):
    shown = geoprep("score", *given, "--quiet").out
    assert "mean of 2" in shown
    assert "aoi_7_moscow_chip2 " not in shown


def test_scenes_with_unknown_speeds_are_left_out_of_the_mean_of_times(geoprep, town, scores_of):
    table = town / "submission.csv"
    table.write_text(
        "ImageId,WKT_Pix,length_m,travel_time_s\n"
        'AOI_7_Moscow_chip2,"LINESTRING (10 150, 150 150, 290 150)",280,25\n'
        'AOI_7_Moscow_chip2,"LINESTRING (150 150, 150 20)",130,12\n'
        'AOI_7_Moscow_chip10,"LINESTRING (10 150, 290 150)",280,\n'
    )
    given = ("--truth", town / "labels", "--proposal", table, "--images", town / "images")
    shown = geoprep("score", *given, "--quiet").out
    assert "time: mean of 1 scene whose speeds are known" in shown
    document = scores_of(*given)
    assert document["scenes_in_mean"] == {"apls": 2, "apls_time": 1}
    timed = next(s for s in document["scenes"] if s["scene"] == "aoi_7_moscow_chip2")
    assert document["mean"]["apls_time"] == timed["apls_time"]["score"] > 0.5


def test_a_label_with_coordinates_that_are_not_finite_is_refused(geoprep, town):
    """Left out it would make another truth."""
    label = town / "labels" / "AOI_7_Moscow_chip2.geojson"
    document = json.loads(label.read_text())
    document["features"][1]["geometry"]["coordinates"][0][0] = float("nan")
    label.write_text(json.dumps(document))
    other = label.with_name("AOI_7_Moscow_chip10.geojson")
    refused = geoprep("score", "--truth", label, "--proposal", other, status=1).err
    assert "chip2.geojson: 1 road with coordinates that are missing, not finite" in refused


def test_without_images_the_output_says_what_does_not_count(geoprep, town, given):
    shown = geoprep("score", *given).out
    assert "2 scenes scored within the bounding box of the ground truth" in shown
    assert "Give --images" in shown
    assert "bounding box" not in geoprep("score", *given, "--images", town / "images").out


def test_a_store_gives_the_borders_of_scenes_as_its_images_do(geoprep, town, given, scores_of):
    store = town / "moscow.zarr"
    geoprep("build-zarr", "--images", town / "images" / "*.tif", "--out", store, "--quiet")
    by_store, by_images, by_none = (
        scores_of(*given, *more)
        for more in (("--images", store), ("--images", town / "images"), ())
    )
    assert by_store["mean"] == pytest.approx(by_images["mean"], abs=1e-6)
    assert by_none["mean"]["apls"] > by_images["mean"]["apls"] + 0.01  # a false road is not seen
    assert [one["border"] for one in by_store["scenes"]] == ["image", "image", "none"]
    assert [one["border"] for one in by_none["scenes"]] == ["ground truth", "ground truth", "none"]


def test_a_note_on_many_scenes_is_one_line(geoprep, town, given):
    for number in range(20, 25):
        path = town / "labels" / f"AOI_7_Moscow_chip{number}.geojson"
        path.write_bytes((town / "labels" / "AOI_7_Moscow_chip11.geojson").read_bytes())
    assert "6 scenes: no roads in the ground truth" in geoprep("score", *given).out


def test_speed_options_must_fit_together(geoprep, given):
    refused = geoprep("score", *given, "--speed-unit", "kmh", status=2).err
    assert "--speed-unit is the unit of --speed-field" in refused
    both = ("--speed-field", "v", "--speed-from", "attributes")
    refused = geoprep("score", *given, *both, status=2).err
    assert "--speed-field contradicts --speed-from attributes" in refused


ROAD = [(0, 0), (200, 0)], [(200, 0), (200, 150)]


@pytest.mark.parametrize(
    ("options", "mph"),
    [((), 25), (("--speed-from", "field"), 40), (("--speed-from", "auto"), 40),
     (("--speed-field", "maxspeed", "--speed-unit", "kmh"), 31.0686)],
)  # fmt: skip
def test_speeds_of_labels_come_from_where_the_options_say(tmp_path, scores_of, options, mph):
    """Ground truth at 25 mph by its attributes, 40 mph by one field, 50 km/h by another."""
    label = write_labels(tmp_path / "a.geojson", *ROAD, inferred_speed_mph=40, maxspeed=50)
    same = tmp_path / "roads.gpkg"
    network, _ = read_labels(label)
    write_network(replace(network, speed_mph=np.full(len(network.ends), mph)), same)
    (one,) = scores_of("--truth", label, "--proposal", same, *options)["scenes"]
    assert one["apls_time"]["score"] == pytest.approx(1, abs=1e-3)


def test_an_ignored_speed_field_is_noted(geoprep, tmp_path, scores_of):
    label = write_labels(tmp_path / "a.geojson", *ROAD, inferred_speed_mph=40)
    given = ("--truth", label, "--proposal", label, "--quiet")
    note = "field inferred_speed_mph ignored (see --speed-from)"
    assert note in " ".join(geoprep("score", *given).out.split())
    assert "ignored" not in geoprep("score", *given, "--speed-from", "field").out
    (one,) = scores_of(*given, "--speed-from", "auto")["scenes"]
    assert one["note"] == ""


def test_scenes_of_a_split_alone_are_scored_and_the_mean_says_which_it_lacks(
    geoprep, town, given, scores_of
):
    store, listed = town / "listed.zarr", town / "splits.csv"
    listed.write_text("scene,split\n*chip2,test\n*,train\n")
    build = ("--images", town / "images" / "*.tif", "--split-file", listed, "--out", store)
    geoprep("build-zarr", *build, "--quiet")
    chosen = scores_of(*given, "--images", store, "--split", "test")
    assert [scene["scene"] for scene in chosen["scenes"]] == ["aoi_7_moscow_chip2"]
    lacking = [scene["scene"] for scene in scores_of(*given)["scenes"] if scene["apls"] is None]
    shown = geoprep("score", *given).out
    assert f"not in the mean: {', '.join(lacking)}, of which neither side has roads" in shown
