"""Stores whose labels are moved: a label that was displaced is where it was before."""

import numpy as np
import pytest
from affine import Affine
from helpers.consistency import assert_consistent
from helpers.factory import (
    PLACES,
    ROADS,
    Place,
    build_of,
    interrupt,
    plan_of,
    texture,
    tree_digest,
    write_image,
    write_roads,
)
from PIL import Image

import geoprep as gp
from geoprep.build.run import build
from geoprep.errors import StoreError
from geoprep.executors import Threads
from geoprep.sources import Scene
from geoprep.speed import NODATA
from geoprep.store import StoreReader, level_grid, read_label

SIDE = 96
RIGHT, DOWN = 5, -3
"""Pixels by which labels are displaced."""


def displaced(place, right=RIGHT, down=DOWN):
    """Return a place some pixels to the right of another one, and below."""
    return Place(place.crs, place.transform * Affine.translation(right, down))


def metres(store, right=RIGHT, down=DOWN):
    """Return the metres that move a label back."""
    x, y = level_grid(store, 0, store.meta.levels[0]).gsd_m()
    return -right * x, -down * y


def listed(path, dx, dy, scene="a", more=""):
    path.write_text(f"scene,dx,dy{',interval' if more else ''}\n{scene},{dx},{dy}{more}\n")
    return str(path)


def labels(store, scene=0):
    return [read_label(store, scene, level) for level in store.meta.levels]


def road_scene(folder, place, of_label):
    image = write_image(folder / "a.tif", texture(SIDE, SIDE), place)
    label = write_roads(folder / "a.geojson", of_label, (SIDE, SIDE))
    return Scene("a", str(image), str(label))


TILES = {"tile": 32, "shard_tiles": 2, "overlap": 8}


@pytest.mark.parametrize(
    ("place", "by"), [*((place, (RIGHT, DOWN)) for place in PLACES), ("mercator", (0.37, 1.64))]
)
def test_vector_labels_are_moved_exactly(tmp_path, place, by):
    place = PLACES[place]
    right = road_scene(tmp_path / "right", place, place)
    before = build_of(tmp_path / "before.zarr", [right], **TILES)
    wrong = road_scene(tmp_path / "wrong", place, displaced(place, *by))
    unmoved = build_of(tmp_path / "unmoved.zarr", [wrong], **TILES)
    assert any((a != b).any() for a, b in zip(labels(unmoved), labels(before), strict=True))
    file = listed(tmp_path / "offsets.csv", *metres(before, *by))
    after = build_of(tmp_path / "after.zarr", [wrong], label_offsets=file, **TILES)
    for found, expected in zip(labels(after), labels(before), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(after.tiles.road_fraction, before.tiles.road_fraction)
    assert_consistent(after.location)


def test_each_scene_of_a_shared_road_file_is_moved_by_itself(tmp_path):
    place, stores = PLACES["utm"], []
    beside = displaced(place, SIDE, 0)
    for name, at in (("a", place), ("b", beside)):
        write_image(tmp_path / f"images/{name}.tif", texture(SIDE, SIDE), at)
    wide = [([(x * 0.5, y) for x, y in line], names) for line, names in ROADS]
    for name, at in (("right", place), ("wrong", displaced(place))):
        roads = write_roads(tmp_path / f"{name}.geojson", at, (SIDE, 2 * SIDE), wide + list(ROADS))
        file = None
        if stores:
            file = listed(tmp_path / "offsets.csv", *metres(stores[0].reader), scene="b")
        out, images = tmp_path / f"{name}.zarr", tmp_path / "images"
        options = {"label_offsets": file} if file else {}
        stores.append(
            gp.build_zarr(images=images, labels=roads, out=out, progress=False, **options)
        )
    before, after = (store.reader for store in stores)
    np.testing.assert_array_equal(read_label(after, 1), read_label(before, 1))
    assert (read_label(after, 0) != read_label(before, 0)).any()


def mask(side=SIDE):
    """Return a mask of 0 and 255 of crossing bars and noise."""
    found = np.zeros((side, side), np.uint8)
    found[20:27], found[:, 50:54] = 255, 255
    found[np.random.default_rng(0).random(found.shape) < 0.05] = 255
    return found


def moved(values, right=RIGHT, down=DOWN):
    """Return values moved by some pixels, 9 where nothing is known."""
    found = np.full_like(values, 9)
    height, width = values.shape
    found[max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)] = values[
        max(0, -down) : height + min(0, -down), max(0, -right) : width + min(0, -right)
    ]
    return found


def mask_scene(folder, values, kind):
    """Write an image and a mask on its grid, on a finer one, or both without a georeference."""
    place, fine = PLACES["utm"], Affine.scale(0.5)
    if kind == "plain":
        for name, pixels in (("a", texture(*values.shape)), ("a_mask", values)):
            folder.mkdir(exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{name}.png")
        return Scene("a", str(folder / "a.png"), str(folder / "a_mask.png"))
    image = write_image(folder / "a.tif", texture(*values.shape), place)
    if kind == "finer":
        values, place = (
            np.kron(values, np.ones((2, 2), np.uint8)),
            Place(place.crs, place.transform * fine),
        )
    label = write_image(folder / "a_mask.tif", values[..., None], place)
    return Scene("a", str(image), str(label))


MASKS = {"label_values": "255", "label_nodata": "9"}


@pytest.mark.parametrize("kind", ["same", "finer", "plain"])
def test_raster_labels_are_moved_by_whole_pixels(tmp_path, kind):
    options = MASKS | TILES | ({"pixel_size": 0.31} if kind == "plain" else {})
    right = mask_scene(tmp_path / "right", mask(), kind)
    before = build_of(tmp_path / "before.zarr", [right], **options)
    wrong = mask_scene(tmp_path / "wrong", moved(mask()), kind)
    dx, dy = metres(before)
    file = listed(tmp_path / "offsets.csv", dx * 1.05, dy * 0.95)
    after = build_of(tmp_path / "after.zarr", [wrong], label_offsets=file, **options)
    inside = np.zeros((SIDE, SIDE), bool)
    inside[-DOWN:, : SIDE - RIGHT] = True
    found, expected = read_label(after, 0), read_label(before, 0)
    np.testing.assert_array_equal(found[inside], expected[inside])
    assert (found[~inside] == NODATA).all()
    assert not (expected == NODATA).any()
    assert_consistent(after.location)


def test_a_mask_that_moves_out_of_its_scene_leaves_it_unlabelled(tmp_path):
    scene = mask_scene(tmp_path, mask(), "same")
    file = listed(tmp_path / "offsets.csv", 1000, -1000)
    store = build_of(tmp_path / "x.zarr", [scene], label_offsets=file, **MASKS)
    assert (read_label(store, 0) == NODATA).all()


def test_a_mosaic_of_masks_gives_the_pixels_that_move_in_from_beside_a_scene(tmp_path):
    """The masks cover more ground than the image, whose middle they are moved into."""
    wide, place = mask(2 * SIDE), PLACES["utm"]
    image = write_image(tmp_path / "images/a.tif", texture(SIDE, SIDE), displaced(place, 40, 50))
    halves = {"left": (wide[:, :SIDE], 0), "right": (wide[:, SIDE:], SIDE)}
    for name, (half, left) in halves.items():
        write_image(tmp_path / f"masks/{name}.tif", half[..., None], displaced(place, left, 0))
    gsd = 0.31
    file = listed(tmp_path / "offsets.csv", 12 * gsd, -7 * gsd)
    store = gp.build_zarr(
        images=image.parent,
        labels=tmp_path / "masks",
        label_values="255",
        label_offsets=file,
        out=tmp_path / "x.zarr",
        progress=False,
    )
    expected = wide[57 : 57 + SIDE, 28 : 28 + SIDE] == 255
    np.testing.assert_array_equal(read_label(store.reader, 0) > 0, expected)


def test_classes_are_moved_and_values_outside_the_image_are_not_refused(tmp_path):
    values = np.ones((SIDE, SIDE), np.uint8)
    values[30:40] = 2
    values[:, :RIGHT] = 77  # of no class; it moves out
    scene = mask_scene(tmp_path, values, "same")
    file = listed(tmp_path / "offsets.csv", -RIGHT * 0.31, 0)
    classes = {"classes": "ground=1,water=2"}
    assert build_of(tmp_path / "no.zarr", [scene], **classes).scenes.status[0] == "failed"
    for name, tiles in (("one", {}), ("more", {"tile": 32, "shard_tiles": 2})):
        out = tmp_path / f"{name}.zarr"
        store = build_of(out, [scene], label_offsets=file, **classes, **tiles)
        assert store.scenes.status[0] == "ok"
        found = read_label(store, 0)
        assert (found[:, -RIGHT:] == NODATA).all()
        assert (found[30:40, :-RIGHT] == 1).all()


def test_a_label_whose_offset_is_not_certain_keeps_its_bytes(tmp_path):
    place = PLACES["utm"]
    scene = road_scene(tmp_path, place, displaced(place))
    before = build_of(tmp_path / "before.zarr", [scene])
    dx, dy = metres(before)
    wide = listed(tmp_path / "wide.csv", dx, dy, more=f",{np.hypot(dx, dy) * 1.01}")
    after = build_of(tmp_path / "after.zarr", [scene], label_offsets=wide)
    for found, expected in zip(labels(after), labels(before), strict=True):
        np.testing.assert_array_equal(found, expected)
    summary = build(plan_of([scene], label_offsets=wide), tmp_path / "after.zarr", Threads(1))
    assert (summary.moved_labels, summary.uncertain_offsets) == (0, ("a",))
    narrow = listed(tmp_path / "narrow.csv", dx, dy, more=f",{np.hypot(dx, dy) * 0.99}")
    moved_one = build_of(tmp_path / "moved.zarr", [scene], label_offsets=narrow)
    assert (labels(moved_one)[0] != labels(before)[0]).any()


def test_an_interrupted_build_resumes_and_a_changed_file_is_another_build(tmp_path):
    place = PLACES["utm"]
    scenes = []
    for name in "abc":
        label = write_roads(tmp_path / f"{name}.geojson", place, (64, 64))
        image = write_image(tmp_path / f"{name}.tif", texture(64, 64), place)
        scenes.append(Scene(name, str(image), str(label)))
    options = {"shard_tiles": 1, "label_offsets": listed(tmp_path / "o.csv", 2, 1, scene="*")}
    whole = build_of(tmp_path / "whole.zarr", scenes, **options).location
    interrupt(plan_of(scenes, **options), tmp_path / "x.zarr", 2)
    summary = build(plan_of(scenes, **options), tmp_path / "x.zarr", Threads(2))
    assert summary.state == "resumed"
    assert (summary.moved_labels, summary.uncertain_offsets) == (3, ())
    assert tree_digest(tmp_path / "x.zarr") == tree_digest(tmp_path / "whole.zarr")
    assert build(plan_of(scenes, **options), tmp_path / "x.zarr", Threads(1)).state == "unchanged"
    listed(tmp_path / "o.csv", 2, 2, scene="*")
    with pytest.raises(StoreError, match="the images or labels have changed"):
        build(plan_of(scenes, **options), tmp_path / "x.zarr", Threads(1))
    with pytest.raises(StoreError, match=r"label_offsets was o\.csv, now None"):
        build(plan_of(scenes, shard_tiles=1), tmp_path / "x.zarr", Threads(1))
    assert not gp.check_store(tmp_path / "x.zarr", progress=False).problems
    assert StoreReader.open(whole).meta.build["options"]["label_offsets"] == "o.csv"
    assert gp.open_store(tmp_path / "x.zarr").info()["statuses"]["ok"] == 3
