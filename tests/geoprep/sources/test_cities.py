"""Names of cities as typed and as used in paths, and the roles of files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geoprep.errors import UsageError
from geoprep.sources.cities import CITIES, city_file, directions, get_city


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("moscow", "moscow"),
        (" MOSCOW ", "moscow"),
        ("aoi-7-moscow", "moscow"),
        ("AOI_7", "moscow"),
        ("san juan", "san_juan"),
        ("AOI_9_San_Juan", "san_juan"),
        ("Las Vegas", "vegas"),
    ],
)
def test_city_is_found_however_it_is_typed(typed, name):
    assert get_city(typed).name == name


def test_unknown_city_lists_the_known_and_names_the_nearest():
    with pytest.raises(UsageError) as error:
        get_city("moskow")
    message = str(error.value)
    assert "'moskow'" in message
    assert "did you mean moscow?" in message
    assert all(name in message for name in CITIES)


@pytest.mark.parametrize("typed", ["", "AOI_3_Moscow", "atlanta", "___"])
def test_names_of_no_city_are_refused(typed):
    with pytest.raises(UsageError):
        get_city(typed)


def test_archives_are_named_after_their_city_and_addressed_in_the_bucket():
    for city in CITIES.values():
        for archive in city.archives:
            assert archive.name.startswith(f"{city.mission}_roads_")
            assert f"_{city.aoi}" in archive.name
            assert archive.url == (
                "https://spacenet-dataset.s3.amazonaws.com/spacenet/"
                f"{city.mission}_roads/tarballs/{archive.name}"
            )
            assert archive.md5 is None or len(bytes.fromhex(archive.md5)) == 16
    md5s = [a.md5 for city in CITIES.values() for a in city.archives if a.md5]
    assert len(set(md5s)) == len(md5s) == 15


FILES = [
    ("vegas", "PS-RGB/SN3_roads_train_AOI_2_Vegas_PS-RGB_img272.tif", ("PS-RGB", 272)),
    ("vegas", "RGB-PanSharpen/RGB-PanSharpen_AOI_2_Vegas_img0.tif", ("PS-RGB", 0)),
    ("vegas", "x/MUL/MUL_AOI_2_Vegas_img10.TIF", ("MS", 10)),
    ("moscow", "PS-RGB/AOI_7_Moscow_chip390.tif", ("PS-RGB", 390)),
    ("moscow", "PS-RGB_8bit/SN5_roads_train_AOI_7_Moscow_PS-RGB_chip390.tif", ("PS-RGB_8bit", 390)),
    ("moscow", "masks/SN5_roads_train_AOI_7_Moscow_PS-RGB_chip390.tif", ("masks", 390)),
    ("vegas", "AOI_2_Vegas_geojson_roads_speed_img1.geojson", ("geojson_roads_speed", 1)),
    ("vegas", "geojson_roads_speed/AOI_2_Vegas_img1.geojson", ("geojson_roads_speed", 1)),
    ("vegas", "x/SN3_roads_train_AOI_2_Vegas_geojson_roads_img1.geojson", ("geojson_roads", 1)),
]  # fmt: skip


@pytest.mark.parametrize(("city", "path", "role"), FILES)
def test_files_are_recognised_by_folder_and_name(city, path, role):
    assert city_file(CITIES[city], path) == role


@pytest.mark.parametrize(
    "path",
    [
        "SN2_buildings_train_AOI_2_Vegas_PS-RGB_img1.tif",  # same area, another mission
        "geojson/buildings/buildings_AOI_2_Vegas_img1.geojson",
        "SN3_roads_train_AOI_3_Paris_PS-RGB_img1.tif",  # another area
        "PS-RGB/SN3_roads_train_AOI_2_Vegas_PS-RGB_img1.tif.aux.xml",
        "PS-RGB/SN3_roads_train_AOI_2_Vegas_PS-RGB_img1_mask.tif",
        "PS-RGB/._SN3_roads_train_AOI_2_Vegas_PS-RGB_img1.tif",  # what macOS leaves in archives
        "train_AOI_2_Vegas_geojson_roads_speed_wkt_weighted_raw.csv",
        "",
    ],
)
def test_other_files_have_no_role(path):
    assert city_file(CITIES["vegas"], path) is None


@given(st.sampled_from(sorted(CITIES)), st.integers(0, 10**6), st.sampled_from(["PS-RGB", "PAN"]))
def test_a_name_that_is_made_is_read_back(name, number, product):
    city = CITIES[name]
    image = f"{city.folder}{product}/{city.file_name(product, number)}"
    assert city_file(city, image) == (product, number)
    label = city.file_name(city.label_folder, number)
    assert city_file(city, label) == (city.label_folder, number)
    others = [other for other in CITIES.values() if other is not city]
    assert not any(city_file(other, image) for other in others)


def test_directions_give_commands_and_the_address():
    text = directions(CITIES["moscow"])
    assert "geoprep synth --city moscow --out data/" in text
    assert "s3://spacenet-dataset/spacenet/SN5_roads/train/AOI_7_Moscow/" in text
