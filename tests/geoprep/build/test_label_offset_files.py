"""Offsets of labels that the user gives, before anything is built."""

import pytest
from affine import Affine
from helpers.factory import PLACES, Place, plan_of, row_of_scenes, texture, write_scene

from geoprep.build.options import BuildOptions
from geoprep.errors import UsageError


@pytest.fixture
def scenes(tmp_path):
    return row_of_scenes(tmp_path, 4, size=32, place=PLACES["utm"])


@pytest.fixture
def planned(tmp_path, scenes):
    """Return a function that plans with a file of offsets."""

    def planned(text, **options):
        path = tmp_path / "offsets.csv"
        path.write_bytes(text.encode())
        return plan_of(scenes, label_offsets=str(path), **options)

    return planned


def test_metres_to_the_right_and_down_become_pixels_of_the_image(planned):
    plan = planned("scene,dx,dy\nquay_0,3.1,-0.62\nquay_2.tif,0,1\n", gsd=0.62)
    assert plan.scenes[0].label_offset == pytest.approx((10, -2), rel=2e-3)
    assert plan.scenes[2].label_offset == pytest.approx((0, 1 / 0.31), rel=2e-3)
    assert plan.scenes[1].label_offset == plan.scenes[3].label_offset == (0, 0)
    (note,) = [note for note in plan.notes if "labels moved" in note]
    assert note.endswith("offsets.csv: 2 scenes")


def test_pixels_are_those_of_the_finest_level(planned):
    text = "scene,dx,dy,unit\nquay_*,3,-1.5,pixels\n"
    assert planned(text).scenes[0].label_offset == pytest.approx((3, -1.5))
    assert planned(text, resize=16).scenes[3].label_offset == pytest.approx((6, -3))


def test_metres_are_those_of_each_scene(tmp_path):
    """Pixels of one size in degrees are smaller on the ground far from the equator."""
    far = Place("EPSG:4326", Affine.translation(0, 24) * PLACES["degrees"].transform)
    scenes = [
        write_scene(tmp_path, name, texture(32, 32), place)
        for name, place in (("near", PLACES["degrees"]), ("far", far))
    ]
    path = tmp_path / "offsets.csv"
    path.write_text("scene,dx,dy\n*,1,1\n")
    near, north = plan_of(scenes, label_offsets=str(path)).scenes
    assert north.label_offset[0] / near.label_offset[0] == pytest.approx(1.622, abs=0.01)
    assert north.label_offset[1] == pytest.approx(near.label_offset[1], rel=0.01)


@pytest.mark.parametrize(
    "row", ["1,1,1.5,yes", "1,-1,0.1,no", ",,,no", "nan,nan,nan,No", "0,0,0.1,yes"]
)
def test_an_offset_that_is_not_certain_leaves_the_label_and_is_named(planned, row):
    plan = planned(f"scene,dx,dy,interval,certain\nquay_1,{row}\nquay_3,1,1,1.4,yes\n")
    assert [any(one.label_offset) for one in plan.scenes] == [False, False, False, True]
    assert plan.notes[-1].endswith(
        "1 scenes; left as they are, since the offset is not certain: quay_1"
    )


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_may_come_from_a_spreadsheet(planned, mark):
    plan = planned(f"{mark}dx;scene;tiles;dy;unit\r\n1,55;quay_0;4;-3,1;metres\r\n")
    assert plan.scenes[0].label_offset == pytest.approx((5, -10), rel=2e-3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("scene,dx\nquay_0,1\n", "expected a CSV file with rows of scene, dx and dy"),
        ("name,dx,dy\nquay_0,1,2\n", "expected a CSV file with rows of scene, dx and dy"),
        ("scene,dx,dy\n", "expected a CSV file with rows of scene, dx and dy"),
        ("scene,dx,dy\nquay_0,1,2\nq7,1,2\n", "1 rows match no scene, the first 'q7'.*quay_0"),
        ("scene,dx,dy\nquay_0,1,2\n\nquay_1,nan,2\n", "row 4: dx 'nan' is not a number. Correct"),
        ("scene,dx,dy\nquay_0,1\n", "row 2: dy '' is not a number"),
        ("scene,dx,dy,interval\nquay_0,1,2,inf\n", "row 2: interval 'inf' is not a number"),
        ("scene,dx,dy\nquay_0,1,2 m\n", "row 2: dy '2 m' is not a number"),
        ("scene,dx,dy,unit\nquay_0,1,2,feet\n", "row 2: unit 'feet' is unknown: use metres"),
        ("scene,dx,dy\nquay_0,1,2\nquay_0.tif,1,2\nquay_0,1,3\n", "lists quay_0 twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_row(planned, text, says):
    with pytest.raises(UsageError, match=f"`label_offsets` .*offsets.csv: .*{says}"):
        planned(text)


def test_a_file_that_is_not_there_is_named(tmp_path, scenes):
    with pytest.raises(UsageError, match=r"`label_offsets` .*no\.csv: no such file"):
        plan_of(scenes, label_offsets=str(tmp_path / "no.csv"))


def test_only_builds_with_the_option_record_it_and_depend_on_the_file(tmp_path, scenes, planned):
    without = plan_of(scenes)
    assert "label_offsets" not in without.meta.build["options"]
    assert BuildOptions().to_attrs() == plan_of(scenes).options.to_attrs()
    one, other = planned("scene,dx,dy\nquay_0,1,2\n"), planned("scene,dx,dy\nquay_0,1,3\n")
    assert one.meta.build["options"]["label_offsets"] == "offsets.csv"
    assert len({plan.fingerprint for plan in (without, one, other)}) == 3
    assert planned("scene,dx,dy\nquay_0,1,2\n").fingerprint == one.fingerprint
    assert plan_of(scenes).fingerprint == without.fingerprint
