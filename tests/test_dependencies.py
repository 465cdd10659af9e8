"""Test that constraints files, workflows and pyproject.toml agree."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

REPO = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# The extras that each file pins, beside the package itself.
PINNED = {
    "constraints.txt": [name for name in EXTRAS if name not in ("ipex", "peers")],
    "constraints-ipex.txt": ["train", "ipex"],
    "constraints-oldest.txt": ["train", "parquet"],
}
WORKFLOWS = sorted((REPO / ".github" / "workflows").glob("*.yml"))


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text):
    """Return the version of each package of a constraints file."""
    pairs = (line.split("==") for line in text.splitlines() if line and not line.startswith("#"))
    return {normal(name): version for name, version in pairs}


@pytest.mark.parametrize("file", PINNED)
def test_every_dependency_is_pinned_to_a_version_that_is_allowed(file):
    pins = pinned((REPO / file).read_text())
    extras = [line for name in PINNED[file] for line in EXTRAS[name]]
    for requirement in map(Requirement, PROJECT["dependencies"] + extras):
        version = pins[normal(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_the_oldest_versions_are_the_lower_bounds():
    # The first block: the second pins what these and the tests need.
    tested = pinned((REPO / "constraints-oldest.txt").read_text().split("\n\n")[0])
    asked = PROJECT["dependencies"] + EXTRAS["train"] + EXTRAS["parquet"]
    bounds = {normal(name): version for name, version in (line.split(">=") for line in asked)}
    del bounds["torch"]  # its old builds bring CUDA packages along
    assert tested.keys() == bounds.keys()
    for name, version in bounds.items():
        assert re.match(rf"{re.escape(version)}(\.|$)", tested[name]), f"{name}: {tested[name]}"


def test_loaders_to_compare_have_pinned_versions():
    """`make bench-peers` installs them one by one."""
    pins = pinned((REPO / "constraints-peers.txt").read_text())
    assert {normal(Requirement(line).name) for line in EXTRAS["peers"]} | {"torch", "numpy"} <= set(
        pins
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_targets_that_exist_with_pinned_actions_and_few_rights(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (REPO / "Makefile").read_text(), re.M))
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        named = matrix.get("target", []) + [row["target"] for row in matrix.get("include", [])]
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"])
            for target in re.findall(r"^make (\S+)", step.get("run", ""), re.M):
                named += [] if target == "${{" else [target]
        assert set(named) <= targets
