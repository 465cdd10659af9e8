"""Scores scene by scene, from files as a user has them; the commands ``score`` and ``route``."""

import json

import numpy as np
import pytest
import rasterio
from affine import Affine
from click.testing import CliRunner

from geoprep.cli.commands import cli
from geoprep.crs import LONLAT, transformer
from geoprep.errors import SourceError, UsageError
from geoprep.roads.formats import read_network, write_network
from geoprep.roads.network import in_crs
from geoprep.roads.reading import read_labels
from geoprep.roads.scoring import ScoreSettings, mean_scores, pair_scenes, score_scenes

CRS = "EPSG:32637"
CORNER = 400_000, 6_178_000
SIDE = 300


def write_labels(path, *lines):
    """Write roads, given in metres from the corner, as a label file."""
    to_degrees = transformer(CRS, LONLAT)
    features = [
        {
            "type": "Feature",
            "properties": {"highway": "residential", "lanes": "1", "surface": "paved"},
            "geometry": {
                "type": "LineString",
                "coordinates": [
                    to_degrees.transform(CORNER[0] + x, CORNER[1] + y) for x, y in line
                ],
            },
        }
        for line in lines
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return path


def write_image(path, column):
    path.parent.mkdir(exist_ok=True)
    transform = Affine(1, 0, CORNER[0] + SIDE * column, 0, -1, CORNER[1] + SIDE)
    profile = {"width": SIDE, "height": SIDE, "count": 1, "dtype": "uint8", "crs": CRS}
    with rasterio.open(path, "w", driver="GTiff", transform=transform, **profile) as image:
        image.write(np.ones((1, SIDE, SIDE), np.uint8))


@pytest.fixture
def town(tmp_path):
    """Three scenes side by side, the last without roads, and one network over all of them."""
    main = [(10, 150), (150, 150), (290, 150)], [(150, 150), (150, 280)]
    east = [[(x + SIDE, y) for x, y in line] for line in main]
    write_labels(tmp_path / "labels" / "AOI_7_Moscow_chip2.geojson", *main)
    write_labels(tmp_path / "labels" / "AOI_7_Moscow_chip10.geojson", *east)
    write_labels(tmp_path / "labels" / "AOI_7_Moscow_chip11.geojson")
    for column, number in ((0, 2), (1, 10), (2, 11)):
        name = f"SN5_roads_train_AOI_7_Moscow_PS-RGB_chip{number}.tif"
        write_image(tmp_path / "images" / name, column)
    # All roads, and one that nobody labelled along the border of the first scene.
    city = write_labels(
        tmp_path / "all.geojson",
        [(10, 150), (150, 150), (450, 150), (590, 150)],
        [(150, 150), (150, 280)],
        [(450, 150), (450, 280)],
        [(5, 5), (295, 5)],
    )
    write_network(read_labels(city, crs=CRS), tmp_path / "city.gpkg")
    return tmp_path


def scored(town, proposal, **options):
    pairs = pair_scenes(town / "labels", town / proposal, **options)
    return {one.scene: one for one in score_scenes(pairs, ScoreSettings())}


def test_every_scene_gets_its_part_of_a_city(town):
    found = scored(town, "city.gpkg")
    assert list(found) == [f"aoi_7_moscow_chip{n}" for n in (2, 10, 11)]
    # Within the box about the labelled roads, everything is right.
    for number in (2, 10):
        assert found[f"aoi_7_moscow_chip{number}"].apls.score == pytest.approx(1, abs=1e-4)
        assert found[f"aoi_7_moscow_chip{number}"].apls_time.score == pytest.approx(1, abs=1e-4)


def test_a_city_in_another_zone_is_moved_to_the_scenes(town):
    write_network(in_crs(read_network(town / "city.gpkg"), "EPSG:32636"), town / "next.gpkg")
    found = scored(town, "next.gpkg", images=town / "images")
    same = scored(town, "city.gpkg", images=town / "images")
    for scene, one in found.items():
        if one.apls:
            # The reverse has a control point more where a road of 150.0 m is one of 150.00001.
            ways, ways_there = one.apls.truth_to_proposal, same[scene].apls.truth_to_proposal
            assert ways == pytest.approx(ways_there, abs=1e-3)
            assert one.proposal_km == pytest.approx(same[scene].proposal_km, rel=1e-3)


def test_images_say_where_scenes_end(town):
    found = scored(town, "city.gpkg", images=town / "images")
    first, second = found["aoi_7_moscow_chip2"], found["aoi_7_moscow_chip10"]
    # Roads reach to the borders, 10 m beyond the labels; one is invented.
    assert first.proposal_km == pytest.approx(0.29 + 0.13 + 0.29, abs=0.002)
    assert first.apls.truth_to_proposal == pytest.approx(1, abs=1e-4)
    assert first.apls.proposal_to_truth < 0.9
    assert second.apls.proposal_to_truth > first.apls.proposal_to_truth
    assert first.topo.recall == 1


def test_scenes_without_roads_are_in_no_mean(town):
    found = scored(town, "city.gpkg")
    empty = found["aoi_7_moscow_chip11"]
    assert (empty.apls, empty.apls_time, empty.topo) == (None, None, None)
    assert "no roads in the ground truth" in empty.note
    mean = mean_scores(list(found.values()))
    assert mean["apls"] == pytest.approx(1, abs=1e-4)
    nothing = mean_scores([empty])
    assert set(nothing.values()) == {None}


def test_scenes_meet_by_name_and_those_without_a_proposal_count_nothing(town):
    table = town / "submission.csv"
    table.write_text(
        "ImageId,WKT_Pix\n"
        'SN5_roads_train_AOI_7_Moscow_chip2,"LINESTRING (10 150, 150 150, 290 150)"\n'
        'SN5_roads_train_AOI_7_Moscow_chip2,"LINESTRING (150 150, 150 20)"\n'
        "SN5_roads_train_AOI_7_Moscow_chip11,LINESTRING EMPTY\n"
    )
    found = scored(town, "submission.csv", images=town / "images")
    assert found["aoi_7_moscow_chip2"].apls.score == pytest.approx(1, abs=1e-4)
    assert found["aoi_7_moscow_chip2"].apls_time is None
    assert found["aoi_7_moscow_chip10"].apls.score == 0
    assert found["aoi_7_moscow_chip10"].note == "no proposal"
    mean = mean_scores(list(found.values()))
    assert mean["apls"] == pytest.approx(0.5, abs=1e-4)
    assert mean["apls_time"] == 0  # of the scene without a proposal: of the other nobody knows


def test_two_single_files_are_one_scene_and_nothing_is_cut(town):
    truth = town / "labels" / "AOI_7_Moscow_chip2.geojson"
    (pair,) = pair_scenes(truth, town / "city.gpkg")
    assert pair.proposal.length_m.sum() == pytest.approx(580 + 2 * 130 + 290, rel=1e-3)


def test_a_truth_that_lies_elsewhere_is_said(town):
    away = [[(x + 5000, y) for x, y in line] for line in ([(10, 150), (290, 150)],)]
    far = write_labels(town / "far" / "a.geojson", *away)
    here = town / "labels" / "AOI_7_Moscow_chip2.geojson"
    (one,) = score_scenes(pair_scenes(here, far), ScoreSettings())
    assert one.note == "ground truth and proposal are 4.7 km apart"
    (same,) = score_scenes(pair_scenes(here, here), ScoreSettings())
    assert same.note == ""


def test_what_cannot_be_compared_is_said(town):
    labels = town / "labels"
    with pytest.raises(SourceError, match=r"gone\.gpkg: no such file"):
        pair_scenes(labels, town / "gone.gpkg")
    (town / "empty").mkdir()
    with pytest.raises(SourceError, match="contains no road files"):
        pair_scenes(labels, town / "empty")
    with pytest.raises(SourceError, match="no such folder or image"):
        pair_scenes(labels, town / "city.gpkg", images=town / "gone")
    write_labels(town / "others" / "Oslo.geojson", [(0, 0), (90, 0)])
    with pytest.raises(
        UsageError, match=r"no scene of .*labels is in .*others\..* the second oslo"
    ):
        pair_scenes(labels, town / "others")
    write_labels(labels / "AOI_7_Moscow_chip2_copy.geojson", [(0, 0), (90, 0)])
    with pytest.raises(UsageError, match="both of scene aoi_7_moscow_chip2"):
        pair_scenes(labels, town / "city.gpkg")
    table = town / "pixels.csv"
    table.write_text('ImageId,WKT_Pix\nAOI_7_Moscow_chip10,"LINESTRING (0 0, 90 0)"\n')
    with pytest.raises(UsageError, match="is in pixels, the other is georeferenced"):
        pair_scenes(labels / "AOI_7_Moscow_chip10.geojson", table, pixel_size_m=1)


def test_a_damaged_network_is_not_read_as_labels(town):
    out = town / "city.geojson"
    write_network(read_network(town / "city.gpkg"), out)
    document = json.loads(out.read_text())
    document["features"][0]["geometry"]["coordinates"][0][0] = float("nan")
    out.write_text(json.dumps(document))
    with pytest.raises(SourceError, match=r"city\.geojson: "):
        pair_scenes(town / "labels", out)


def run(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)), standalone_mode=False)


def test_score_prints_a_table_or_json(town):
    options = ("--truth", town / "labels", "--proposal", town / "city.gpkg", "--quiet")
    table = run("score", *options)
    assert table.exception is None
    assert "aoi_7_moscow_chip10" in table.output
    assert "mean of 2" in table.output
    document = json.loads(run("score", *options, "--json", "--snap", "5").output)
    assert document["settings"]["snap_m"] == 5
    assert document["mean"]["apls"] == pytest.approx(1, abs=1e-4)
    assert [scene["apls"] is None for scene in document["scenes"]] == [False, False, True]


def test_score_in_pixels(town):
    table = town / "pixels.csv"
    table.write_text('ImageId,WKT_Pix\nmap,"LINESTRING (0 0, 90 0)"\n')
    options = ("--truth", table, "--proposal", table, "--json")
    assert json.loads(run("score", *options, "--pixel-size", "0.5").output)["mean"]["apls"] == 1
    assert "are in pixels" in str(run("score", *options).exception)


def test_route_writes_a_line(town):
    to_degrees = transformer(CRS, LONLAT)
    places = [
        "{:.7f},{:.7f}".format(*to_degrees.transform(CORNER[0] + x, CORNER[1] + y))
        for x, y in ((10, 152), (150, 280))
    ]
    out = town / "route.geojson"
    done = run("route", town / "city.gpkg", "--from", places[0], "--to", places[1], "--out", out)
    assert done.exception is None
    assert "0.270 km, 0 min 24 s" in done.output
    (feature,) = json.loads(out.read_text())["features"]
    assert feature["properties"]["length_m"] == pytest.approx(270, abs=0.1)
    layer = run(
        "route", town / "city.gpkg", "--from", places[0], "--to", places[1], "--out", "x.gpkg"
    )
    assert "x.gpkg: a route is written as GeoJSON" in str(layer.exception)
    wrong = run("route", town / "city.gpkg", "--from", "north", "--to", places[1], "--out", out)
    assert "--from north: write longitude and latitude" in str(wrong.exception)


def test_pair_scenes_unknown_speed_are_left_out_of_the_mean_of_times_and_counted(town):
    table = town / "submission.csv"
    table.write_text(
        "ImageId,WKT_Pix,length_m,travel_time_s\n"
        'AOI_7_Moscow_chip2,"LINESTRING (10 150, 150 150, 290 150)",280,25\n'
        'AOI_7_Moscow_chip2,"LINESTRING (150 150, 150 20)",130,12\n'
        'AOI_7_Moscow_chip10,"LINESTRING (10 150, 290 150)",280,\n'
    )
    given = ["--truth", str(town / "labels"), "--proposal", str(table)]
    given += ["--images", str(town / "images")]
    shown = CliRunner().invoke(cli, ["score", *given, "--quiet"])
    assert "time: mean of the 1 scenes whose speeds are known" in shown.output
    told = json.loads(CliRunner().invoke(cli, ["score", *given, "--json"]).output)
    assert told["scenes_in_mean"] == {"apls": 2, "apls_time": 1}
    known = next(s for s in told["scenes"] if s["scene"] == "aoi_7_moscow_chip2")
    assert told["mean"]["apls_time"] == known["apls_time"]["score"] > 0.5


def test_a_corrupt_label_is_named_with_a_fix_for_scores(town):
    (town / "bad.geojson").write_text('{"type": "FeatureCollection", "features": [{')
    given = ["--truth", str(town / "bad.geojson"), "--proposal", str(town / "labels")]
    shown = CliRunner().invoke(cli, ["score", *given])
    assert "fetch the file again, or leave it out" in str(shown.exception)
    assert "build" not in str(shown.exception)


def test_a_label_with_a_place_that_is_no_number_is_refused(town):
    """Left out it would make another truth."""
    label = town / "labels" / "AOI_7_Moscow_chip2.geojson"
    document = json.loads(label.read_text())
    document["features"][1]["geometry"]["coordinates"][0][0] = float("nan")
    label.write_text(json.dumps(document))
    given = [
        "--truth",
        str(label),
        "--proposal",
        str(town / "labels" / "AOI_7_Moscow_chip10.geojson"),
    ]
    shown = CliRunner().invoke(cli, ["score", *given])
    assert "chip2.geojson: 1 roads have coordinates that are not finite" in str(shown.exception)
