"""Builds that are killed, at any moment, and finished: the same bytes as if nothing had been."""

import json
import re
import shutil
from pathlib import Path

import pytest
from helpers.crashes import OPTIONS
from helpers.factory import build_of, interrupt, plan_of, row_of_scenes, tree_digest

from geoprep.building.journal import Journal
from geoprep.building.run import build
from geoprep.errors import StoreError
from geoprep.executors.threads import Threads
from geoprep.store.layout import shard_key
from geoprep.store.reader import StoreReader


def assert_finishes(builder, out, expected):
    """Run again what was killed: the result must be that of a build nobody disturbed."""
    ending = builder.build(out)
    assert not ending.error, ending
    assert tree_digest(out) == expected
    assert not out.with_name(out.name + ".build").exists()
    return ending


# Killed


def assert_killed(ending, at):
    """A build dies where it was told to, or else had fewer changes of files than that.

    Threads that need one folder race to make it, so the count differs by some from run to run.
    """
    assert ending.killed or ending.events < at, (at, ending)


def refusal(out):
    """Return why a store cannot be opened; empty if it can."""
    try:
        StoreReader.open(out)
    except StoreError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_a_build_may_be_killed_before_any_change_of_a_file(killable, tmp_path):
    _, builder, expected, events = killable
    for at in range(1, events + 1, 229):
        out = tmp_path / f"{at}.zarr"
        ending = builder.build(out, die_at=at)
        assert_killed(ending, at)
        if ending.killed:
            # Killed after its commit it is complete.
            refused = re.search("is incomplete|no such store", refusal(out))
            assert refused or tree_digest(out) == expected
        assert_finishes(builder, out, expected)
        shutil.rmtree(out)


def test_a_build_killed_before_its_commit_is_finished(killable, tmp_path, monkeypatch):
    """All metadata are in the root's by then, though the store says that it is incomplete."""
    scenes, builder, expected, _ = killable
    out = tmp_path / "a.zarr"

    def die(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("geoprep.store.writer.flush_all", die)
    with pytest.raises(KeyboardInterrupt):
        build(plan_of(scenes, **OPTIONS), out, Threads(2))
    assert_finishes(builder, out, expected)


@pytest.fixture(scope="module")
def killed(killable, tmp_path_factory):
    """Return a store that was killed after some of its shards, and the shards that are kept."""
    _, builder, _, events = killable
    out = tmp_path_factory.mktemp("killed") / "half.zarr"
    assert builder.build(out, die_at=round(0.45 * events)).killed
    entries = [json.loads(line) for line in journal_of(out).read_text().splitlines() if line]
    kept = [entry["shard"]["shard"] for entry in entries if "shard" in entry]
    assert len(kept) >= 2, "the test is about a build with some shards done"
    return out, kept


@pytest.fixture
def half(killed, tmp_path):
    """Return a copy of that store, and the shards that are kept."""
    shutil.copytree(killed[0].parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / killed[0].name, killed[1]


def journal_of(out):
    return out.with_name(out.name + ".build") / "journal.jsonl"


def test_a_build_killed_before_a_header_has_its_name_is_finished(killable, tmp_path):
    _, builder, expected, events = killable
    for at in range(1, events):
        out = tmp_path / f"{at}.zarr"
        assert_killed(builder.build(out, die_at=at), at)
        if any(begun(out).glob("*/image/.*partial*")):
            break
    assert_finishes(builder, out, expected)


def begun(out):
    """Return the store in the working folder."""
    return out.with_name(out.name + ".build") / "new"


def test_finished_shards_are_kept_and_not_written_again(killable, half):
    _, builder, expected, _ = killable
    out, kept = half
    shards = [(name, shard) for name in ("32/image", "16/speed") for shard in kept]
    before = [(begun(out) / shard_key(*shard)).stat().st_mtime_ns for shard in shards]
    assert assert_finishes(builder, out, expected).state == "resumed"
    assert [(out / shard_key(*shard)).stat().st_mtime_ns for shard in shards] == before


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_finished_shard_that_was_damaged_is_built_again(killable, half, damage):
    _, builder, expected, _ = killable
    out, kept = half
    file = begun(out) / shard_key("32/image", kept[0])
    data = file.read_bytes()
    half = len(data) // 2
    file.write_bytes(data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :])
    if damage == "gone":
        file.unlink()
    assert_finishes(builder, out, expected)


def test_without_its_journal_a_build_begins_again(killable, half):
    _, builder, expected, _ = killable
    out, _ = half
    shutil.rmtree(journal_of(out).parent)
    assert assert_finishes(builder, out, expected).state == "built"


# Changed in between


@pytest.fixture
def interrupted(tmp_path):
    """Return scenes and a store of them that was interrupted after two of four shards."""
    scenes = row_of_scenes(tmp_path / "scenes", 4, 64)
    interrupt(plan_of(scenes, shard_tiles=1), tmp_path / "a.zarr", 2)
    return scenes, tmp_path / "a.zarr"


def test_inputs_of_the_same_size_but_edited_since_are_noticed(interrupted):
    scenes, out = interrupted
    for scene in scenes:
        label = Path(scene.label)
        label.write_text(label.read_text().replace('"road_type": "1"', '"road_type": "4"'))
    plan = plan_of(scenes, shard_tiles=1)
    with pytest.raises(StoreError, match="images or labels have changed"):
        build(plan, out, Threads(1))
    summary = build(plan, out, Threads(1), overwrite=True)
    assert (summary.state, summary.scenes_built) == ("built", 4)
    build_of(out.with_name("fresh.zarr"), scenes, shard_tiles=1)
    assert tree_digest(out) == tree_digest(out.with_name("fresh.zarr"))


@pytest.mark.parametrize("rescale", ["scene", "city"])
def test_surveys_are_kept_though_no_shard_is_finished(tmp_path, monkeypatch, rescale):
    """Limits of a city follow from all of its scenes, also where only some were noted."""
    scenes = row_of_scenes(tmp_path / "scenes", 4, [(96, 96), (64, 80)], "uint16")
    plan = plan_of(scenes, tile=32, shard_tiles=5, rescale=rescale)
    build(plan, tmp_path / "whole.zarr", Threads(1))
    real, left = Journal.write, [2]

    def write(journal, entry):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(journal, entry)

    out, seen = tmp_path / "a.zarr", []
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "write", write)
        with pytest.raises(KeyboardInterrupt):
            build(plan, out, Threads(1))
    build(plan, out, Threads(1), report=lambda one: seen.append(one.stage))
    needed = sum(plan.needs_survey(scene) for scene in plan.scenes)
    assert seen.count("survey") == (needed - 2 if rescale == "scene" else needed)
    assert tree_digest(out) == tree_digest(tmp_path / "whole.zarr")
