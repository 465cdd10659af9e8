"""The README is true: every command and every line of Python in it is run here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
README = (REPO / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    line[2:] for kind, body in BLOCKS if kind == "console" for line in body.splitlines() if line
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """An empty folder in which the commands run one after another."""
    return tmp_path_factory.mktemp("readme")


def run(command, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(REPO), "COLUMNS": "200"}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=900
    )


def test_every_console_line_is_a_command():
    assert len(COMMANDS) >= 8
    for kind, body in BLOCKS:
        if kind == "console":
            assert all(line.startswith("$ ") for line in body.splitlines() if line)


@pytest.mark.slow
def test_commands_and_python_run_in_order(workplace):
    for kind, body in BLOCKS:
        lines = [line[2:] for line in body.splitlines()] if kind == "console" else []
        if kind == "python":
            (workplace / "snippet.py").write_text(body, encoding="utf-8")
            lines = ["python -W error::UserWarning snippet.py"]
        for command in filter(None, lines):
            done = run(command, workplace)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    for made in (
        "moscow.zarr",
        "sheet.png",
        "chip11.tif",
        "footprints.geojson",
        "mine.zarr",
        "runs/moscow",
    ):
        assert (workplace / made).exists(), made


@pytest.mark.slow
def test_make_demo_makes_what_it_says(tmp_path):
    """Run the target itself, in the environment that is there."""
    if not (REPO / ".venv" / ".core").exists():
        pytest.skip("the tests do not run in the environment that `make` sets up")
    done = run(
        f"env -u OMP_NUM_THREADS make -C {REPO} demo EPOCHS=1 DEMO={tmp_path}/demo", tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for made in ("data/AOI_7_Moscow", "moscow.zarr", "preview.png", "run/best.pt", "maps"):
        assert (tmp_path / "demo" / made).exists()
        assert Path(made).name in done.stdout
    assert len(list((tmp_path / "demo" / "maps").glob("*.tif"))) == 1
    assert len(list((tmp_path / "demo" / "maps").glob("*.png"))) == 1


def test_every_documented_make_target_exists():
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_linked_files_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in link:
            assert (REPO / link).exists(), link
