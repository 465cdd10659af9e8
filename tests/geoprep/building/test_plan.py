"""What a build will do, before a pixel is read."""

import math
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from helpers.factory import PLACES, Place, plan_of, row_of_scenes, texture, write_image
from rasterio.shutil import copy as copy_raster

import geoprep
from geoprep.building.options import BuildOptions
from geoprep.building.plan import make_plan
from geoprep.errors import SourceError, UsageError
from geoprep.executors.threads import Threads
from geoprep.sources.archives import index_tar
from geoprep.sources.scene import Scene, SourceScenes
from geoprep.storage.addresses import member_address
from geoprep.storage.versions import sample_digest


def image(folder, name, values, place=PLACES["degrees"], **options):
    return Scene(name, str(write_image(folder / f"{name}.tif", values, place, **options)), None)


@pytest.mark.parametrize(
    ("options", "tile", "shape", "tiles"),
    [
        ({}, 260, (260, 260), 1),
        ({"tile": 130}, 130, (260, 260), 4),
        ({"tile": 100, "overlap": 20}, 100, (260, 260), 9),
        ({"resize": 96}, 96, (96, 96), 1),
        ({"resize": 512}, 512, (512, 512), 1),
        ({"gsd": 0.6}, 130, (130, 105), 1),  # degrees: 0.243 x 0.300 m
        ({"gsd": 0.15, "tile": 256}, 256, (519, 421), 6),
    ],
)
def test_resolution_and_tiling_combine(tmp_path, options, tile, shape, tiles):
    plan = plan_of(row_of_scenes(tmp_path, 2, 260), **options)
    assert plan.meta.tile == tile
    assert plan.scenes[0].windows.shape == shape
    assert len(plan.scenes[0].windows) == tiles


def test_ground_sample_distance_is_that_of_the_finest_level(tmp_path):
    scenes = row_of_scenes(tmp_path, 2, 260)
    assert plan_of(scenes).meta.gsd_m == pytest.approx((0.2427, 0.2996), abs=1e-4)
    assert plan_of(scenes, gsd=0.6).meta.gsd_m == pytest.approx((0.6, 0.6), rel=0.01)
    assert plan_of(scenes, resize=130).meta.gsd_m == pytest.approx((0.4854, 0.5993), abs=2e-4)


def test_images_of_two_pixel_sizes_are_noted(tmp_path):
    affines = Affine(0.5, 0, 5e5, 0, -0.5, 9), Affine(2, 0, 5.1e5, 0, -2, 9)
    scenes = [
        image(tmp_path, name, texture(80, 80), Place("EPSG:32637", affine))
        for name, affine in zip(("fine", "coarse"), affines, strict=True)
    ]
    said = "pixels are of 0.5 m (fine) to 2 m (coarse)"
    assert any(note.startswith(said) for note in plan_of(scenes).notes)
    assert not any("pixels are of" in note for note in plan_of(scenes, gsd=1).notes)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gsd": 0.5, "resize": 256}, "`gsd` and `resize`"),
        *(({"resize": 256} | one, "`resize`") for one in ({"tile": 128}, {"overlap": 8})),
        *(({"gsd": value}, "`gsd`") for value in (0.0, -1.0, math.nan, math.inf)),
        *(({"bands": value}, "`bands`") for value in ((), (0, 1))),
        ({"max_nodata": 1.1}, "`max_nodata`"),
        ({"val": 1.1}, "`val`"),
        ({"pixel_size": 0.0}, "`pixel_size`"),
        ({"val": 0.6, "test": 0.6}, "`val` and `test`"),
        ({"test": -0.1}, "`test` -0.1: must be from 0 to 1"),
        *(({"block_km": value}, "`block_km`") for value in (0.0, math.nan)),
        *(({name: 0}, f"`{name}`") for name in ("tile", "resize", "levels", "shard_tiles")),
        ({"levels": 20}, "`levels` 20"),
        ({"shard_tiles": 10**9}, "`shard_tiles` 1000000000"),
        ({"label_values": "255", "label_speeds": "mph"}, "use one of them"),
        ({"label_values": "roads"}, "write a value such as 255"),
        ({"label_nodata": "1"}, "needs `label_values`"),
        *(({"buffer": value}, f"`buffer` {value:.0f}") for value in (0.0, math.nan)),
    ],
)
def test_options_out_of_range_are_refused(options, says):
    with pytest.raises(UsageError, match=says):
        BuildOptions(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tile": 65}, "`tile` of 66|`tile` of 64"),  # two levels
        ({"tile": 64, "overlap": 64}, "`overlap` 64"),
        ({"rescale": "best"}, "`rescale` best"),
        ({"rescale": "900,100"}, "LO below HI"),
        ({"tile": 100_000}, "a tile of 100000 x 100000 pixels in 3 bands"),
        ({"resize": 100_000}, "a tile of 100000 x 100000 pixels in 3 bands"),
        ({"gsd": 1e-9}, "`gsd` 1e-09"),
        ({"gsd": 1e-4}, "times as fine as the images, whose pixels are 0.243 m"),
    ],
)
def test_options_that_do_not_fit_the_images_are_refused(tmp_path, options, says):
    with pytest.raises(UsageError, match=says):
        plan_of(row_of_scenes(tmp_path, 3), **options)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"out": "a.zarr"}, UsageError, "`city` or `images`"),
        ({"images": "in"}, UsageError, "`out`"),
        ({"city": "moscow", "tiles": 64}, TypeError, "tiles"),
    ],
)
def test_keywords_that_contradict_each_other_are_named(options, error, says):
    with pytest.raises(error, match=says):
        geoprep.build_zarr(progress=False, **options)


# What becomes bytes, and how


def test_each_scene_is_stretched_unless_another_rule_is_given(tmp_path):
    scenes = [
        image(tmp_path, "a", texture(64, 64)),
        image(tmp_path, "b", texture(64, 64, 3, "uint16")),
    ]
    with pytest.raises(UsageError, match="`rescale` none needs uint8"):
        plan_of(scenes, rescale="none")
    with pytest.raises(UsageError, match="`rescale` city needs images of one data type"):
        plan_of(scenes, rescale="city")
    assert plan_of(scenes).meta.rescale == "scene"
    assert plan_of(scenes[:1]).meta.rescale == "none"
    assert plan_of(scenes[:1], rescale="none").meta.rescale == "none"
    assert plan_of(scenes, rescale="0,2047").meta.rescale == "0,2047"


def test_images_of_classes_share_their_limits_where_they_can(tmp_path):
    kept = image(tmp_path, "bytes", texture(64, 64))
    wide = [image(tmp_path, name, texture(64, 64, 3, "uint16")) for name in "ab"]
    rules = [plan_of(scenes, classes="land=0,water=1").meta.rescale for scenes in ([kept], wide)]
    assert rules == ["none", "city"]
    assert plan_of([kept, *wide], classes="land=0,water=1").meta.rescale == "scene"
    assert plan_of(wide).meta.rescale == "scene"  # of roads


# Bands


def test_all_bands_but_alpha_by_default(tmp_path):
    alpha = np.full((64, 64), 255, np.uint8)
    assert plan_of([image(tmp_path, "a", texture(64, 64, 5))]).meta.band_indexes == (1, 2, 3, 4, 5)
    plan = plan_of([image(tmp_path, "b", texture(64, 64, 3), alpha=alpha)])
    assert plan.meta.bands == ("red", "green", "blue")


def test_bands_of_spacenet_products_have_names(tmp_path):
    scenes = [image(tmp_path, "a", texture(64, 64, 8, "uint16"))]
    plan = plan_of(scenes, product="PS-MS", bands=(5, 3, 2))
    assert plan.meta.bands == ("red", "green", "blue")
    assert plan.meta.band_indexes == (5, 3, 2)
    assert plan_of(scenes, product="PS-MS").meta.bands[0] == "coastal"
    four = [image(tmp_path, "b", texture(64, 64, 4))]
    assert plan_of(four, product="PS-RGB").meta.band_indexes == (1, 2, 3)


def test_images_of_other_bands_than_most_are_refused_by_name(tmp_path):
    """In whatever order: three bands of eight are not red, green and blue."""
    rgb = [image(tmp_path, f"rgb_{i}", texture(64, 64)) for i in range(3)]
    odd = image(tmp_path, "eight", texture(64, 64, 8))
    for scenes in ([*rgb, odd], [odd, *rgb]):
        plan = plan_of(scenes)
        assert plan.meta.band_indexes == (1, 2, 3)
        failures = {scene.id: scene.failure for scene in plan.scenes}
        assert "eight.tif has bands 1,2,3,4,5,6,7,8" in failures.pop("eight")
        assert not any(failures.values())
        assert not any(scene.failure for scene in plan_of(scenes, bands=(3, 2, 1)).scenes)


# Images that cannot be used


def test_no_usable_image_at_all_is_an_error_that_quotes_the_first(tmp_path):
    scenes = [Scene(name, str(tmp_path / f"{name}.tif"), None) for name in ("gone", "lost")]
    with pytest.raises(SourceError, match=r"none of the images.*gone\.tif: no such file"):
        plan_of(scenes)


# Several sources


def test_only_one_road_file_serves_all_scenes(tmp_path):
    scenes = tuple(Scene(s.id, s.image, None) for s in row_of_scenes(tmp_path, 3))
    files = str(tmp_path / "quay_0.geojson"), "other.gpkg"
    two = [
        SourceScenes(scenes, origin, shared_label=file)
        for origin, file in zip("xy", files, strict=True)
    ]
    with pytest.raises(UsageError, match="several label files for all scenes"):
        make_plan(two, ["a", "b"], BuildOptions(), Threads(1))


# The digest of the inputs, and the plan as data


def test_the_digest_of_inputs_sees_contents_and_names_not_paths_or_times(tmp_path):
    def digest(scenes, **options):
        return plan_of(scenes, **options).meta.build["inputs"]

    scenes = row_of_scenes(tmp_path / "here", 3)
    moved = row_of_scenes(tmp_path / "there", 3)
    before = digest(scenes)
    assert before == digest(moved) == digest(scenes, tile=64)
    os.utime(scenes[0].image, ns=(1, 1))
    assert digest(scenes) == before
    assert digest(scenes[:2]) != before
    assert digest([replace(scenes[0], id="renamed"), *scenes[1:]]) != before
    assert digest([replace(scenes[0], label=None), *scenes[1:]]) != before


def test_images_that_differ_outside_of_their_samples_are_compared(tmp_path, monkeypatch):
    for name in ("_SAMPLE", "_SMALL_SAMPLE", "_LEAST_STEP", "_WHOLE"):
        monkeypatch.setattr(f"geoprep.storage.versions.{name}", 16)
    scenes = [Scene(name, str(tmp_path / f"{name}.tif"), None) for name in "abcd"]
    values = texture(64, 64)
    for scene in scenes:
        write_image(Path(scene.image), values, compress=None)
    pixels = bytearray(Path(scenes[0].image).read_bytes())
    step = -(-len(pixels) // 128)
    pixels[step * 60 + 20] ^= 1  # of two of them
    for scene in scenes[2:]:
        Path(scene.image).write_bytes(pixels)
    assert len({sample_digest(scene.image) for scene in scenes}) == 1
    a, b, c, d = (scene.inputs.digest for scene in plan_of(scenes).scenes)
    assert a == b != c == d
    a, b, c = (scene.inputs.digest for scene in plan_of(scenes[1:]).scenes)
    assert a != b == c


def test_equal_text_of_two_virtual_rasters_is_not_one_image(tmp_path):
    scenes = [Scene(name, str(tmp_path / name / "mosaic.vrt"), None) for name in "abc"]
    for scene, seed in zip(scenes, (0, 1, 0), strict=True):
        tile = write_image(tmp_path / scene.id / "tile.tif", texture(64, 64, seed=seed))
        copy_raster(tile, scene.image, driver="VRT")
    assert len({Path(scene.image).read_text() for scene in scenes}) == 1
    a, b, c = (scene.inputs.digest for scene in plan_of(scenes).scenes)
    assert a == c != b


def test_an_archive_and_its_folder_are_the_same_inputs(tmp_path):
    scenes = row_of_scenes(tmp_path, 2)
    archive = tmp_path / "all.tar"
    with tarfile.open(archive, "w") as tar:
        for scene in scenes:
            tar.add(scene.image, f"{scene.id}.tif")
            tar.add(scene.label, f"{scene.id}.geojson")
    at = {name: member_address(archive, name, *place) for name, place in index_tar(archive).items()}
    packed = [Scene(s.id, at[f"{s.id}.tif"], at[f"{s.id}.geojson"]) for s in scenes]
    assert plan_of(packed).meta.build == plan_of(scenes).meta.build


def test_pixels_too_small_for_a_store_are_refused(tmp_path):
    """Their size would be recorded as 0, and nothing would open the store."""
    path = write_image(tmp_path / "m.tif", texture(64, 64), Place(None, Affine.identity()))
    scene = Scene("m", str(path), None)
    with pytest.raises(UsageError, match=r"4e-05 x 4e-05 m.*`pixel_size`"):
        plan_of([scene], pixel_size=4e-5)
    assert plan_of([scene], pixel_size=1e-4).meta.gsd_m == (1e-4, 1e-4)
