"""Stores whose labels are rasters."""

import contextlib
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rasterio
import zarr
from affine import Affine
from helpers.consistency import assert_consistent
from helpers.factory import PLACES, Place, build_of, plan_of, texture, write_image
from helpers.factory import write_scene as write_vector_scene
from PIL import Image
from rich.console import Console

from geoprep.building.run import build
from geoprep.building.summary import with_mask_failures
from geoprep.cli.progress import print_summary
from geoprep.errors import StoreError, UsageError
from geoprep.executors.threads import Threads
from geoprep.labels.downsampling import majority
from geoprep.palette import UNKNOWN_COLOUR, speed_colours
from geoprep.sources.scene import Scene
from geoprep.speed import NODATA, UNKNOWN_SPEED
from geoprep.store.opening import quiet_zarr
from geoprep.store.reader import seal
from geoprep.store.scenes import read_label
from geoprep.views.facts import info, render
from geoprep.views.geotiff import export_scenes
from geoprep.views.page.pictures import _png
from geoprep.views.page.records import _legend

SIDE = 96


def drawn(seed):
    """Return a mask of 0 and 255 with crossing bars and noise, and some 100, unknown."""
    rng = np.random.default_rng(seed)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    at = rng.integers(5, SIDE - 15, 2)
    mask[at[0] : at[0] + 7] = 255
    mask[:, at[1] : at[1] + 5] = 255
    mask[rng.random(mask.shape) < 0.03] = 255
    mask[: SIDE // 6, : SIDE // 6] = 100
    return mask


def scene_of(folder, name, mask):
    """Write an image and its mask on the same grid."""
    image = write_image(folder / f"{name}.tif", texture(*mask.shape), PLACES["utm"])
    label = write_image(folder / f"{name}_mask.tif", mask[..., None], PLACES["utm"])
    return Scene(name, str(image), str(label))


def codes_of(mask):
    return np.select([mask == 255, mask == 100], [UNKNOWN_SPEED, NODATA], 0).astype(np.uint8)


ROADS = {"label_values": "255", "label_nodata": "100"}


@pytest.mark.parametrize("options", [{}, {"tile": 32, "shard_tiles": 4, "overlap": 8}])
def test_a_mask_is_stored_as_roads_of_unknown_speed(tmp_path, options):
    mask = drawn(1)
    store = build_of(tmp_path / "a.zarr", [scene_of(tmp_path, "a", mask)], **ROADS, **options)
    assert store.scenes.status.tolist() == ["ok"]
    assert_consistent(store.location)
    np.testing.assert_array_equal(read_label(store, 0), codes_of(mask))
    half = np.zeros((SIDE // 2, SIDE // 2), np.uint8)
    edges = np.arange(0, SIDE + 1, 2.0)
    majority(codes_of(mask), edges, edges, half, roads=True)
    np.testing.assert_array_equal(read_label(store, 0, store.meta.levels[1]), half)
    known = mask != 100
    if not options:
        assert store.tiles.road_fraction == pytest.approx([(mask == 255)[known].mean()])


def test_a_mask_that_cannot_be_used_fails_its_scene_alone(tmp_path):
    good, bad = (scene_of(tmp_path, name, drawn(4)) for name in ("good", "bad"))
    Path(bad.label).write_bytes(Path(bad.label).read_bytes()[:400])
    away = scene_of(tmp_path, "away", drawn(4))
    there = Affine.translation(9e3, 0) * PLACES["utm"].transform
    write_image(Path(away.label), drawn(4)[..., None], Place(PLACES["utm"].crs, there))
    short = replace(scene_of(tmp_path, "short", drawn(4)), label=str(tmp_path / "short.png"))
    Image.fromarray(drawn(4)[:-1]).save(short.label)
    scenes = [away, bad, short, good]
    planned = with_mask_failures(plan_of(scenes, **ROADS), Threads(2)).scenes
    store = build_of(tmp_path / "a.zarr", scenes, **ROADS)
    assert store.scenes.status.tolist() == ["failed", "failed", "failed", "ok"]
    assert [Path(scene.failure.split(":")[0]).name for scene in planned] == [
        *("away_mask.tif", "bad_mask.tif", "short.png", "")
    ]
    assert "away_mask.tif: does not overlap its image" in store.scenes.reason[0]
    assert "bad_mask.tif" in store.scenes.reason[1]
    assert str(tmp_path) not in " ".join(store.scenes.reason)
    assert (store.speed()[...][:3] == NODATA).all()


def summary_of(folder, scenes, **options):
    return build(plan_of(scenes, **options), folder, Threads(1))


def test_flat_scenes_and_scenes_of_one_class_that_are_stretched_are_said(tmp_path):
    scenes, mask = [], np.ones((SIDE, SIDE), np.uint8)
    mask[: SIDE // 2] = 2
    for number in range(5):
        values = texture(SIDE, SIDE, seed=number)
        cover = np.ones_like(mask) if number == 3 else mask
        image = values // 8 + 90 if number == 4 else values
        write_image(tmp_path / f"{number}.tif", image, PLACES["utm"])
        write_image(tmp_path / f"{number}_mask.tif", cover[..., None], PLACES["utm"])
        paths = (str(tmp_path / f"{number}{end}.tif") for end in ("", "_mask"))
        scenes.append(Scene(str(number), *paths))
    classes = {"classes": "forest=1,cleared=2"}
    stretched = summary_of(tmp_path / "s.zarr", scenes, rescale="scene", **classes).warnings
    (said,) = (line for line in stretched if "contrast" in line)
    assert said.startswith("2 scenes of 5 are nearly of one class or have less than 33%")
    assert "use none for 8-bit images, else city" in said
    kept = summary_of(tmp_path / "k.zarr", scenes, **classes).warnings
    assert not [line for line in kept if "contrast" in line]


def test_masks_none_of_which_has_a_road_are_said(tmp_path):
    """225 for 255 would be a store without roads, built as asked."""
    scenes = [scene_of(tmp_path, name, drawn(i)) for i, name in enumerate("ab")]
    (warning,) = summary_of(tmp_path / "a.zarr", scenes, label_values="225").warnings
    assert "no road at all" in warning
    assert "`label_values`" in warning
    again = summary_of(tmp_path / "a.zarr", scenes, label_values="225")
    assert (again.state, again.warnings) == ("unchanged", (warning,))
    console = io.StringIO()
    with contextlib.redirect_stdout(console):
        print_summary(again, [], quiet=False)
    assert "no road at all" in console.getvalue()


def test_a_mask_without_a_road_among_others_is_a_scene_without_roads(tmp_path):
    masks = {"a": drawn(1), "fields": np.zeros((SIDE, SIDE), np.uint8)}
    scenes = [scene_of(tmp_path, name, mask) for name, mask in masks.items()]
    assert summary_of(tmp_path / "a.zarr", scenes, **ROADS).warnings == ()


# --- the store says so --------------------------------------------------------------------------


@pytest.fixture
def masked(tmp_path):
    """A store of masks."""
    scenes = [scene_of(tmp_path / "in", f"s{i}", drawn(i)) for i in range(3)]
    return build_of(tmp_path / "masks.zarr", scenes, **ROADS)


def test_facts_of_masks_name_no_speed(masked):
    facts = info(masked)
    assert not masked.meta.has_speeds
    assert facts["speeds"] == {}
    assert facts["speed_unit"] == "none"
    train = masked.tiles.split == 0
    assert facts["unknown_speed"] == (masked.speed()[...][train] == UNKNOWN_SPEED).sum()
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(facts))
    text = console.export_text()
    assert "unknown" in text
    assert "254" not in text.partition("mph")[2]


def test_the_page_has_a_colour_for_unknown_speeds(masked):
    assert list(_legend(info(masked), masked.meta)["bins"]) == ["0"]
    assert _legend(info(masked), masked.meta)["bins"]["0"]["label"] == "road"
    bytes_ = np.array([[0, 25, 253, 254]], np.uint8)
    with Image.open(io.BytesIO(_png(bytes_, speed_colours(), clear=True))) as picture:
        assert np.asarray(picture).tolist() == [[0, 25, 252, 254]]
        shown = np.asarray(picture.convert("RGB"))[0, 3]
    assert tuple(shown.tolist()) == UNKNOWN_COLOUR


def test_exported_masks_can_be_built_again(masked, tmp_path):
    (mask,) = export_scenes(masked, "s1", tmp_path / "s1_mask.tif", what="label")
    with rasterio.open(mask) as file:
        assert file.descriptions == ("road",)
        assert "mph" not in file.units
        np.testing.assert_array_equal(file.read(1), codes_of(drawn(1)))
    again = Scene("s1", str(tmp_path / "in" / "s1.tif"), str(mask))
    store = build_of(tmp_path / "again.zarr", [again], label_values="254")
    np.testing.assert_array_equal(store.speed()[0], codes_of(drawn(1)))


# --- options ------------------------------------------------------------------------------------


def test_masks_need_an_option_for_their_values(tmp_path):
    with pytest.raises(UsageError, match=r"a_mask.tif is a raster.*contains 0, 100 and 255"):
        plan_of([scene_of(tmp_path, "a", drawn(1))])


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_one_mask_for_many_images_must_be_georeferenced(tmp_path):
    scenes = [scene_of(tmp_path, name, drawn(1)) for name in ("a", "b")]
    label = str(write_image(tmp_path / "all.tif", drawn(1)[..., None], PLACES["utm"]))
    shared = [replace(scene, label=label) for scene in scenes]
    assert build_of(tmp_path / "a.zarr", shared, **ROADS).scenes.status.tolist() == ["ok", "ok"]
    write_image(Path(label), drawn(1)[..., None], Place(None, Affine.identity()))
    with pytest.raises(UsageError, match=r"all\.tif is the label of 2 images"):
        plan_of(shared, **ROADS)


def test_options_for_masks_beside_vectors_are_refused(tmp_path):
    scene = write_vector_scene(tmp_path, "a", texture(SIDE, SIDE))
    with pytest.raises(UsageError, match=r"a\.geojson is a vector file"):
        plan_of([scene], label_values="255")


def test_a_store_from_before_an_option_was_there_is_complete(tmp_path):
    scene, out = write_vector_scene(tmp_path, "a", texture(SIDE, SIDE)), tmp_path / "a.zarr"
    build_of(out, [scene])
    root = zarr.open_group(out, mode="r+")
    attrs = dict(root.attrs)["geoprep"]
    for name in ("buffer", "width_field", "label_values"):
        del attrs["build"]["options"][name]
    root.update_attributes({"geoprep": attrs})
    zarr.open_group(out, mode="r+", use_consolidated=False)["ledger"].attrs["meta"] = seal(attrs)
    with quiet_zarr():
        zarr.consolidate_metadata(out)
    assert build(plan_of([scene]), out, Threads(1)).state == "unchanged"
    with pytest.raises(StoreError, match=r"buffer was 2\.0, now 3\.0"):
        build(plan_of([scene], buffer=3.0), out, Threads(1))
