"""A city's scenes from whatever holds them: folders as people keep them, and tarballs."""

import pytest
from helpers.archives import write_tar
from hypothesis import given
from hypothesis import strategies as st

from geoprep.errors import SourceError
from geoprep.sources import city_scenes
from geoprep.sources.cities import CITIES, directions
from geoprep.sources.city_scenes import find_scenes
from geoprep.storage.versions import read_bytes

MOSCOW, VEGAS = CITIES["moscow"], CITIES["vegas"]
# What SpaceNet 5's train archive unpacks to.
DEEP = "nfs/data/cosmiq/spacenet/competitions/SN5_roads/tiles_upload/train/AOI_7_Moscow"


@pytest.fixture
def make(make):
    """Return a function that makes empty files below ``data``."""
    return lambda *names: make(*(f"data/{name}" for name in names)) / "data"


def chips(folder, *numbers, city=MOSCOW, product="PS-RGB", labels=True):
    """Return the names of images and labels in the current layout."""
    names = [f"{folder}/{product}/{city.file_name(product, n)}" for n in numbers]
    if labels:
        kind = "geojson_roads_speed"
        names += [f"{folder}/{kind}/{city.file_name(kind, n)}" for n in numbers]
    return names


def pack(path, names, mode="w"):
    """Write an archive whose members hold their own names."""
    return write_tar(path, {name: name.encode() for name in names}, mode)


@pytest.mark.parametrize("folder", ["AOI_7_Moscow", "train/AOI_7_Moscow", DEEP, "my moscow"])
def test_a_city_is_found_from_its_folder_and_from_above(make, folder):
    data = make(*chips(folder, 10, 9, 100))
    for source in (data, data / folder):
        found = find_scenes(MOSCOW, source)
        assert [scene.id for scene in found.scenes] == [
            "AOI_7_Moscow_chip9",
            "AOI_7_Moscow_chip10",
            "AOI_7_Moscow_chip100",
        ]
        assert found.scenes[0].image == str(data / chips(folder, 9)[0])
        assert found.scenes[0].label == str(data / chips(folder, 9)[1])
        assert found.product == "PS-RGB"
        assert found.orphan_labels == ()
        assert found.notes == ()


def test_a_link_to_itself_is_a_scene_that_cannot_be_opened(make):
    data = make(*chips("AOI_7_Moscow", 1))
    image = data / chips("AOI_7_Moscow", 2, labels=False)[0]
    image.symlink_to(image)
    assert str(image) in [scene.image for scene in find_scenes(MOSCOW, data).scenes]


def test_the_folder_of_a_product_includes_the_labels_beside_it(make):
    data = make(*chips("AOI_7_Moscow", 1))
    found = find_scenes(MOSCOW, data / "AOI_7_Moscow" / "PS-RGB")
    assert found.scenes[0].label is not None


def test_the_better_label_is_taken_and_the_other_is_no_orphan(make):
    plain = "AOI_2_Vegas/geojson_roads/SN3_roads_train_AOI_2_Vegas_geojson_roads_img{}.geojson"
    odd = "geojson_roads_speed_3m/SN3_roads_train_AOI_2_Vegas_geojson_roads_img{}.geojson"
    images = chips("AOI_2_Vegas", 1, 2, 3, city=VEGAS, labels=False)
    speed = chips("AOI_2_Vegas", 1, city=VEGAS)[1]
    data = make(*images, *(plain.format(n) for n in (1, 2, 3)), odd.format(2), speed)
    found = find_scenes(VEGAS, data)
    assert [scene.label for scene in found.scenes] == [
        str(data / name) for name in (speed, odd.format(2), plain.format(3))
    ]
    assert found.orphan_labels == ()


def test_products_of_the_test_archives_have_their_old_names(make):
    folder = "AOI_2_Vegas_Roads_Test_Public"
    data = make(
        *(f"{folder}/{one}/{one}_AOI_2_Vegas_img0.tif" for one in ("RGB-PanSharpen", "MUL"))
    )
    for product in ("PS-RGB", "RGB-PanSharpen", "ms"):
        (scene,) = find_scenes(VEGAS, data, product).scenes
        assert ("MUL" in scene.image) == (product == "ms")


def test_a_huge_tree_ends_the_search(make, monkeypatch):
    data = make(*chips("AOI_7_Moscow", 1), *(f"z{n}/file" for n in range(20)))
    monkeypatch.setattr(city_scenes, "MAX_FOLDERS", 10)
    with pytest.raises(SourceError, match=r"more than 10 folders .*Give the folder"):
        find_scenes(MOSCOW, data)
    monkeypatch.chdir(data)
    monkeypatch.delenv("GEOPREP_DATA", raising=False)
    with pytest.raises(SourceError, match=r"more than 10 folders(.|\n)*Ways to get data"):
        find_scenes(MOSCOW)


def test_train_and_test_chips_are_one_city(make):
    test = "test/AOI_7_Moscow/PS-RGB/SN5_roads_test_public_AOI_7_Moscow_PS-RGB_chip2.tif"
    found = find_scenes(MOSCOW, make(*chips("train/AOI_7_Moscow", 1), test))
    assert [(scene.id, scene.label is None) for scene in found.scenes] == [
        ("AOI_7_Moscow_chip1", False),
        ("AOI_7_Moscow_chip2", True),
    ]


def test_two_images_of_one_number_are_both_named(make):
    data = make(*chips("a/AOI_7_Moscow", 1, 2), *chips("b/AOI_7_Moscow", 2, 3))
    with pytest.raises(SourceError) as error:
        find_scenes(MOSCOW, data)
    for folder in "ab":
        assert str(data / chips(f"{folder}/AOI_7_Moscow", 2)[0]) in str(error.value)
    assert "AOI_7_Moscow_chip2" in str(error.value)
    assert len(find_scenes(MOSCOW, data / "a").scenes) == 2


def test_two_labels_of_one_number_are_both_named(make):
    label = chips("", 1)[1]
    data = make(*chips("AOI_7_Moscow", 1, labels=False), f"x{label}", f"y{label}")
    with pytest.raises(SourceError, match=r"label of AOI_7_Moscow_chip1: .*/x/.* and .*/y/"):
        find_scenes(MOSCOW, data)


def test_a_missing_product_lists_the_available_ones(make):
    data = make(
        *chips("AOI_7_Moscow", 1, 2, product="PS-MS"), *chips("AOI_7_Moscow", 1, product="PAN")
    )
    with pytest.raises(SourceError) as error:
        find_scenes(MOSCOW, data)
    assert "no PS-RGB images of AOI_7_Moscow" in str(error.value)
    assert "images of PAN (1), PS-MS (2)" in str(error.value)
    assert "`product`, such as PS-MS with `bands` 5,3,2" in str(error.value)


def test_labels_without_images_give_the_directions(make):
    data = make(*chips("AOI_7_Moscow", 1)[1:])
    with pytest.raises(SourceError, match=r"1 road labels of AOI_7_Moscow but no images"):
        find_scenes(MOSCOW, data)


@pytest.mark.parametrize("source", ["data", "none"])
def test_no_data_lists_the_places_searched_and_ways_to_get_data(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    with pytest.raises(SourceError) as error:
        find_scenes(MOSCOW, source)
    message = str(error.value)
    assert str(tmp_path / source) in message
    assert directions(MOSCOW) in message


def test_without_a_source_the_usual_places_are_tried_in_order(make, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GEOPREP_DATA", raising=False)
    with pytest.raises(SourceError) as error:
        find_scenes(MOSCOW)
    assert f"{tmp_path / 'data'} (does not exist)" in str(error.value)
    (tmp_path / "AOI_7_Moscow").mkdir()
    make(*(f"../{name}" for name in chips("AOI_7_Moscow", 1)))
    assert find_scenes(MOSCOW).origin == str(tmp_path)
    make(*chips("AOI_7_Moscow", 2))
    assert find_scenes(MOSCOW).origin == str(tmp_path / "data")
    make(*(f"../elsewhere/{name}" for name in chips("AOI_7_Moscow", 3)))
    monkeypatch.setenv("GEOPREP_DATA", str(tmp_path / "elsewhere"))
    assert find_scenes(MOSCOW).origin == str(tmp_path / "elsewhere")


def test_hidden_folders_stores_and_caches_are_left_out(make):
    left_out = [".git", "moscow.zarr", "moscow.zarr.build", "x.tar.gz.unpacked"]
    data = make(*(name for folder in left_out for name in chips(folder, 1)), *chips("x", 1))
    assert find_scenes(MOSCOW, data).scenes[0].image.startswith(str(data / "x"))


def test_links_are_followed_and_loops_end(make, tmp_path):
    make(*(f"../far/{name}" for name in chips("AOI_7_Moscow", 1)))
    data = make("note")
    (data / "AOI_7_Moscow").symlink_to(tmp_path / "far" / "AOI_7_Moscow")
    (data / "again").symlink_to(data)
    (data / "twice").symlink_to(tmp_path / "far")
    assert len(find_scenes(MOSCOW, data).scenes) == 1


def test_a_file_that_is_no_archive_is_refused(make):
    with pytest.raises(SourceError, match=r"note\.txt: not a folder and not a \.tar"):
        find_scenes(MOSCOW, make("note.txt") / "note.txt")


def test_one_product_of_a_gzipped_tar_is_unpacked_beside_it(tmp_path):
    names = [*chips(DEEP, 1), *chips(DEEP, 1, product="PAN", labels=False), f"{DEEP}/about.csv"]
    archive = pack(tmp_path / "SN5_roads_train_AOI_7_Moscow.tar.gz", names, "w:gz")
    seen = []
    found = find_scenes(MOSCOW, archive, report=lambda *step: seen.append(step))
    assert len(seen) == 2
    assert {total for _, total in seen} == {archive.stat().st_size}
    unpacked = tmp_path / f"{archive.name}.unpacked"
    assert found.scenes[0].image == str(unpacked / names[0])
    assert read_bytes(found.scenes[0].image).decode() == names[0]
    assert sorted(p.suffix for p in unpacked.rglob("[!.]*.*")) == [".geojson", ".tif"]
    pan = find_scenes(MOSCOW, archive, "PAN").scenes  # joins the first
    assert read_bytes(pan[0].image).decode() == names[2]


def test_a_missing_product_of_an_archive_lists_what_it_holds(tmp_path):
    names = chips(DEEP, 1, 2, product="PS-MS")
    for name, mode in (("a.tar", "w"), ("b.tar.gz", "w:gz")):
        with pytest.raises(SourceError, match=r"It has images of PS-MS \(2\)"):
            find_scenes(MOSCOW, pack(tmp_path / name, names, mode))


def test_archives_that_lie_in_the_folder_are_used(make):
    data = make("readme.txt")
    images = chips("AOI_2_Vegas", 1, 2, city=VEGAS, labels=False)
    speeds = chips("AOI_2_Vegas", 1, city=VEGAS)[1:]
    pack(data / "SN3_roads_train_AOI_2_Vegas.tar.gz", images, "w:gz")
    pack(data / "SN3_roads_train_AOI_2_Vegas_geojson_roads_speed.tar.gz", speeds, "w:gz")
    pack(data / "SN2_buildings_train_AOI_2_Vegas.tar", images)
    pack(data / "SN3_roads_train_AOI_3_Paris.tar", images)
    found = find_scenes(VEGAS, data)
    assert [scene.label is None for scene in found.scenes] == [False, True]


def test_unpacked_images_go_before_their_archive_which_is_mentioned(make):
    data = make(*chips("AOI_7_Moscow", 1))
    archive = pack(data / "SN5_roads_train_AOI_7_Moscow.tar", chips("AOI_7_Moscow", 1, 2))
    found = find_scenes(MOSCOW, data)
    assert len(found.scenes) == 1
    assert found.notes == (f"not read, since there are extracted files: {archive}",)


def test_speed_labels_still_packed_join_unpacked_images(make):
    data = make(*chips("AOI_2_Vegas", 1, city=VEGAS, labels=False))
    speeds = chips("AOI_2_Vegas", 1, city=VEGAS)[1:]
    name = "SN3_roads_train_AOI_2_Vegas_geojson_roads_speed.tar.gz"
    pack(data / name, speeds, "w:gz")
    (scene,) = find_scenes(VEGAS, data).scenes
    assert scene.label == str(data / f"{name}.unpacked" / speeds[0])


@given(images=st.sets(st.integers(0, 300), min_size=1), labels=st.sets(st.integers(0, 300)))
def test_every_image_is_a_scene(tmp_path_factory, images, labels):
    names = chips("AOI_7_Moscow", *images, labels=False)
    names += [name for name in chips("AOI_7_Moscow", *labels) if name.endswith("geojson")]
    archive = pack(tmp_path_factory.mktemp("tar") / "x.tar", names)
    found = find_scenes(MOSCOW, archive)
    assert [scene.id for scene in found.scenes] == [MOSCOW.scene_id(n) for n in sorted(images)]
    with_label = {scene.id for scene in found.scenes if scene.label is not None}
    assert with_label == {MOSCOW.scene_id(n) for n in images & labels}
    assert len(found.orphan_labels) == len(labels - images)
