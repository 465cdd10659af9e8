"""The estimate of a dry run, compared with the build."""

import json

import numpy as np
import pytest
from helpers.factory import build_of, plan_of, row_of_scenes, texture, truncate, write_scene

from geoprep.build.trial import dry_run
from geoprep.sources.scene import Scene
from geoprep.views import info


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return row_of_scenes(tmp_path_factory.mktemp("scenes"), 6, 128)


def test_what_is_reckoned_is_what_is_built(scenes, tmp_path):
    plan = plan_of(scenes, tile=64)
    said = dry_run(plan, tmp_path / "s.zarr", 2)
    assert list(tmp_path.iterdir()) == []
    facts = info(build_of(tmp_path / "s.zarr", scenes, tile=64))
    assert (said.scenes, said.tiles) == (facts["scenes"], facts["tiles"])
    assert said.splits == {n: s["tiles"] for n, s in facts["splits"].items() if s["tiles"]}
    assert said.memory_bytes == {str(e["level"]): e["ram_bytes"] for e in facts["levels"]}
    pixels = sum(e[name]["stored"] for e in facts["levels"] for name in ("image", "speed"))
    assert said.disk_bytes == pytest.approx(pixels, rel=0.05)
    assert said.seconds > 0
    assert said.failures == ()
    assert said.sample[1] == 4
    json.dumps(said.to_json())


def test_what_would_fail_is_listed_and_the_rest_reckoned(scenes, tmp_path):
    bad = write_scene(tmp_path, "bad", texture(64, 64))
    truncate(bad.image, 0.00005)
    bare = Scene("bare", scenes[0].image, None)
    said = dry_run(plan_of([*scenes, bad, bare], tile=64), tmp_path / "s.zarr", 1)
    ((name, reason),) = said.failures
    assert name == "bad"
    assert "bad.tif" in reason
    assert said.unlabelled == 1
    assert said.usable_tiles == 24, "tiles without a label are not usable"
    assert said.memory_bytes["64"] == 24 * 64 * 64 * 4
    assert said.sample[0].startswith("quay")


def test_of_a_large_scene_some_tiles_are_tried(tmp_path):
    scene = write_scene(tmp_path, "large", texture(640, 640))
    said = dry_run(plan_of([scene], tile=64, shard_tiles=8), tmp_path / "s.zarr", 1)
    assert said.tiles == 100
    assert said.sample == ("large", 32)


def test_a_bucket_has_no_free_space(scenes):
    assert dry_run(plan_of(scenes, tile=64), "s3://own/s.zarr", 1).free_bytes is None


def test_a_store_that_would_be_replaced_is_part_of_the_space(scenes, tmp_path):
    store = build_of(tmp_path / "s.zarr", scenes, tile=64)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert dry_run(plan_of(scenes, tile=64), tmp_path / "s.zarr", 1).replaced_bytes == size
    assert store.meta.complete


def test_a_scene_that_fails_is_not_the_measure_of_the_others(scenes, tmp_path):
    """The median scene is black, so its tiles compress to nothing."""
    black = write_scene(tmp_path, "black", np.zeros((128, 129, 3), np.uint8))
    chosen = [*scenes[:3], black, write_scene(tmp_path, "large", texture(128, 200, seed=7))]
    said = dry_run(plan_of([black, *chosen], tile=64), tmp_path / "s.zarr", 1)
    store = build_of(tmp_path / "s.zarr", [black, *chosen], tile=64)
    size = sum(path.stat().st_size for path in (tmp_path / "s.zarr").glob("[0-9]*/*/c/**/*"))
    assert said.sample[0] != "black"
    assert any("black" in name for name, _ in said.failures)
    assert 0.5 < said.disk_bytes / size < 3, store
    none = dry_run(plan_of([black], tile=64), tmp_path / "t.zarr", 1)
    assert none.disk_bytes == none.tiles * (64**2 + 32**2) * 4
    assert "no scene that was tried can be built" in none.warnings[0]
