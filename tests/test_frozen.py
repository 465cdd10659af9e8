"""Files that earlier versions wrote are read as they were, and what was begun is finished."""

import json
from pathlib import Path

import pytest
from helpers.forks import Command

TESTS = Path(__file__).resolve().parent
FROZEN = sorted(p.parent for p in (TESTS / "data" / "frozen").glob("*/reading.json"))
PARTS = (
    *("read_stores", "read_batches", "resume_build", "build_again", "read_checkpoints"),
    *("resume_run", "read_config", "read_exports", "read_networks", "resume_prediction"),
)


@pytest.fixture(scope="session")
def run(forks):
    """Return a function that runs a module in a process of its own; it returns the JSON printed."""

    def run(module, *words, folder):
        (done,) = forks.run(Command(("-m", module, *words), str(folder)))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module", params=FROZEN, ids=lambda path: path.name)
def frozen(request, tmp_path_factory, run):
    """Return the recorded values, and those that this version gives."""
    folder = tmp_path_factory.mktemp("frozen")
    found = run("helpers.frozen", "--fixtures", str(request.param), folder=folder)
    return json.loads((request.param / "reading.json").read_text()), found


@pytest.mark.parametrize("part", PARTS)
def test_files_of_earlier_versions_give_the_recorded_values(frozen, part):
    recorded, found = frozen
    assert "error" not in found[part], found[part]["error"]
    groups = ["exact"]
    groups += ["same_version"] * (recorded["version"] == found["version"])
    groups += ["same_cpu"] * (recorded["cpu"] == found["cpu"])
    for group in groups:
        assert found[part].get(group) == recorded[part].get(group)
    for group, tolerance in {"close": 1e-6, "rough": 0.02}.items():
        before, now = recorded[part].get(group, {}), found[part].get(group, {})
        assert set(before) == set(now)
        for name, value in before.items():
            assert now[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name


def test_a_store_resumed_and_a_store_built_at_once_have_the_same_bytes(frozen):
    _, found = frozen
    resumed = found["resume_build"]["exact"]
    assert resumed["resumed"] == resumed["complete"] == found["build_again"]["exact"]["complete"]
    assert not resumed["working folder"]


def test_a_run_resumed_in_mid_epoch_has_the_weights_of_a_run_never_stopped(frozen):
    recorded, found = frozen
    if recorded["cpu"] != found["cpu"]:
        pytest.skip("the last bits of weights depend on the processor")
    weights = found["resume_run"]["same_cpu"]
    assert weights["middle network"] == weights["whole network"]
    assert weights["middle ema"] == weights["whole ema"]


@pytest.mark.slow
@pytest.mark.parametrize("folder", FROZEN, ids=lambda path: path.name)
def test_reference_digests_are_the_recorded_ones(tmp_path, run, folder):
    recorded = json.loads((folder / "digests.json").read_text())
    found = run("helpers.digests", folder=tmp_path)
    assert found["exact"] == recorded["exact"]
    assert found["resnet34-unet"] == recorded["resnet34-unet"]
    if found["cpu"] == recorded["cpu"]:
        assert found["same_cpu"] == recorded["same_cpu"]
