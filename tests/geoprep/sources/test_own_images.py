"""A person's own images, with one road file for all or one for each."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geoprep.errors import SourceError
from geoprep.sources.own_images import images_and_labels


def ids(found):
    return [scene.id for scene in found.scenes]


def labels(found, folder):
    return {
        scene.id: scene.label and scene.label.removeprefix(f"{folder}/") for scene in found.scenes
    }


def test_a_pattern_gives_scenes_in_natural_order_with_absolute_addresses(make, tmp_path):
    make("scenes/s10.tif", "scenes/s9.tif", "scenes/s9.txt")
    found = images_and_labels(["scenes/*.tif"])
    assert ids(found) == ["s9", "s10"]
    assert found.scenes[0].image == str(tmp_path / "scenes" / "s9.tif")
    assert found.scenes[0].label is None
    assert found.origin == "scenes/*.tif"


@pytest.mark.parametrize("given_as", ["scenes/*.tif", "scenes"])
def test_a_broken_link_is_a_scene_that_will_fail_not_one_that_is_gone(make, tmp_path, given_as):
    make("scenes/a.tif")
    (tmp_path / "scenes" / "b.tif").symlink_to(tmp_path / "moved.tif")
    assert ids(images_and_labels([given_as])) == ["a", "b"]


def test_a_name_that_is_no_utf8_gives_an_id_that_can_be_stored(tmp_path):
    name = os.fsdecode(b"caf\xe9.tif")
    (tmp_path / name).touch()
    (tmp_path / os.fsdecode(b"caf\xe9_roads.geojson")).touch()
    found = images_and_labels([str(tmp_path)], str(tmp_path))
    assert ids(found) == ["caf\\udce9"]
    assert found.scenes[0].image == str(tmp_path / name)
    assert found.scenes[0].label is not None


def test_patterns_may_overlap(make):
    make("a/one.tif", "a/two.tif")
    assert ids(images_and_labels(["a/one.tif", "a/*.tif", "a"])) == ["one", "two"]


def test_a_folder_means_its_images_and_not_their_sidecars(make):
    make("in/a.tif", "in/a.tif.msk", "in/a.tif.aux.xml", "in/b.TIFF", "in/c.jp2", "in/x.geojson")
    assert ids(images_and_labels(["in"])) == ["a", "b", "c"]
    assert ids(images_and_labels(["in/*"])) == ["a", "b", "c"]


def test_a_pattern_may_name_an_unusual_suffix(make):
    make("a.ntf", "b.ntf")
    assert ids(images_and_labels(["*.ntf"])) == ["a", "b"]


def test_a_name_with_wildcard_characters_is_a_name_first(make):
    make("s[1].tif", "d[0]/t.tif")
    assert ids(images_and_labels(["s[1].tif", "d[0]"])) == ["s[1]", "t"]


@pytest.mark.parametrize("pattern", ["none/*.tif", "none.tif", "empty"])
def test_a_pattern_that_matches_nothing_is_named(make, tmp_path, pattern):
    make("scenes/a.tif")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"`images` .*matches no file") as error:
        images_and_labels(["scenes/*.tif", pattern])
    assert pattern in str(error.value)


def test_vectors_as_images_are_asked_about(make):
    folder = make("roads.gpkg", "a.tif")
    with pytest.raises(SourceError, match=r"roads\.gpkg is a vector file. Are `images`"):
        images_and_labels([f"{folder}/roads.gpkg"], f"{folder}/*.tif")


def test_a_folder_of_folders_of_images_is_refused_with_their_pattern(make):
    make("png/train/a.png", "png/val/b.png", "png/readme.txt")
    with pytest.raises(SourceError, match=r"`images` png: no file in this .* but 2 .* 'png/\*'"):
        images_and_labels(["png"])
    assert ids(images_and_labels(["png/*"])) == ["a", "b"]


def test_ids_of_equal_folders_contain_their_parents(make):
    make("p/a/s.tif", "q/a/s.tif", "q/b/s.tif")
    assert ids(images_and_labels(["**/*.tif"])) == ["p_a_s", "q_a_s", "q_b_s"]


def test_images_that_differ_by_suffix_alone_are_refused(make):
    make("a/s.tif", "a/s.jp2")
    with pytest.raises(SourceError, match="would both be scene s"):
        images_and_labels(["a"])


def test_one_road_file_serves_all(make, tmp_path):
    make("a.tif", "b.tif", "roads.gpkg")
    found = images_and_labels(["*.tif"], "roads.gpkg")
    assert found.shared_label == str(tmp_path / "roads.gpkg")
    assert [scene.label for scene in found.scenes] == [None, None]


@pytest.mark.parametrize("given_as", ["lab", "lab/*.geojson", "lab/*", "lab/**/*.geojson"])
def test_one_label_a_scene_by_stem(make, tmp_path, given_as):
    make("a.tif", "b.tif", "c.tif", "lab/a.geojson", "lab/b_roads.geojson", "lab/z.geojson")
    found = images_and_labels(["*.tif"], given_as)
    assert labels(found, tmp_path / "lab") == {"a": "a.geojson", "b": "b_roads.geojson", "c": None}
    assert found.orphan_labels == (str(tmp_path / "lab" / "z.geojson"),)
    assert found.shared_label is None


def test_a_number_more_is_another_scene_and_the_longer_name_wins(make, tmp_path):
    make("a.tif", "a_1.tif", "a_2_roads.geojson", "a_1_roads.geojson", "a_roads.geojson")
    found = images_and_labels(["*.tif"], "*.geojson")
    assert labels(found, tmp_path) == {"a": "a_roads.geojson", "a_1": "a_1_roads.geojson"}
    assert found.orphan_labels == (str(tmp_path / "a_2_roads.geojson"),)


def test_two_labels_of_one_scene_are_both_named(make):
    make("a.tif", "l/a_roads.geojson", "l/a_paths.geojson")
    with pytest.raises(SourceError, match=r"a_paths\.geojson and .*a_roads\.geojson"):
        images_and_labels(["a.tif"], "l")


def test_folders_tell_labels_of_equal_stems_apart(make, tmp_path):
    make("north/img/s.tif", "south/img/s.tif", "lab/south/s.geojson", "lab/north_img_s.geojson")
    found = images_and_labels(["*/img/*.tif"], "lab/**/*.geojson")
    assert labels(found, tmp_path / "lab") == {
        "north_img_s": "north_img_s.geojson",
        "south_img_s": "south/s.geojson",
    }


def test_a_label_that_could_be_of_either_scene_is_reported_and_not_guessed(make, tmp_path):
    make("north/s.tif", "south/s.tif", "lab/s.geojson", "lab/north_s.geojson")
    found = images_and_labels(["*/*.tif"], "lab")
    assert labels(found, tmp_path / "lab") == {"north_s": "north_s.geojson", "south_s": None}
    assert found.orphan_labels == (str(tmp_path / "lab" / "s.geojson"),)


def test_labels_that_match_no_scene_are_refused_with_an_example(make):
    make("a.tif", "x_a.geojson")
    with pytest.raises(SourceError, match=r"x_a\.geojson; an image: a\)"):
        images_and_labels(["a.tif"], "*.geojson")


def test_a_label_pattern_that_matches_nothing_is_named(make):
    make("a.tif")
    with pytest.raises(SourceError, match=r"`labels` nowhere/\*\.geojson: matches no file"):
        images_and_labels(["a.tif"], "nowhere/*.geojson")


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("ab"), st.sampled_from(["s", "t", "a_s"])),
        min_size=1,
        unique=True,
    )
)
def test_ids_are_unique_whatever_the_tree(tmp_path_factory, parts):
    root = tmp_path_factory.mktemp("tree")
    for outer, inner, stem in parts:
        (root / outer / inner).mkdir(parents=True, exist_ok=True)
        (root / outer / inner / f"{stem}.tif").touch()
    found = images_and_labels([f"{root}/**/*.tif"])
    assert len(set(ids(found))) == len(parts) == len({scene.image for scene in found.scenes})


def test_a_pattern_of_folders_means_their_files(make):
    for tile in ("tile1", "tile2"):
        make(
            f"{tile}/images/{tile}.tif", f"{tile}/images/readme.txt", f"{tile}/roads/{tile}.geojson"
        )
    found = images_and_labels(["tile*/images"], "tile*/roads")
    assert ids(found) == ["tile1", "tile2"]
    assert all(scene.label.endswith(f"{scene.id}.geojson") for scene in found.scenes)


@pytest.mark.parametrize("name", ["zarr.json", ".zgroup", ".zarray"])
@pytest.mark.parametrize("given_as", ["{}", "*.zarr"])
def test_a_folder_of_zarr_is_refused_with_the_command_that_makes_a_geotiff(
    tmp_path, monkeypatch, name, given_as
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cube.zarr").mkdir()
    (tmp_path / "cube.zarr" / name).write_text("{}")
    with pytest.raises(SourceError, match=r"cube\.zarr is a folder of Zarr.*rio\.to_raster"):
        images_and_labels([given_as.format("cube.zarr")])
