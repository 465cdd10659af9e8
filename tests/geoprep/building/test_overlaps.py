"""Images that show the same ground, or have the same bytes, and the splits of their tiles."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from affine import Affine
from helpers.factory import PLACES, Place, plan_of, row_of_scenes, texture, write_image, write_scene

from geoprep.building.options import BuildOptions
from geoprep.building.scene import TEST, TRAIN, UNUSED, VAL
from geoprep.errors import UsageError
from geoprep.sources.scene import Scene

UTM = PLACES["utm"]


def strips(folder, count, step):
    """Write strips of 64 x 256 pixels that begin every ``step`` columns."""
    return [
        write_scene(
            folder,
            f"strip_{i}",
            texture(64, 256, seed=i),
            Place(UTM.crs, UTM.transform * Affine.translation(i * step, 0)),
        )
        for i in range(count)
    ]


def columns_by_split(plan, step):
    """Return for every column of ground the splits that show it."""
    seen = {}
    for i, scene in enumerate(plan.scenes):
        for (_, col), split in zip(scene.windows, scene.splits, strict=True):
            if split != UNUSED:
                for column in range(i * step + col, i * step + col + plan.meta.tile):
                    seen.setdefault(column, set()).add(split)
    return seen


def test_overlapping_images_in_different_splits_are_counted(tmp_path):
    plan = plan_of(strips(tmp_path, 12, 128), tile=64, val=0.3)
    mixed = [c for c, found in columns_by_split(plan, 128).items() if len(found) > 1]
    assert mixed
    (note,) = plan.notes
    assert "images overlap images of another split" in note
    assert "(train)" in note
    assert "`split_overlap` unused" in note


def test_an_image_across_180_degrees_overlaps_none_of_the_rest_of_the_earth(tmp_path):
    turns = (0.5, 0.0, 0.2, 0.4)
    places = [Affine(1, 0, turn * 40_075_016.7 - 32, 0, -1, 9) for turn in turns]
    scenes = [
        write_scene(tmp_path, f"a{i}", texture(64, 64, seed=i), Place("EPSG:3857", place))
        for i, place in enumerate(places)
    ]
    assert plan_of(scenes, val=0.5).notes == ()


@pytest.mark.parametrize("options", [{}, {"split_by": "block", "block_km": 0.2}])
def test_tiles_that_show_ground_of_another_split_become_unused_on_request(tmp_path, options):
    scenes = strips(tmp_path, 12, 128)
    before = plan_of(scenes, tile=64, val=0.3, test=0.2, **options)
    plan = plan_of(scenes, tile=64, val=0.3, test=0.2, split_overlap="unused", **options)
    assert all(len(found) == 1 for found in columns_by_split(plan, 128).values())
    old = [split for scene in before.scenes for split in scene.splits]
    new = [split for scene in plan.scenes for split in scene.splits]
    assert set(new) >= {TRAIN, VAL, TEST}
    assert all(b in (a, UNUSED) for a, b in zip(old, new, strict=True))
    assert Counter(new)[TEST] == Counter(old)[TEST], "testing keeps its tiles"
    assert any("unused since an overlapping image" in note for note in plan.notes)


def test_neighbours_that_share_an_edge_or_a_row_of_pixels_do_not_overlap(tmp_path):
    assert plan_of(row_of_scenes(tmp_path / "edge", 6, 64), val=0.5).notes == ()
    assert plan_of(strips(tmp_path / "row", 6, 255), tile=64, val=0.5).notes == ()


def pictures(folder, count):
    """Write images that are not georeferenced."""
    place = Place(None, Affine.identity())
    return [
        Scene(f"p{i}", str(write_image(folder / f"p{i}.tif", texture(64, 64, seed=i), place)), None)
        for i in range(count)
    ]


def test_images_with_the_same_bytes_are_in_one_split(tmp_path):
    scenes = pictures(tmp_path, 8)
    for i in range(8):
        copy = tmp_path / f"copy{i}.tif"
        shutil.copy(scenes[i].image, copy)
        scenes.append(Scene(f"copy{i}", str(copy), None))
    for options in ({}, {"split_by": "block"}, {"split_seed": 3}):
        plan = plan_of(scenes, pixel_size=0.5, val=0.4, test=0.2, **options)
        splits = {scene.id: scene.splits for scene in plan.scenes}
        assert all(splits[f"p{i}"] == splits[f"copy{i}"] for i in range(8))
        assert len(set(splits.values())) == 3
        assert plan.notes == ()


# Splits that the user gives


def test_a_list_assigns_scenes_to_splits(tmp_path):
    scenes = pictures(tmp_path, 6)
    listed = tmp_path / "splits.csv"
    listed.write_text("scene,split\np0,val\np1.tif,test\np[23],train\n")
    plan = plan_of(scenes, pixel_size=0.5, split_file=str(listed))
    assert [s.splits[0] for s in plan.scenes] == [VAL, TEST, TRAIN, TRAIN, UNUSED, UNUSED]
    listed.write_text("split,scene\nval,p*\nTest,p5\n")
    plan = plan_of(scenes, pixel_size=0.5, split_file=str(listed))
    assert [s.splits[0] for s in plan.scenes] == [VAL] * 5 + [TEST]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_list_may_come_from_a_spreadsheet(tmp_path, separator, mark):
    listed = tmp_path / "splits.csv"
    rows = [("split", "note", "scene"), ("val", "a, b" if separator == ";" else "", "p0")]
    text = "\r\n".join(separator.join(row) for row in rows)
    listed.write_text(f"{mark}{text}\r\n", encoding="utf-8")
    plan = plan_of(pictures(tmp_path, 2), pixel_size=0.5, split_file=str(listed))
    assert [s.splits[0] for s in plan.scenes] == [VAL, TRAIN]


def test_a_scene_whose_name_looks_like_a_pattern_can_be_listed(tmp_path):
    (image,) = pictures(tmp_path, 1)
    scenes = [Scene(name, image.image, None) for name in ("[br]", "b", "r")]
    listed = tmp_path / "splits.csv"
    listed.write_text("scene,split\n[br],test\nb*,val\n")
    plan = plan_of(scenes, pixel_size=0.5, split_file=str(listed))
    assert [s.splits[0] for s in plan.scenes] == [TEST, VAL, TRAIN]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("scene,split\nq7,val\n", "no scene matches 1 of its rows, the first 'q7'.*such as p0"),
        ("scene,split\np0,val\np0,test\n", "lists p0 twice, with different values"),
        ("scene,split\np0,dev\n", "contains dev. Expected train, val, test"),
        ("scene,split\n", "contains nothing"),
        ("name,split\na,val\n", "holds no polygons.*CSV file with columns scene and split"),
    ],
)
def test_a_list_that_cannot_be_used_is_named(tmp_path, text, says):
    listed = tmp_path / "splits.csv"
    listed.write_text(text)
    with pytest.raises(UsageError, match=f"`split_file` .*splits.csv: .*{says}"):
        plan_of(pictures(tmp_path, 2), pixel_size=0.5, split_file=str(listed))


def test_folders_assign_scenes_to_splits(tmp_path):
    found = []
    for i, folder in enumerate(("train/images", "Val", "test/val/x", "extra")):
        path = tmp_path / "set" / folder
        path.mkdir(parents=True)
        (image,) = pictures(path, 1)
        target = Path(image.image).rename(path / f"i{i}.tif")
        found.append(Scene(f"i{i}", str(target), None))
    plan = plan_of(found, pixel_size=0.5, split_by="folder")
    assert [s.splits[0] for s in plan.scenes] == [TRAIN, VAL, VAL, UNUSED]
    with pytest.raises(UsageError, match="no image is in a folder named train, val or test"):
        plan_of(pictures(tmp_path / "set" / "extra", 2), pixel_size=0.5, split_by="folder")


def test_val_is_drawn_where_folders_give_train_and_test_alone(tmp_path):
    found = []
    (tmp_path / "testing").mkdir()
    (tmp_path / "training").mkdir()
    for i, scene in enumerate(pictures(tmp_path, 10)):
        path = tmp_path / ("testing" if i < 2 else "training") / f"i{i}.tif"
        found.append(Scene(f"i{i}", str(Path(scene.image).rename(path)), None))
    plan = plan_of(found, pixel_size=0.5, split_by="folder", val=0.25)
    splits = [scene.splits[0] for scene in plan.scenes]
    assert splits[:2] == [TEST, TEST]
    assert (splits.count(VAL), splits.count(TRAIN)) == (2, 6)
    assert any("no folder is named val: 2 of 8 images" in note for note in plan.notes)
    none = plan_of(found, pixel_size=0.5, split_by="folder", val=0.0)
    assert [scene.splits[0] for scene in none.scenes].count(TRAIN) == 8
    given = BuildOptions.given(split_by="folder", val=0.25, split_seed=1)
    assert (given.val, given.split_seed) == (0.25, 1)
    with pytest.raises(UsageError, match="`split_by` folder assigns all splits: leave out `test`"):
        BuildOptions.given(split_by="folder", test=0.1)
