"""Test that every command and every line of Python in the README runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
README = (REPO / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [line for kind, body in BLOCKS if kind == "bash" for line in body.splitlines()]
# An environment is made by the tests that run these commands in it (`make test-wheel-3.12`).
INSTALL = ("git clone ", "python3 -m venv ", "pip install ")


# Commands run on a fifteenth of the imagery, and training on a quarter of that per step.
LARGE, SMALL = "--scenes 24 ", "--scenes 8 --size 652 "
WIDE, NARROW = "--crop 128 ", "--crop 64 "
LONG, SHORT = "--epochs 30 ", "--epochs 2 "


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """An empty folder in which the commands run one after another."""
    return tmp_path_factory.mktemp("readme")


def run(command, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "COLUMNS": "200"}  # the packages are the installed ones
    env["TORCHDYNAMO_DISABLE"] = "1"  # three seconds per run; the demo trains with the compiler
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=3600
    )


def test_the_commands_can_be_pasted():
    assert [line for line in COMMANDS if line.startswith(INSTALL)] == COMMANDS[:3]
    assert all(line.startswith("geoprep ") for line in COMMANDS[3:])
    assert {kind for kind, _ in BLOCKS} == {"bash", "python"}


@pytest.mark.slow
def test_commands_and_python_run_in_order(workplace):
    assert sum(LARGE in command for command in COMMANDS) == 1
    assert sum(WIDE in command for command in COMMANDS) == 2
    assert sum(LONG in command for command in COMMANDS) == 1
    for kind, body in BLOCKS:
        lines = [line for line in body.splitlines() if not line.startswith(INSTALL)]
        if kind == "python":
            (workplace / "snippet.py").write_text(body, encoding="utf-8")
            lines = ["python -W error::UserWarning snippet.py"]
        for command in lines:
            command = command.replace(LARGE, SMALL).replace(WIDE, NARROW).replace(LONG, SHORT)
            done = run(command, workplace)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    made = ("moscow.zarr", "moscow.html", "runs/moscow/best.pt", "roads.gpkg", "roads.png")
    for name in (*made, "cover.gpkg"):
        assert (workplace / name).exists(), name


def test_every_documented_make_target_exists():
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_linked_files_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in link:
            assert (REPO / link).exists(), link
