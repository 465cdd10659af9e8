"""``python -m training.predict`` in a process of its own: what a shell sees, and SIGKILL."""

import json
import signal

import pytest
import rasterio
from helpers.forks import Command
from helpers.predict_cases import make_checkpoint, pixels, write_image

from training.prediction.journal import folder_of

# The process is killed when the first row of tiles is on the disk.
KILLED = """
import os, signal, sys
from training.predict import main
from training.prediction.journal import WriteJournal
add_row = WriteJournal.add_row
def last_row(self, sizes):
    add_row(self, sizes)
    os.kill(os.getpid(), signal.SIGKILL)
WriteJournal.add_row = last_row
sys.exit(main())
"""
MODEL = "helpers.predict_cases:neighbourly"
OPTIONS = ("--window", "96", "--overlap", "32", "--precision", "fp32", "--model", MODEL)


@pytest.mark.slow
def test_killed_and_restarted_command_predicts_the_same_bytes(forks, tmp_path):
    make_checkpoint(tmp_path / "best.pt", model=MODEL)
    write_image(tmp_path / "scene.tif", pixels(1700, 70))

    def predict(*words, program=("-m", "training.predict")):
        given = (*program, "best.pt", "scene.tif", *OPTIONS, *words)
        (done,) = forks.run(Command(given, str(tmp_path)))
        return done

    first = predict("--out", "out", program=("-c", KILLED))
    target = tmp_path / "out" / "scene.tif"
    assert first.returncode == -signal.SIGKILL
    rows = (folder_of(target) / "journal.jsonl").read_text().splitlines()[1:]
    assert ["row" in json.loads(line) for line in rows] == [True]
    assert not target.exists()
    again = predict("--out", "out")
    assert again.returncode == 0, again.stderr
    assert "resumed   out/scene.tif" in again.stdout
    whole = predict("--out", "whole", "--overlay")
    assert "predicted whole/scene.tif" in whole.stdout, whole.stderr
    assert target.read_bytes() == (tmp_path / "whole" / "scene.tif").read_bytes()
    made = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert made == ["scene.png", "scene.qml", "scene.tif"]
    with rasterio.open(target) as dataset:
        assert (dataset.count, dataset.shape) == (2, (1700, 70))
