"""Ground truth and proposal of scenes, and their scores."""

import shutil
from dataclasses import replace

import geopandas as gpd
import numpy as np
import pytest
import shapely
from helpers.stores import write_store
from helpers.towns import make_town, write_labels

from geoprep.errors import SourceError, UsageError
from geoprep.roads.formats.files import read_network, write_network
from geoprep.roads.network import in_crs
from geoprep.roads.options import ScoreOptions
from geoprep.roads.scoring.pairs import pair_scenes
from geoprep.roads.scoring.scenes import mean_scores, score_scenes


@pytest.fixture(scope="module")
def made_town(tmp_path_factory):
    return make_town(tmp_path_factory.mktemp("town"))


@pytest.fixture
def town(made_town, tmp_path):
    """Three scenes side by side, the last without roads, and one network over all of them."""
    return shutil.copytree(made_town, tmp_path / "town")


def scored(town, proposal, **options):
    pairs = pair_scenes(town / "labels", town / proposal, **options)
    return {one.scene: one for one in score_scenes(pairs, ScoreOptions())}


def test_every_scene_is_scored_on_its_part_of_a_city(town):
    found = scored(town, "city.gpkg")
    assert list(found) == [f"aoi_7_moscow_chip{n}" for n in (2, 10, 11)]
    # Within the box about the labelled roads, everything is right.
    for number in (2, 10):
        assert found[f"aoi_7_moscow_chip{number}"].apls.score == pytest.approx(1, abs=1e-4)
        assert found[f"aoi_7_moscow_chip{number}"].apls_time.score == pytest.approx(1, abs=1e-4)


def test_a_city_in_another_zone_is_reprojected(town):
    write_network(in_crs(read_network(town / "city.gpkg"), "EPSG:32636"), town / "next.gpkg")
    found = scored(town, "next.gpkg", images=town / "images")
    same = scored(town, "city.gpkg", images=town / "images")
    for scene, one in found.items():
        if one.apls:
            # The reverse has a control point more where a road of 150.0 m is one of 150.00001.
            ways, ways_there = one.apls.truth_to_proposal, same[scene].apls.truth_to_proposal
            assert ways == pytest.approx(ways_there, abs=1e-3)
            assert one.proposal_km == pytest.approx(same[scene].proposal_km, rel=1e-3)


def test_progress_rises_within_scenes(town):
    """A city is one scene, whose score may take minutes."""
    shares = []
    pairs = pair_scenes(town / "labels", town / "city.gpkg")
    score_scenes(pairs, ScoreOptions(), advance=lambda *counts: shares.append(counts))
    assert shares == sorted(shares)
    assert shares[-1] == (3000, 3000)
    assert {done // 1000 for done, _ in shares if done % 1000} == {0, 1}


def test_images_set_the_borders_of_scenes(town):
    found = scored(town, "city.gpkg", images=town / "images")
    first, second = found["aoi_7_moscow_chip2"], found["aoi_7_moscow_chip10"]
    # Roads reach to the borders, 10 m beyond the labels; one is invented.
    assert first.proposal_km == pytest.approx(0.29 + 0.13 + 0.29, abs=0.002)
    assert first.apls.truth_to_proposal == pytest.approx(1, abs=1e-4)
    assert first.apls.proposal_to_truth < 0.9
    assert second.apls.proposal_to_truth > first.apls.proposal_to_truth
    assert first.topo.recall == 1


def test_scenes_without_roads_are_left_out_of_means(town):
    found = scored(town, "city.gpkg")
    empty = found["aoi_7_moscow_chip11"]
    assert (empty.apls, empty.apls_time, empty.topo) == (None, None, None)
    assert "no roads in the ground truth" in empty.note
    mean = mean_scores(list(found.values()))
    assert mean["apls"] == pytest.approx(1, abs=1e-4)
    nothing = mean_scores([empty])
    assert set(nothing.values()) == {None}


def test_scenes_are_matched_by_name_and_score_zero_without_a_proposal(town):
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
    assert mean["apls_time"] == 0  # of the scene without a proposal; the other has unknown speeds


def test_two_single_files_are_one_scene_and_are_not_clipped(town):
    truth = town / "labels" / "AOI_7_Moscow_chip2.geojson"
    (pair,) = pair_scenes(truth, town / "city.gpkg")
    assert pair.proposal.length_m.sum() == pytest.approx(580 + 2 * 130 + 290, rel=1e-3)


def test_a_distance_between_ground_truth_and_proposal_is_noted(town):
    far = write_labels(town / "far" / "a.geojson", [(5010, 150), (5290, 150)])
    here = town / "labels" / "AOI_7_Moscow_chip2.geojson"
    (one,) = score_scenes(pair_scenes(here, far), ScoreOptions())
    assert one.note == "ground truth and proposal are 4.7 km apart"
    (same,) = score_scenes(pair_scenes(here, here), ScoreOptions())
    assert same.note == ""


def test_errors_say_why_nothing_can_be_compared(town):
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
    out.write_text(out.read_text().replace("[ ", "[ NaN, ", 1))
    with pytest.raises(SourceError, match=r"city\.geojson: "):
        pair_scenes(town / "labels", out)


def without_shared_segments(source, target):
    """Write a label file without the segments that two of its lines share."""
    labels = gpd.read_file(source)
    xy, line = shapely.get_coordinates(labels.geometry, return_index=True)
    follows = line[1:] == line[:-1]
    ends = np.stack([xy[:-1], xy[1:]], axis=1)[follows]
    _, number, times = np.unique(
        np.sort(ends.view("c16"), axis=1), axis=0, return_inverse=True, return_counts=True
    )
    alone = times[number.reshape(-1)] == 1
    kept = labels.iloc[line[1:][follows][alone]]
    kept.set_geometry(shapely.linestrings(ends[alone]), crs=labels.crs).to_file(target)
    return target


def test_published_scores_of_real_graphs_stay(shared_data, tmp_path):
    """The reference program removes what two label lines share, in Vegas chip 0 one segment."""
    vegas = shared_data / "AOI_2_Vegas"
    label = "SN3_roads_train_AOI_2_Vegas_geojson_roads_speed_img{}.geojson"
    labels = vegas / "geojson_roads_speed"
    cut = without_shared_segments(labels / label.format(0), tmp_path / label.format(0))
    whole = labels / label.format(99)
    for truth, proposal, images, score, spacing in (
        (cut, "proposal_img0_wkt.csv", vegas / "PS-RGB", 0.72922, 50),
        (whole, "osm_img99.geojson", None, 0.78056, 50),
        (whole, "osm_img99.geojson", None, 0.73450, 0),
    ):
        pairs = pair_scenes(truth, shared_data / "apls" / proposal, images=images)
        options = ScoreOptions(control_point_spacing=spacing)
        (one,) = score_scenes(pairs, options)
        assert one.apls.score == pytest.approx(score, abs=1e-3)
        if truth == cut:
            assert one.apls.truth_to_proposal == pytest.approx(0.77730, abs=1e-3)
            assert one.apls.proposal_to_truth == pytest.approx(0.68674, abs=1e-3)


def test_a_network_always_has_its_own_speeds(town):
    """Also where it is ground truth, saved again as edges alone, or beside other options."""
    network = read_network(town / "city.gpkg")
    slow = replace(network, speed_mph=network.speed_mph / 2)
    for suffix in (".gpkg", ".geojson", ".shp"):
        path = town / f"slow{suffix}"
        table = gpd.GeoDataFrame(
            {"speed_mph": slow.speed_mph},
            geometry=[shapely.MultiLineString([line]) for line in slow.lines],
            crs=slow.crs,
        )
        table.to_crs("EPSG:4326").to_file(path, engine="pyogrio")
        (one,) = score_scenes(pair_scenes(town / "city.gpkg", path), ScoreOptions())
        assert one.apls.score == pytest.approx(1, abs=1e-3)
        assert one.apls_time.score == pytest.approx(0, abs=1e-3)  # every path takes twice as long


@pytest.mark.parametrize("suffix", [".gpkg", ".geojson", ".parquet"])
def test_a_folder_of_networks_in_any_format_is_matched_by_name(town, suffix):
    folder = town / "networks"
    folder.mkdir()
    write_network(read_network(town / "city.gpkg"), folder / f"AOI_7_Moscow_chip2{suffix}")
    found = scored(town, "networks", images=town / "images")
    assert found["aoi_7_moscow_chip2"].apls.truth_to_proposal == pytest.approx(1, abs=1e-4)
    assert found["aoi_7_moscow_chip10"].note == "no proposal"


def test_a_folder_is_matched_as_a_build_matches_labels_and_images(town):
    expected = scored(town, "city.gpkg", images=town / "images")
    for number in (2, 10, 11):
        label = town / "labels" / f"AOI_7_Moscow_chip{number}.geojson"
        label.rename(town / "labels" / f"quay{number}_roads.geojson")
        image = town / "images" / f"SN5_roads_train_AOI_7_Moscow_PS-RGB_chip{number}.tif"
        image.rename(town / "images" / f"quay{number}_sat.tif")
    found = scored(town, "city.gpkg", images=town / "images")
    assert list(found) == ["quay2_sat", "quay10_sat", "quay11_sat"]
    for one, same in zip(found.values(), expected.values(), strict=True):
        assert (one.apls, one.proposal_km, one.border) == (same.apls, same.proposal_km, same.border)


def test_a_table_in_pixels_cannot_be_georeferenced_by_a_store(town):
    store = write_store(town / "a.zarr")
    table = town / "submission.csv"
    table.write_text('ImageId,WKT_Pix\nAOI_0_Test_chip1,"LINESTRING (10 150, 290 150)"\n')
    with pytest.raises(UsageError, match="in pixels"):
        pair_scenes(town / "labels", table, images=store)


def test_one_image_and_one_scene_belong_together_whatever_their_names(town):
    image = next((town / "images").glob("*chip2.tif"))
    truth = town / "labels" / "AOI_7_Moscow_chip2.geojson"
    (named,) = pair_scenes(truth, town / "city.gpkg", images=image)
    other = shutil.copy(image, town / "photo.tif")
    label = shutil.copy(truth, town / "truth.geojson")
    (pair,) = pair_scenes(label, town / "city.gpkg", images=other)
    assert pair.border == named.border == "image"
    assert pair.proposal.length_m.sum() == pytest.approx(named.proposal.length_m.sum())


def test_images_of_no_scene_are_refused_with_both_names(town):
    truth = town / "labels" / "AOI_7_Moscow_chip2.geojson"
    other = next((town / "images").glob("*chip10.tif"))
    with pytest.raises(UsageError, match=r"chip2.geojson: no road .* its image of .*chip10.tif"):
        pair_scenes(truth, town / "city.gpkg", images=other)
    alone = town / "alone"
    alone.mkdir()
    shutil.copy(other, alone / "photo.tif")
    with pytest.raises(UsageError, match=r"no image of .*alone is of a scene of .*labels.*photo"):
        pair_scenes(town / "labels", town / "city.gpkg", images=alone)


def test_json_of_other_programs_in_a_folder_of_scenes_is_left_out(town):
    found = scored(town, "city.gpkg")
    (town / "labels" / "metadata.json").write_text('{"source": "survey", "year": 2019}')
    (town / "labels" / "list.json").write_text("[1, 2]")
    assert list(scored(town, "city.gpkg")) == list(found)
