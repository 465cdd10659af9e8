"""The sheet shows what is there, reads no more than it shows, and can be read by everyone."""

import tracemalloc

import numpy as np
import pytest
from helpers.factory import build_of, texture, write_scene
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from geoprep.errors import UsageError
from geoprep.palette import (
    BACKGROUND_COLOUR,
    SPEED_COLOURS,
    UNKNOWN_COLOUR,
    bin_label,
    speed_bin,
    speed_colours,
)
from geoprep.store import scenes
from geoprep.views import display, sheet
from geoprep.views import overview as module
from geoprep.views.display import natural_bands
from geoprep.views.overview import choose_scenes, preview


@pytest.fixture
def views(monkeypatch):
    """Return the list that every sheet's scenes go to instead of being drawn."""
    drawn: list[sheet.SceneView] = []

    def draw(path, shown, columns, header):
        drawn.extend(shown)
        path.write_bytes(b"")

    monkeypatch.setattr(sheet, "draw", draw)
    return drawn


def test_a_sheet_of_every_kind_of_scene_is_a_picture_of_the_size_of_its_layout(store, tmp_path):
    kinds = ["city_1", "border", "empty", "black", "broken", "unlabelled", "utm_small"]
    path = preview(store, tmp_path / "sheet.png", scenes=kinds)
    picture = imread(path)
    assert picture.shape[1] == sheet.PAGE * sheet.DPI
    assert {p.name for p in tmp_path.iterdir()} == {"sheet.png"}
    rgb = np.round(picture[..., :3] * 255).astype(int)
    assert (rgb[0] == 255).all()  # a margin of paper
    drawn = (BACKGROUND_COLOUR, SPEED_COLOURS[6], SPEED_COLOURS[2])  # motorway, residential
    for colour in drawn:
        assert (rgb == colour).all(axis=2).mean() > 0.001, colour


def test_choice_shows_every_split_and_status(store):
    for count in range(4, 16):
        chosen = choose_scenes(store, count)
        assert len(chosen) == count == len(set(chosen))
        status = store.scenes.status[chosen]
        ok = [scene for scene in chosen if store.scenes.status[scene] == "ok"]
        assert set(scenes.scene_splits(store)[ok]) == {0, 1, 2}
        odd = count - len(ok)
        assert len(set(status)) - 1 == min(odd, 3)
        assert odd >= 1
    assert sorted(choose_scenes(store, 100)) == list(range(15))


def test_scenes_with_much_nodata_come_last(store, monkeypatch):
    scene = choose_scenes(store, 1)[0]
    shares = np.ones(len(store.scenes))
    shares[scene] = 0.5
    monkeypatch.setattr(module, "valid_share", lambda _, scene: shares[scene])
    assert scene not in choose_scenes(store, 1)


def test_scenes_can_be_counted_or_named(store, views, tmp_path):
    preview(store, tmp_path / "a.png", scenes=["utm_south", "3"])
    assert [store.scenes.id[view.scene] for view in views] == ["utm_south", "city_3"]
    preview(store, tmp_path / "c.png", count=3)
    assert len(views) == 2 + 3
    with pytest.raises(UsageError, match="no scene"):
        preview(store, tmp_path / "b.png", scenes=["city_77"])


@pytest.mark.parametrize(("level", "expected"), [(None, 64), (32, 32), (64, 64)])
def test_only_tiles_that_are_shown_are_read(store, views, tmp_path, monkeypatch, level, expected):
    read = []
    original = scenes.TileReader.read

    def counted(reader, tile):
        read.append((reader.layout.array, tile))
        return original(reader, tile)

    monkeypatch.setattr(scenes.TileReader, "read", counted)
    preview(store, tmp_path / "a.png", scenes=["city_2", "city_black", "city_4"], level=level)
    tiles = np.flatnonzero(np.isin(store.tiles.scene, [2, 4])).tolist()
    names = (f"{expected}/image", f"{expected}/speed")
    assert sorted(read) == sorted((name, tile) for name in names for tile in tiles)


def test_pixels_have_their_shape_on_the_ground(store, views, tmp_path):
    preview(store, tmp_path / "a.png", scenes=["city_1", "utm_north"])
    city, utm = views
    # At 55.75 degrees north a degree of longitude is 0.5640 of one of latitude on the ellipsoid.
    assert city.aspect == pytest.approx(150 / 130 / 0.5640, rel=0.01)
    assert city.width_m == pytest.approx(130 * 2.7e-6 * 62_780, rel=0.01)
    assert utm.aspect == pytest.approx(97 / 131, rel=1e-3)
    assert utm.width_m == pytest.approx(65.5, rel=1e-3)


def test_south_up_scene_is_shown_north_up(store, views, tmp_path):
    preview(store, tmp_path / "a.png", scenes=["utm_south", "utm_north"], level=64)
    south, north = views
    index = list(store.scenes.id).index("utm_south")
    np.testing.assert_array_equal(south.label, scenes.read_label(store, index, 64)[::-1])
    index = list(store.scenes.id).index("utm_north")
    np.testing.assert_array_equal(north.label, scenes.read_label(store, index, 64))


def test_scene_that_has_no_pixels_is_shown_as_no_data(store, views, tmp_path):
    preview(store, tmp_path / "a.png", scenes=["city_broken", "city_truncated", "city_border"])
    broken, truncated, border = views
    for view in (broken, truncated):
        assert view.nodata.all()
        assert (view.label == 255).all()
        assert "not readable as a vector" in store.scenes.reason[broken.scene]
    np.testing.assert_array_equal(border.nodata[0], np.arange(130) < 37)
    picture = sheet._picture(border, "speed")
    greys = {tuple(colour) for colour in picture[:, :37].reshape(-1, 3).tolist()}
    assert len(greys) == 2  # the stripes of the hatch
    assert greys.isdisjoint({tuple(c) for c in picture[:, 37:].reshape(-1, 3).tolist()})


def test_overlay_has_the_colours_of_the_roads(store, views, tmp_path):
    preview(store, tmp_path / "a.png", scenes=["city_5"])
    (view,) = views
    road = (view.label > 0) & (view.label < 255)
    overlay = sheet._picture(view, "overlay")
    np.testing.assert_array_equal(overlay[road], speed_colours()[view.label[road]])
    np.testing.assert_array_equal(sheet._picture(view, "image"), view.rgb)


def test_imagery_of_one_band_is_drawn_grey(views, tmp_path):
    pixels = texture(64, 64, 1)
    scene = write_scene(tmp_path, "pan_1", pixels)
    preview(build_of(tmp_path / "p.zarr", [scene], rescale="none"), tmp_path / "a.png")
    (view,) = views
    assert view.rgb.shape == (64, 64, 3)
    assert (np.diff(view.rgb.astype(int), axis=2) == 0).all()
    order = np.argsort(pixels.ravel(), kind="stable")
    assert (np.diff(view.rgb[..., 0].ravel()[order].astype(int)) >= 0).all()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("red", "green", "blue"), (0, 1, 2)),
        (("coastal", "blue", "green", "yellow", "red", "red edge", "nir1", "nir2"), (4, 2, 1)),
        (("band 1", "band 2", "band 3", "band 4"), (0, 1, 2)),
        (("pan",), (0,)),
        (("nir", "red"), (0,)),
    ],
)
def test_bands_are_shown_in_natural_colour(names, expected):
    assert natural_bands(names) == expected


@pytest.mark.parametrize(("low", "high", "brighter"), [(5, 60, True), (1, 255, False)])
def test_dark_imagery_is_brightened_and_no_other(low, high, brighter):
    class Dark:
        histogram_band = np.zeros((3, 256), np.uint64)

        class meta:  # noqa: N801 - stands for an attribute
            bands = ("red", "green", "blue")

    Dark.histogram_band[:, low : high + 1] = 1000
    table = display.brightness_table(Dark)
    middle = (low + high) // 2
    assert (np.diff(table.astype(int)) >= 0).all()
    assert table[low] <= 5
    assert table[high] >= 250
    assert (table[middle] > middle + 20) is np.bool_(brighter)


@given(
    step=st.integers(2, 4),
    speed=st.lists(st.sampled_from([0, 0, 25, 65, 254, 255]), min_size=64, max_size=64),
)
def test_thinning_loses_no_road_and_invents_no_data(step, speed):
    """Known speeds come before unknown ones (254), and these before the background."""
    mask = np.array(speed, np.uint8).reshape(8, 8)
    thin = display.thinned_speed(mask, step)
    for y in range(8 // step):
        for x in range(8 // step):
            block = mask[y * step : (y + 1) * step, x * step : (x + 1) * step]
            found = {*block.ravel().tolist()}
            other = next((byte for byte in (254, 0, 255) if byte in found), 0)
            assert thin[y, x] == max(found - {0, 254, 255}, default=other)


def test_every_speed_has_the_colour_and_label_of_its_bin():
    table = speed_colours()
    assert tuple(table[0]) == BACKGROUND_COLOUR
    for mph in range(1, 254):
        assert tuple(table[mph]) == SPEED_COLOURS[speed_bin(mph) - 1]
    assert tuple(table[254]) == UNKNOWN_COLOUR
    assert [bin_label(speed_bin(mph)) for mph in (9, 15, 20, 21, 45, 60, 65, 80)] == [
        "≤ 10", "11–20", "11–20", "21–30", "41–50", "51–60", "> 60", "> 60",
    ]  # fmt: skip


def test_a_large_scene_is_read_in_strips(tmp_path, views):
    """What is shown is what the whole scene gives; what is in memory is not the whole scene."""
    scene = write_scene(tmp_path, "large", texture(1200, 1200))
    opened = build_of(tmp_path / "x.zarr", [scene], tile=32, levels=1, shard_tiles=256)
    image, speed = scenes.read_image(opened, 0), scenes.read_label(opened, 0)
    assert opened.tiles is opened.tiles  # read before memory is looked at
    tracemalloc.start()
    thin_image, thin_speed = display.read_thinned(opened, 0, 32, 7)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(thin_image, display.thinned_image(image, 7))
    np.testing.assert_array_equal(thin_speed, display.thinned_speed(speed, 7))
    assert peak < 0.4 * image.nbytes
