"""What ends up in a store, against a slow and independent way to compute it."""

import pickle
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from helpers.black import black_nodata
from helpers.consistency import assert_consistent
from helpers.factory import (
    PLACES,
    build_of,
    plan_of,
    row_of_scenes,
    texture,
    tree_digest,
    write_image,
    write_scene,
)
from helpers.united import burned_by_gdal, united

from geoprep.building.options import BuildOptions
from geoprep.building.plan import make_plan
from geoprep.building.run import build
from geoprep.executors.threads import Threads
from geoprep.labels.label_shapes import read_shapes
from geoprep.sources.scene import SourceScenes
from geoprep.store.reader import StoreReader

# The reference: NumPy in float64, GDAL's rasterizer, one tile at a time


def overlaps(start, count, step, scale, length):
    """Return float64 (pixel, source pixel): how much of each source pixel a wanted one covers."""
    edges = np.minimum((start + step * np.arange(count + 1)) * scale, length)
    i = np.arange(length)
    return np.clip(np.minimum(i + 1, edges[1:, None]) - np.maximum(i, edges[:-1, None]), 0, None)


def expected_image(values, valid, shape, window, tile, factor, limits):
    """Return one tile, uint8 (y, x, band), and where it has imagery."""
    along = []
    for axis in (0, 1):
        count = -(-min(tile, shape[axis] - window[axis]) // factor)
        scale = values.shape[axis] / shape[axis]
        along.append(overlaps(window[axis], count, factor, scale, values.shape[axis]))
    wy, wx = along
    share = wy @ valid @ wx.T
    keep = (share > 0) & (share >= 0.5 * np.outer(wy.sum(1), wx.sum(1)) - 1e-9)
    out = np.zeros((tile // factor, tile // factor, values.shape[2]), np.uint8)
    present = np.zeros(out.shape[:2], bool)
    present[: keep.shape[0], : keep.shape[1]] = keep
    for band, (low, high) in enumerate(limits):
        total = wy @ (values[..., band].astype(float) * valid) @ wx.T
        means = np.floor(np.divide(total, share, where=share > 0, out=total) + 0.5 + 1e-9)
        scaled = np.clip(np.floor((means - low) * 255 / (high - low) + 0.5), 1, 255)
        out[: keep.shape[0], : keep.shape[1], band] = np.where(keep, scaled, 0)
    return out, present


def expected_speed(scene, grid, window, tile, factor, present):
    """Return one tile's mask: GDAL burns the roads on the tile's own grid."""
    side = tile // factor
    if scene.label is None:
        return np.full((side, side), 255, np.uint8)
    affine = grid.transform * Affine.translation(window[1], window[0]) * Affine.scale(factor)
    burned = burned_by_gdal(united(read_shapes(scene.label), grid), affine, (side, side))
    return np.where(present, burned, 255)


def source_of(scene, bands):
    with rasterio.open(scene.image) as file:
        values = np.moveaxis(file.read(bands), 0, -1)
        if "alpha" in [meaning.name for meaning in file.colorinterp]:
            return values, file.read(file.count) != 0
        if Path(scene.image + ".msk").exists():
            return values, file.dataset_mask() != 0
        if file.nodata is None:
            return values, ~black_nodata((values == 0).all(axis=2))
        return values, (values != file.nodata).any(axis=2)


def check_pixels(store, plan, scenes, limits=None):
    """Compare every tile of every level with the reference."""
    bands = list(plan.meta.band_indexes)
    images = {level: store.image(level)[...] for level in store.meta.levels}
    speeds = {level: store.speed(level)[...] for level in store.meta.levels}
    for i, (scene, planned) in enumerate(zip(scenes, plan.scenes, strict=True)):
        values, valid = source_of(scene, bands)
        own = limits if limits is not None else store.scenes.limits[i]
        for n, window in enumerate(planned.windows, start=planned.first_tile):
            for level in store.meta.levels:
                factor = store.meta.tile // level
                image, present = expected_image(
                    values, valid, planned.windows.shape, window, store.meta.tile, factor, own
                )
                where = f"scene {scene.id}, window {window}, level {level}"
                np.testing.assert_array_equal(images[level][n], image, where)
                speed = expected_speed(
                    scene, planned.target, window, store.meta.tile, factor, present
                )
                np.testing.assert_array_equal(speeds[level][n], speed, where)
    assert any((mask[(mask > 0) & (mask < 255)]).size for mask in speeds.values()), "roads are seen"


SIZES = [(130, 97), (64, 150), (101, 101)]
CASES = {
    "mercator": {"place": "mercator"},
    "south up": {"place": "south_up"},
    "rotated": {"place": "rotated", "tile": 50},
    "overlap, shifted inwards by an odd number": {"tile": 48, "overlap": 13},
    "sizes that differ, three levels": {"size": SIZES, "tile": 48, "levels": 3, "overlap": 5},
    "scenes smaller than a tile": {"size": SIZES, "tile": 256},
    "coarser": {"gsd": 0.71, "tile": 32},
    "finer": {"gsd": 0.19, "size": 60, "tile": 40},
    "resized to less": {"resize": 72},
    "resized to more": {"resize": 150, "size": 100},
    "two bytes, tiles, coarser": {"dtype": "uint16", "tile": 32, "gsd": 0.55, "overlap": 4},
    "eight bands of two bytes": {"dtype": "uint16", "bands": 8},
    "bands in another order": {"dtype": "uint16", "bands": 8, "chosen": (5, 3, 2)},
    "zstd": {"codec": "zstd"},
}


@pytest.mark.parametrize("case", CASES)
def test_pixels_and_masks_of_every_level(tmp_path, case):
    options = dict(CASES[case])
    scenes = row_of_scenes(
        tmp_path / "scenes",
        3,
        options.pop("size", 130),
        options.pop("dtype", "uint8"),
        options.pop("bands", 3),
        PLACES[options.pop("place", "degrees")],
    )
    options |= {"bands": options.pop("chosen")} if "chosen" in options else {}
    plan = plan_of(scenes, **options)
    store = build_of(tmp_path / "a.zarr", scenes, **options)
    assert store.scenes.status.tolist() == ["ok"] * 3
    check_pixels(store, plan, scenes)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("zeros", {}),
        ("zeros", {"tile": 48, "gsd": 0.5}),
        ("zeros", {"rescale": "scene"}),
        ("nodata", {}),
        ("alpha", {"tile": 48, "gsd": 0.5}),
        ("mask", {"rescale": "scene"}),
    ],
)
def test_nodata_is_left_out_and_never_reads_as_no_road(tmp_path, kind, options):
    values, missing = texture(130, 130), np.zeros((130, 130), bool)
    missing[:, :21] = missing[60:83, 50:71] = True
    missing[np.random.default_rng(5).random((130, 130)) < 0.15] = True
    values[100:104, 100:104] = 1 if kind == "zeros" else 0
    if kind == "zeros":
        values[missing] = 0
    elif kind == "nodata":
        values[values == 9] = 10
        values[missing] = 9
    tags = {"nodata": 9, "alpha": np.where(missing, 0, 255), "mask": ~missing}
    extra = {kind: tags[kind]} if kind in tags else {}
    scenes, options = [write_scene(tmp_path, "a", values, **extra)], {"tile": 64} | options
    store = build_of(tmp_path / "a.zarr", scenes, levels=3, **options)
    check_pixels(store, plan_of(scenes, levels=3, **options), scenes)
    assert_consistent(store.location)
    for level in store.meta.levels:
        nothing = (store.image(level)[...] == 0).all(axis=3)
        assert nothing.any()
        assert (store.speed(level)[...][~nothing] < 255).all()


# Where a pixel is


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("degrees", {"tile": 48, "overlap": 7}),
        ("mercator", {"gsd": 0.5, "tile": 32}),
        ("south_up", {"resize": 70}),
        ("rotated", {"tile": 48}),
    ],
)
def test_a_pixel_in_the_store_is_where_it_was(tmp_path, place, options):
    scenes = row_of_scenes(tmp_path / "scenes", 2, [(130, 101), (90, 130)], place=PLACES[place])
    plan, store = plan_of(scenes, **options), build_of(tmp_path / "a.zarr", scenes, **options)
    tiles = store.tiles
    for i in range(len(tiles)):
        planned = plan.scenes[tiles.scene[i]]
        stored = Affine(*tiles.transform[i])
        scale_y = planned.grid.height / planned.windows.shape[0]
        scale_x = planned.grid.width / planned.windows.shape[1]
        pixel = np.hypot(*np.array(planned.grid.transform)[[0, 3]])
        for x, y in [(0, 0), (13, 5), (store.meta.tile, store.meta.tile)]:
            at = ((tiles.col[i] + x) * scale_x, (tiles.row[i] + y) * scale_y)
            source = planned.grid.transform * at
            np.testing.assert_allclose(stored * (x, y), source, rtol=0, atol=1e-6 * pixel)
        if planned.windows.shape == (planned.grid.height, planned.grid.width):
            corner = planned.grid.transform * (float(tiles.col[i]), float(tiles.row[i]))
            assert stored * (0, 0) == corner, "not even the last bit differs"
        bounds = planned.grid.bounds
        assert store.scenes.bounds[tiles.scene[i]].tolist() == list(bounds)
        assert store.scenes.crs[tiles.scene[i]] == PLACES[place].crs


# The same bytes, whoever does the work


class Shuffled:
    """Runs tasks in any order, and only what survives a trip to another process.

    It has what an executor must have, and no more.
    """

    def __init__(self, workers):
        self.workers = workers

    def run_everywhere(self, function):
        function()

    def map_unordered(self, function, items):
        items = pickle.loads(pickle.dumps(list(items)))
        random.Random(self.workers).shuffle(items)
        results = [pickle.loads(pickle.dumps(function(item))) for item in items]
        random.Random(7).shuffle(results)
        yield from results


def test_the_same_bytes_whatever_the_workers_and_their_order(tmp_path):
    scenes = row_of_scenes(tmp_path / "scenes", 7, [(130, 97), (64, 64)], "uint16")
    options, digests = {"tile": 48, "rescale": "city", "shard_tiles": 5}, []
    for i, executor in enumerate([Threads(1), Threads(4), Shuffled(3)]):
        build(plan_of(scenes, **options), tmp_path / f"{i}.zarr", executor)
        digests.append(tree_digest(tmp_path / f"{i}.zarr"))
    assert all(other == digests[0] for other in digests[1:])
    assert len([name for name in digests[0] if "/c/" in name]) > 20


# Rescaling


def percentiles(arrays):
    """Return (band, 2) as CRESI computes them, over the values above 0 of all arrays."""
    limits = []
    for band in range(arrays[0].shape[-1]):
        values = np.concatenate([a[..., band][a[..., band] > 0] for a in arrays])
        low, high = np.percentile(values, (2, 98))
        limits.append((max(1.0, low), high))
    return np.array(limits)


def test_each_scene_has_its_own_limits(tmp_path):
    scenes = row_of_scenes(tmp_path, 3, 100, "uint16")
    store = build_of(tmp_path / "a.zarr", scenes, rescale="scene")
    for i, scene in enumerate(scenes):
        expected = percentiles([source_of(scene, [1, 2, 3])[0]])
        np.testing.assert_array_equal(store.scenes.limits[i], expected)
    assert len({limits.tobytes() for limits in store.scenes.limits}) == 3


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_each_city_has_its_own_limits(tmp_path, dtype):
    first = row_of_scenes(tmp_path / "a", 3, 64, dtype)
    second = []
    for scene in row_of_scenes(tmp_path / "b", 2, 80, dtype):
        values, _ = source_of(scene, [1, 2, 3])
        write_image(Path(scene.image), values // 2 + 1)
        second.append(replace(scene, id=f"b_{scene.id}"))
    found = [SourceScenes(tuple(first), "a"), SourceScenes(tuple(second), "b")]
    options = BuildOptions(rescale="city", tile=32)
    plan = make_plan(found, ["one", "two"], options, Threads(2))
    build(plan, tmp_path / "a.zarr", Threads(2))
    store = StoreReader.open(tmp_path / "a.zarr")
    for members, limits in ((first, store.scenes.limits[:3]), (second, store.scenes.limits[3:])):
        expected = percentiles([source_of(scene, [1, 2, 3])[0] for scene in members])
        np.testing.assert_array_equal(limits, np.broadcast_to(expected, limits.shape))
    check_pixels(store, plan, first + second)


@pytest.mark.parametrize(("rule", "limits"), [("none", (0, 255)), ("20,180.5", (20, 180.5))])
def test_fixed_limits_are_those_of_every_scene(tmp_path, rule, limits):
    scenes = row_of_scenes(tmp_path, 2)
    store = build_of(tmp_path / "a.zarr", scenes, rescale=rule)
    assert (store.scenes.limits == limits).all()
    check_pixels(store, plan_of(scenes, rescale=rule), scenes, limits=[limits] * 3)
