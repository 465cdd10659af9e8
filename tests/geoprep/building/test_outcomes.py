"""What becomes of each scene, and the figures of the whole store."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.archives import write_tar
from helpers.consistency import assert_consistent
from helpers.factory import (
    PLACES,
    Place,
    build_of,
    plan_of,
    row_of_scenes,
    texture,
    tree_digest,
    truncate,
    write_image,
    write_scene,
)

from geoprep.building import shard
from geoprep.building.run import build
from geoprep.executors.threads import Threads
from geoprep.sources.archives import index_tar
from geoprep.sources.scene import Scene, SourceScenes
from geoprep.storage.addresses import member_address
from geoprep.store.reader import StoreReader

SIDE = 96


def tiles_of(store, scene):
    """Return the rows of a scene's tiles."""
    return np.flatnonzero(store.tiles.scene == store.scenes.id.tolist().index(scene))


def damaged_scenes(folder):
    """Return scenes that fail, each with words that its reason must hold."""
    pixels = texture(SIDE, SIDE)

    def scene(name, **options):
        return write_scene(folder, name, pixels, **options)

    cut_header, cut_pixels = scene("cut_header"), scene("cut_pixels", compress=None)
    truncate(cut_header.image, 0.001)
    truncate(cut_pixels.image, 0.7)
    labels = {name: scene(name) for name in ("cut", "empty", "not_json", "one_feature", "gone")}
    truncate(labels["cut"].label, 0.6)
    truncate(labels["empty"].label, 0.0)
    Path(labels["not_json"].label).write_text("<html>404</html>")
    Path(labels["one_feature"].label).write_text('{"type": "Feature"}')
    Path(labels["gone"].label).unlink()
    floats = write_scene(folder, "floats", pixels.astype("complex64"), labelled=False)
    nowhere = scene("nowhere", labelled=False)
    write_image(Path(nowhere.image), pixels, Place(None, PLACES["utm"].transform))
    return {
        cut_header: "cut_header.tif",
        cut_pixels: "cut_pixels.tif",
        **{one: f"{name}.geojson" for name, one in labels.items()},
        floats: "floats.tif holds complex64",
        nowhere: "nowhere.tif has no CRS",
    }


@pytest.mark.parametrize(
    "options", [{"tile": 40, "shard_tiles": 5}, {"rescale": "city", "resize": 64}]
)
def test_a_scene_that_fails_keeps_its_rows_and_names_its_file(tmp_path, options):
    good = row_of_scenes(tmp_path / "scenes", 3, SIDE)
    bad = damaged_scenes(tmp_path / "scenes")
    scenes = [good[0], *bad, *good[1:]]
    store = build_of(tmp_path / "a.zarr", scenes, **options)
    assert store.scenes.id.tolist() == [scene.id for scene in scenes]
    assert np.bincount(store.tiles.scene).tolist() == [len(tiles_of(store, "quay_0"))] * 12
    assert_consistent(store.location)
    for row, scene in enumerate(scenes):
        if scene in bad:
            assert store.scenes.status[row] == "failed"
            assert bad[scene] in store.scenes.reason[row]
        else:
            assert (store.scenes.status[row], store.scenes.reason[row]) == ("ok", "")
            assert store.tiles.valid_fraction[tiles_of(store, scene.id)].all()
    alone = build_of(tmp_path / "b.zarr", good, **options)
    if "rescale" not in options:
        for scene in good:
            np.testing.assert_array_equal(
                store.image()[...][tiles_of(store, scene.id)],
                alone.image()[...][tiles_of(alone, scene.id)],
            )


def test_stores_do_not_depend_on_the_folders_of_their_inputs(tmp_path):
    """The same inputs give the same bytes, wherever they lie: reasons name files, not folders."""
    digests = []
    for place in ("here", "over/there"):
        bad = damaged_scenes(tmp_path / place)
        image, archive = Path(next(iter(bad)).image), tmp_path / place / "all.tar"
        write_tar(archive, {"PS-RGB/cut_header.tif": image.read_bytes()})
        ((name, where),) = index_tar(archive).items()
        packed = Scene("packed", member_address(archive, name, *where), None)
        bad[packed] = "cut_header.tif in all.tar"
        scenes = [*row_of_scenes(tmp_path / place, 2, SIDE), *bad]
        store = build_of(tmp_path / place / "a.zarr", scenes)
        for says, reason in zip(bad.values(), store.scenes.reason[2:], strict=True):
            assert says in reason
            assert str(tmp_path) not in reason
        digests.append(tree_digest(tmp_path / place / "a.zarr"))
    assert digests[0] == digests[1]


@pytest.mark.parametrize(("rescale", "shard_tiles"), [("city", 3), ("scene", 100)])
def test_scenes_with_too_much_nodata_are_skipped(tmp_path, rescale, shard_tiles):
    scenes = row_of_scenes(tmp_path, 2, 100)
    for name, rows in (("just", 10), ("over", 9)):
        values = texture(100, 100)
        values[rows:] = 0
        scenes.append(write_scene(tmp_path, name, values))
    options = {"tile": 50, "rescale": rescale, "shard_tiles": shard_tiles}
    store = build_of(tmp_path / "a.zarr", scenes, **options)
    assert store.scenes.status.tolist() == ["ok", "ok", "ok", "skipped"]
    assert store.scenes.reason[3] == "91.0% nodata, more than --max-nodata 0.9"
    assert_consistent(store.location)
    strict = build_of(tmp_path / "b.zarr", scenes, max_nodata=0.0, **options)
    assert strict.scenes.status.tolist() == ["ok", "ok", "skipped", "skipped"]
    lax = build_of(tmp_path / "c.zarr", scenes, max_nodata=1.0, **options)
    assert lax.scenes.status.tolist() == ["ok"] * 4


# The figures of the store, counted again from its pixels


def test_the_summary_is_that_of_the_store(tmp_path):
    scenes = row_of_scenes(tmp_path, 8, SIDE)
    hollow = texture(SIDE, SIDE, seed=9)
    hollow[20:60, 30:] = 0
    scenes.append(write_scene(tmp_path, "hollow", hollow))
    scenes.append(write_scene(tmp_path, "island", texture(SIDE, SIDE), labelled=False))
    scenes.append(write_scene(tmp_path, "night", np.zeros((SIDE, SIDE, 3), np.uint8)))
    scenes.append(write_scene(tmp_path, "broken", texture(SIDE, SIDE)))
    truncate(scenes[-1].label)
    found = SourceScenes(tuple(scenes), "x", orphan_labels=("chip77.geojson",))
    summary = build(plan_of(found, tile=48), tmp_path / "a.zarr", Threads(2))
    store = StoreReader.open(tmp_path / "a.zarr")
    assert (summary.state, summary.tiles, summary.levels) == ("built", 48, (48, 24))
    assert summary.statuses == {"ok": 9, "unlabelled": 1, "skipped": 1, "failed": 1}
    assert [issue[:2] for issue in summary.issues] == [
        ("island", "unlabelled"),
        ("night", "skipped"),
        ("broken", "failed"),
    ]
    assert summary.issues[0][2] == "no label file"
    assert "broken.geojson" in summary.issues[2][2]
    assert summary.orphan_labels == ("chip77.geojson",)
    assert summary.splits == {
        name: int((store.tiles.split == i).sum()) for i, name in enumerate(("train", "val", "test"))
    }
    speed = store.speed()[...]
    ok = store.scenes.status[store.tiles.scene] == "ok"
    on_road = ((speed[ok] > 0) & (speed[ok] < 255)).sum() / (speed[ok] != 255).sum()
    assert summary.road_fraction == pytest.approx(on_road, rel=1e-5)
    assert summary.valid_fraction == pytest.approx((store.image()[...] != 0).mean(), rel=1e-5)
    assert summary.store_bytes == sum(
        file.stat().st_size for file in (tmp_path / "a.zarr").rglob("*") if file.is_file()
    )
    assert summary.source_bytes == 12 * SIDE * SIDE * 3, "every image, once"


def test_progress_goes_from_nothing_to_all(tmp_path):
    seen = []
    plan = plan_of(row_of_scenes(tmp_path, 6, SIDE), tile=48, rescale="city", shard_tiles=4)
    build(plan, tmp_path / "a.zarr", Threads(2), report=seen.append)
    assert [p.stage for p in seen] == ["survey"] * 6 + ["build"] * 7
    for stage in ("survey", "build"):
        done = [p.pixels_done for p in seen if p.stage == stage]
        read = [p.bytes_read for p in seen if p.stage == stage]
        assert done == sorted(done)
        assert {p.pixels for p in seen if p.stage == stage} == {done[-1]}
        assert read == sorted(read)
        assert read[-1] == 6 * SIDE * SIDE * 3
    assert seen[0].pixels == 6 * SIDE * SIDE
    assert seen[-1].pixels == plan.tiles * 48 * 48
    assert json.dumps(seen[-1].bytes_read)


def test_padding_and_missing_labels_are_not_held_against_imagery_alone(tmp_path):
    """A scene of 40 pixels fills 39 % of its tile of 64; nobody asked for labels."""
    scene = write_scene(tmp_path, "a", texture(40, 40), labelled=False)
    summary = build(plan_of([scene], tile=64), tmp_path / "a.zarr", Threads(1))
    assert summary.valid_fraction == 1
    assert summary.statuses == {"unlabelled": 1}
    assert summary.issues == ()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("image", " or its label changed while"),
        ("label", " or its label changed while"),
        ("times", ""),
        ("share", ": [Errno 5] Input/output error"),  # of a network, which is lost
    ],
)
def test_a_source_that_changes_while_it_is_built_fails_its_scene(tmp_path, monkeypatch, what, says):
    scenes = row_of_scenes(tmp_path, 2)
    plan, fill = plan_of(scenes), shard._fill

    def changing(arrays, tiles, *rest):
        outcome = fill(arrays, tiles, *rest)
        if tiles.index == 1 and what == "share":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if tiles.index == 1:
            path = Path(scenes[1].label if what == "label" else scenes[1].image)
            status, data = path.stat(), path.read_bytes()
            path.write_bytes(data if what == "times" else data[:-1] + bytes([data[-1] ^ 1]))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as copies have
        return outcome

    monkeypatch.setattr(shard, "_fill", changing)
    build(plan, str(tmp_path / "out.zarr"), Threads(1))
    table = StoreReader.open(tmp_path / "out.zarr").scenes
    assert table.status.tolist() == ["ok", "failed" if says else "ok"]
    assert (Path(scenes[1].image).name + says if says else "") in table.reason[1]
