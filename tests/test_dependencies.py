"""Test that the oldest versions that are tested are those that pyproject.toml allows."""

import re
import tomllib
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(lines):
    """Return the version of each package of a constraints file."""
    pairs = (line.split("==") for line in lines.splitlines() if line and not line.startswith("#"))
    return {normal(name): version for name, version in pairs}


def test_the_oldest_versions_are_the_lower_bounds():
    extras = PROJECT["optional-dependencies"]
    asked = dict(one.split(">=") for one in PROJECT["dependencies"] + extras["train"])
    asked = {normal(name): version for name, version in asked.items() if name != "torch"}
    # The first block: the second pins what these and the tests need.
    tested = pinned((REPO / "constraints-oldest.txt").read_text().split("\n\n")[0])
    for name, version in asked.items():
        assert re.match(rf"{re.escape(version)}(\.|$)", tested[name]), f"{name}: {tested[name]}"


def test_the_pinned_versions_are_allowed():
    pins = pinned((REPO / "constraints.txt").read_text())
    for one in PROJECT["dependencies"]:
        name, bound = one.split(">=")
        version = pins[normal(name)]
        numbers = [tuple(map(int, re.findall(r"\d+", text))) for text in (version, bound)]
        assert numbers[0] >= numbers[1], f"{name} {version} < {bound}"


def test_loaders_to_compare_have_pinned_versions():
    """`make bench-peers` installs them one by one."""
    names = {re.split("[<>=~!]", one)[0] for one in PROJECT["optional-dependencies"]["peers"]}
    pins = pinned((REPO / "constraints-peers.txt").read_text())
    assert {normal(name) for name in names} | {"torch", "numpy"} <= set(pins)
