"""A small store to train on: bright lines are roads, and brightness is speed."""

import numpy as np

from geoprep.store.layout import shard_key
from geoprep.store.schema import SceneTable, StoreMeta, TileTable
from geoprep.store.shards import ShardWriter, digest
from geoprep.store.writer import create_store, finish_store

SPEEDS = (20, 25, 45, 65)


def draw_tiles(count, side, bands, seed):
    """Return image uint8 (tile, y, x, band) and speed uint8 (tile, y, x)."""
    random = np.random.default_rng(seed)
    image = random.integers(30, 60, (count, side, side, bands), np.uint8)
    speed = np.zeros((count, side, side), np.uint8)
    for tile in range(count):
        for _ in range(2):
            mph, at = random.choice(SPEEDS), int(random.integers(0, side - 6))
            place = (slice(at, at + 6), slice(None))
            place = place if random.random() < 0.5 else place[::-1]
            speed[tile][place] = mph
            image[tile][place] += np.uint8(60 + mph)
    speed[:, :2, :2] = 255
    return image, speed


def store_meta(bands, levels, **more):
    """Return the attributes of a store without an overlap."""
    numbers = {"band_indexes": tuple(range(1, len(bands) + 1)), "gsd_m": (0.5, 0.5)}
    tiling = {"tile": levels[0], "overlap": 0, "levels": tuple(levels), "rescale": "none"}
    return StoreMeta(cities=("test",), bands=tuple(bands), **numbers | tiling | more)


def write_store(
    path,
    *,
    scenes=8,
    levels=(64, 32),
    bands=("red", "green", "blue"),
    splits=(0, 0, 0, 1),
    seed=0,
    rescale="none",
    gsd_m=(0.5, 0.5),
    limits=(0.0, 0.0),
    order=None,
    speed_unit="mph",
    classes=(),
    roads=(1,),
):
    """Write a store of four tiles per scene; ``splits`` repeats over the scenes.

    So does ``roads``: scenes of 0 have none in their labels.

    ``order`` puts the bands, with their pixels, into another order. With the speed unit ``none``
    no road has a known speed. ``classes`` has the names ``background``, ``slow`` and
    ``fast``, and possibly others that never occur, in any order.
    """
    tiles = 4 * scenes
    order = list(range(len(bands)) if order is None else order)
    bands = [bands[i] for i in order]
    kind = classes_meta(classes) if classes else {"speed_unit": speed_unit}
    meta = store_meta(bands, levels, gsd_m=gsd_m, rescale=rescale, **kind)
    create_store(path, meta, tiles)
    image, speed = draw_tiles(tiles, levels[0], len(bands), seed)
    image = np.ascontiguousarray(image[..., order])
    bare = np.repeat(np.resize(roads, scenes) == 0, 4)
    speed[bare] = np.where(speed[bare] == 255, 255, 0)
    if speed_unit == "none":
        speed[(speed > 0) & (speed < 255)] = 254
    road = (speed > 0) & (speed < 255)
    if classes:
        speed = as_classes(speed, classes)
    for level in levels:
        step = levels[0] // level
        write_tiles(path, f"{level}/image", image[:, ::step, ::step], meta)
        write_tiles(path, f"{level}/{meta.label_array}", speed[:, ::step, ::step], meta)
    counted = {}
    if classes:
        pixels = [np.bincount(tile.ravel(), minlength=256)[: len(classes)] for tile in speed]
        counted["class_pixels"] = np.stack(pixels).astype(np.uint32)
    transform = np.tile([0.5, 0.0, 4e5, 0.0, -0.5, 6e6], (tiles, 1)) + np.arange(tiles)[:, None]
    write_tables(
        *(path, meta, image, speed, road.mean(axis=(1, 2)), transform, ["ok"] * scenes),
        splits=splits,
        limits=limits,
        **counted,
    )
    return path


def write_tables(
    path,
    meta,
    image,
    label,
    road_fraction,
    transform,
    status,
    *,
    splits,
    limits=(0.0, 0.0),
    prefix="AOI_0_Test_chip",
    **counted,
):
    """Finish a store of scenes of equal numbers of tiles, two side by side; ``splits`` repeats."""
    scenes, bands, status = len(status), len(meta.bands), np.array(status, object)
    each = len(image) // scenes
    place, split = np.arange(each, dtype=np.uint32), np.resize(np.array(splits, np.uint8), scenes)
    tables = (
        TileTable(
            scene=np.repeat(np.arange(scenes, dtype=np.uint32), each),
            row=np.tile(place // 2 * meta.tile, scenes),
            col=np.tile(place % 2 * meta.tile, scenes),
            split=np.repeat(split, each),
            transform=transform,
            road_fraction=road_fraction.astype(np.float32),
            valid_fraction=np.repeat(np.isin(status, ["ok", "unlabelled"]), each).astype("f4"),
        ),
        SceneTable(
            id=np.array([f"{prefix}{i}" for i in range(scenes)], object),
            crs=np.array(["EPSG:32637"] * scenes, object),
            bounds=np.zeros((scenes, 4)),
            limits=np.tile(np.array(limits, float), (scenes, bands, 1)),
            status=status,
            reason=np.where(status == "ok", "", "made so").astype(object),
        ),
    )
    train = np.repeat((split == 0) & (status == "ok"), each)
    pixels = image[train].reshape(-1, bands)
    histogram = np.stack([np.bincount(band, minlength=256) for band in pixels.T]).astype(np.uint64)
    speeds = np.bincount(label[train].ravel(), minlength=256).astype(np.uint64)
    ledger = np.frombuffer(bytes.fromhex(digest(label.tobytes())), np.uint8)[None]
    others = {
        "histogram/band": histogram,
        f"histogram/{meta.label_array}": speeds,
        f"ledger/{meta.levels[0]}/{meta.label_array}": ledger,
    }
    finish_store(path, meta, *tables, others | counted)


def classes_meta(names):
    """Return the attributes of a store of classes."""
    colours = tuple(f"#{40 * i % 256:02X}80{255 - 30 * i % 256:02X}" for i in range(len(names)))
    named = {"class_names": tuple(names), "class_colors": colours}
    return {"kind": "classes", "schema": 2, "speed_unit": "none", **named}


def as_classes(speed, names):
    """Return labels of speeds as classes: background, slow up to 25 mph, fast."""
    table = np.full(256, 255, np.uint8)
    number = [tuple(names).index(name) for name in ("background", "slow", "fast")]
    table[0], table[1:26], table[26:254] = number
    return table[speed]


def write_tiles(path, name, pixels, meta):
    """Write the shards of an array."""
    for shard, first in enumerate(range(0, len(pixels), meta.shard_tiles)):
        writer = ShardWriter(path / shard_key(name, shard), meta.shard_tiles, meta.codec)
        for tile in pixels[first : first + meta.shard_tiles]:
            writer.add(np.ascontiguousarray(tile))
        writer.close()
