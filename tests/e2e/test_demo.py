"""The commands of `make demo`, on a few small scenes."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
# Small steps: after a few large ones the model predicts roads everywhere on some processors.
SETTINGS = ("SCENES=6", "SIZE=392", "TILE=196", "CHIP=chip4")
FIT = "FIT=--level 98 --crop 64 --epochs 1 --batch-size 4 --compile off"


@pytest.mark.slow
def test_make_demo_makes_what_it_says(here, tmp_path):
    make = ["make", "-n", "-C", REPO, "demo", *SETTINGS, FIT]
    printed = subprocess.run(make, capture_output=True, text=True, check=True).stdout
    commands = re.findall(r"^\.venv/bin/(geoprep.*)", printed, re.M)
    assert len(commands) >= 11
    for command in commands:
        words = [found for word in shlex.split(command) for found in matches(word, tmp_path)]
        here(*words, folder=tmp_path)
    said = subprocess.run(
        ["bash", "-c", printed[printed.index("printf") :]], capture_output=True, text=True
    ).stdout
    made = [line.split()[0] for line in said.splitlines() if line.startswith("  ")]
    assert len(made) == 7
    assert all((tmp_path / "demo" / name).exists() for name in made)
    made = {path.suffix for path in (tmp_path / "demo" / "predictions").iterdir()}
    assert made >= {".tif", ".png"}


def matches(word, folder):
    """Return the files of a pattern, as a shell does."""
    found = sorted(str(path.relative_to(folder)) for path in folder.glob(word) if "*" in word)
    return found or [word]
