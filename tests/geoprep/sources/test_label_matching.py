"""Which label belongs to which image, where they are not called alike."""

from pathlib import Path

import pytest

from geoprep.errors import SourceError
from geoprep.sources.own_images import images_and_labels


def pairs(found):
    return {Path(s.image).name: s.label and Path(s.label).name for s in found.scenes}


DEEPGLOBE = ("train/12_sat.jpg", "train/12_mask.png", "train/104_sat.jpg", "train/104_mask.png")


@pytest.mark.parametrize("images", ["train/*_sat.jpg", "train"])
@pytest.mark.parametrize("labels", ["train/*_mask.png", "train"])
def test_images_and_masks_in_one_folder(make, images, labels):
    make(*DEEPGLOBE, "train/7_sat.jpg")
    found = images_and_labels([images], labels, masks=True)
    expected = {"7_sat.jpg": None, "12_sat.jpg": "12_mask.png", "104_sat.jpg": "104_mask.png"}
    assert pairs(found) == expected
    assert found.orphan_labels == ()


def test_masks_are_found_by_their_names(make):
    """So that what comes next can say which option is missing."""
    make(*DEEPGLOBE)
    assert pairs(images_and_labels(["train"], "train"))["12_sat.jpg"] == "12_mask.png"


def test_a_folder_of_images_holds_no_labels(make):
    make("in/a.tif", "in/b.tif")
    with pytest.raises(SourceError, match=r"no vector files, but rasters.*`label_values`"):
        images_and_labels(["in"], "in")
    with pytest.raises(SourceError, match="none of its 0 files"):
        images_and_labels(["in"], "in", masks=True)


@pytest.mark.parametrize(
    "label",
    [
        "AOI_2_Vegas_img99.geojson",
        "spacenetroads_AOI_2_Vegas_img99.geojson",
        "SN3_roads_train_AOI_2_Vegas_geojson_roads_speed_img99.geojson",
        "SN3_roads_train_AOI_2_Vegas_geojson_roads_img99_speed.geojson",
    ],
)
def test_area_and_number_of_spacenet_decide_where_names_begin_otherwise(make, label):
    stem = "SN3_roads_train_AOI_2_Vegas_PS-RGB_img"
    make(f"i/{stem}99.tif", f"i/{stem}9.tif", f"l/{label}", "l/AOI_3_Paris_img9.geojson")
    found = images_and_labels(["i"], "l")
    assert pairs(found) == {f"{stem}9.tif": None, f"{stem}99.tif": label}
    assert [Path(each).name for each in found.orphan_labels] == ["AOI_3_Paris_img9.geojson"]


def test_a_label_with_an_unrelated_prefix_is_an_orphan(make):
    make("i/img98.tif", "i/img99.tif", "l/img98.geojson", "l/AOI_2_Vegas_img99.geojson")
    found = images_and_labels(["i"], "l")
    assert pairs(found) == {"img98.tif": "img98.geojson", "img99.tif": None}
    assert [Path(each).name for each in found.orphan_labels] == ["AOI_2_Vegas_img99.geojson"]


def test_ambiguous_names_are_not_matched(make):
    make("i/a_sat.tif", "i/a_rgb.tif", "i/b_sat.tif", "l/a_mask.png", "l/b_mask.png")
    found = images_and_labels(["i"], "l", masks=True)
    assert pairs(found) == {"a_sat.tif": None, "a_rgb.tif": None, "b_sat.tif": "b_mask.png"}


def test_the_closer_name_wins_and_equals_are_refused(make):
    make("i/a_sat.tif", "l/a_mask.png", "l/a_sat.png")
    assert pairs(images_and_labels(["i"], "l", masks=True)) == {"a_sat.tif": "a_sat.png"}
    make("l/a_gt.png", "m/b_mask.png", "m/b_gt.png", "j/b_sat.tif")
    with pytest.raises(SourceError, match="two label files for scene b_sat"):
        images_and_labels(["j"], "m", masks=True)


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("img_{}.png", "mask_{}.png"),
        ("img{}.png", "mask{}.png"),
        ("{}.png", "label-{}.tif"),
        ("tile_{}_sat.png", "gt_{}.png"),
        ("{}_S1Hand.tif", "{}_LabelHand.tif"),
        ("T10SDH.{}.v1.4_merged.tif", "T10SDH.{}.v1.4.mask.tif"),
        ("{}_merged.tif", "{}.tif"),
    ],
)
def test_words_around_the_name_are_left_out(make, image, label):
    """Files of several dates: names alone tell them apart."""
    numbers = ("1", "2", "12")
    expected = {image.format(number): label.format(number) for number in numbers}
    make(*(f"i/{name}" for name in expected), *(f"l/{name}" for name in expected.values()))
    found = images_and_labels(["i"], "l", masks=True)
    assert pairs(found) == expected
    unusual = "S1Hand" in image or "merged" in image
    assert ["paired by the rest of the names" in note for note in found.notes] == [True] * unusual


@pytest.mark.parametrize("where", ["west", "North", "top_left"])
def test_a_word_for_a_place_is_a_part_of_the_name(make, where):
    make("i/site_1.tif", "i/site_2.tif", f"l/site_1_{where}.tif", f"l/site_2_{where}_mask.tif")
    with pytest.raises(SourceError, match="none of its 2 files has the name of a scene"):
        images_and_labels(["i"], "l", masks=True)
    make("l/site_1.tif", "l/site_2_roads.tif")
    found = images_and_labels(["i"], "l", masks=True)
    assert pairs(found) == {"site_1.tif": "site_1.tif", "site_2.tif": "site_2_roads.tif"}
    assert len(found.orphan_labels) == 2


def test_a_pattern_of_names_pairs_what_nothing_else_can(make):
    make("i/a_1.tif", "i/a_2.tif", "l/x_a_1_v3.tif", "l/x_a_2_v4.tif", "l/a_1.tif", "l/y_a_2.tif")
    for pattern in ("x_{name}_v*", "x_{name}_v*.tif"):
        found = images_and_labels(["i"], "l", masks=True, label_name=pattern)
        assert pairs(found) == {"a_1.tif": "x_a_1_v3.tif", "a_2.tif": "x_a_2_v4.tif"}
        assert len(found.orphan_labels) == 2
    with pytest.raises(SourceError, match="none of its 4 files"):
        images_and_labels(["i"], "l", masks=True, label_name="z_{name}")


def test_one_mask_is_that_of_all_images(make):
    make("i/a.tif", "i/b.tif", "city_roads.tif")
    found = images_and_labels(["i"], "city_roads.tif", masks=True)
    assert pairs(found) == {"a.tif": "city_roads.tif", "b.tif": "city_roads.tif"}
