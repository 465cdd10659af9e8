"""``python -m training.predict`` in a process of its own: what a shell sees, and SIGKILL."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import rasterio

from training.prediction.cog.write_journal import folder_of

CASES = Path(__file__).resolve().parents[1]
REPO = CASES.parent

MAKE = """
import sys
from helpers.predict_cases import make_checkpoint, pixels, write_image
make_checkpoint("best.pt", model="helpers.predict_cases:neighbourly")
write_image("scene.tif", pixels(1700, 70))
"""

# The process is killed when the first row of tiles is on the disk.
KILLED = """
import os, signal, sys
from training.predict import main
from training.prediction.cog.write_journal import WriteJournal
add_row = WriteJournal.add_row
def last_row(self, sizes):
    add_row(self, sizes)
    os.kill(os.getpid(), signal.SIGKILL)
WriteJournal.add_row = last_row
sys.exit(main())
"""
OPTIONS = ("--window", "96", "--overlap", "32", "--precision", "fp32", "--quiet")
OPTIONS += ("--model", "helpers.predict_cases:neighbourly")


@pytest.fixture
def here(tmp_path, python):
    """Return a function that runs Python in a folder that has a checkpoint and an image."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CASES), str(REPO)])}
    here = partial(python, cwd=tmp_path, env=environment)
    assert here("-c", MAKE).returncode == 0
    return here


def rows_safe(target):
    journal = folder_of(target) / "journal.jsonl"
    lines = journal.read_text().splitlines()[1:] if journal.exists() else []
    return sum(line.endswith("]}") and "row" in json.loads(line) for line in lines)


@pytest.mark.slow
def test_killed_and_restarted_command_predicts_the_same_bytes(here, tmp_path):
    request = ("best.pt", "scene.tif", *OPTIONS)
    first = here("-c", KILLED, *request, "--out", "out")
    target = tmp_path / "out" / "scene.tif"
    assert first.returncode == -signal.SIGKILL
    assert rows_safe(target) == 1
    assert not target.exists()
    again = here("-m", "training.predict", *request, "--out", "out")
    assert again.returncode == 0, again.stderr
    assert "resumed   out/scene.tif" in again.stdout
    whole = here("-m", "training.predict", *request, "--out", "whole", "--overlay")
    assert "predicted whole/scene.tif" in whole.stdout, whole.stderr
    assert target.read_bytes() == (tmp_path / "whole" / "scene.tif").read_bytes()
    assert sorted(path.name for path in (tmp_path / "whole").iterdir()) == [
        "scene.png",
        "scene.qml",
        "scene.tif",
    ]
    with rasterio.open(target) as dataset:
        assert (dataset.count, dataset.shape) == (9, (1700, 70))
