"""Short fault injection tests: a few of each kind, and the table of results."""

import random
import signal
import time

import pytest

from benchmarks.faults import endpoint, flipped, jobs, killed, mutated, objects, places, together
from benchmarks.faults.children import run
from benchmarks.faults.jobs import FaultInputs
from benchmarks.faults.mutations import MUTATIONS
from benchmarks.faults.report import FaultRow, write_report
from geoprep.errors import StoreError


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return the inputs of a campaign, small."""
    return FaultInputs.make(tmp_path_factory.mktemp("faults"), 3)


def assert_survived(rows):
    for row in rows:
        assert row.skipped or row.tried, row
        assert not row.found, (row.what, row.found)


def sleep(seconds):
    time.sleep(seconds)
    return "awake"


def refuse():
    raise StoreError("a.zarr: no")


def crash():
    signal.raise_signal(signal.SIGSEGV)


def hoard():
    return len(bytearray(8 << 30))


def test_end_of_a_child_process():
    assert (ending := run(sleep, 0)).how == "done"
    assert ending.answer == "awake"
    assert run(sleep, 60, kill_after=0.05).how == "killed"
    assert run(sleep, 60, timeout=0.05).how == "hung"
    assert run(refuse).answer == "StoreError: a.zarr: no"
    assert run(crash).how == "died"
    assert "MemoryError" in run(hoard, memory=1 << 30).answer


def test_table_lists_failures(tmp_path):
    good, bad = FaultRow("one | two", "all is well"), FaultRow("three", "all is well", note="odd")
    good.count([])
    bad.count([])
    bad.count(["x.zarr: gone", "and more"])
    rows = [good, bad, FaultRow("four", "", skipped="no root")]
    write_report(tmp_path / "r.md", rows, seed=3, scale=0.25)
    text = (tmp_path / "r.md").read_text()
    assert "| one / two | all is well | 1 | 1 |  |" in text
    assert "| three | all is well | 2 | 1 | odd |" in text
    assert "not tested: no root" in text
    assert "- **three**: x.zarr: gone; and more" in text
    assert "seed 3" in text
    assert "**Not a complete run**: about 25%" in text


@pytest.mark.parametrize("kind", ["image", "label"])
def test_every_mutation_changes_a_file(inputs, kind):
    pattern = "PS-RGB/*.tif" if kind == "image" else "geojson_roads_speed/*.geojson"
    data = max((path.read_bytes() for path in inputs.source.glob(pattern)), key=len)
    for name, mutate in MUTATIONS[kind].items():
        changed = [mutate(data, random.Random(seed)) for seed in range(8)]
        assert sum(one != data for one in changed) >= 6, name


def test_damaged_input_fails_only_its_scene(inputs):
    assert_survived(mutated.rows(inputs, 1, 12))


def test_flipped_bits_are_found_and_never_returned(inputs):
    found, kept = flipped.rows(inputs, 1, 6)
    assert_survived([found, kept])
    assert found.tried == kept.tried == 6


def test_wrong_pixels_are_reported(inputs, tmp_path, monkeypatch):
    """A reader that returns other pixels is named."""
    calls = []

    def careless(store):
        calls.append(store)
        return {"careless": bytes([len(calls)])}

    monkeypatch.setattr(flipped, "READERS", (careless,))
    (_, _, wrong, _), *_ = flipped.flip_some(inputs.store, tmp_path / "copy", "1", 1)
    assert wrong == ["careless"]


def test_a_killed_build_is_finished(inputs, tmp_path):
    row, build = FaultRow("", ""), jobs.writing_commands(inputs)["build-zarr"]
    killed.killed_rows(build, tmp_path / "killed", random.Random(1), 1, row)
    assert_survived([row])


def test_two_builds_at_once_leave_one_store(inputs, tmp_path):
    row, build = FaultRow("", ""), jobs.writing_commands(inputs)["build-zarr"]
    expected = together.alone(build, tmp_path / "out")
    row.count(together.race(build, tmp_path / "out", expected, random.Random(2)))
    assert_survived([row])


@pytest.mark.slow
@pytest.mark.parametrize("part", [killed, places, objects, together], ids=lambda p: p.__name__[18:])
def test_a_few_of_each_part(inputs, part, monkeypatch):
    monkeypatch.setattr(endpoint, "STALL", 0.3)  # seconds that add up, and no client gives up in
    assert_survived(part.rows(inputs, 2, 1))
