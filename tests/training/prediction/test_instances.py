"""Several processes map images together, each map once."""

import errno
import fcntl
import multiprocessing
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from helpers.predict_cases import FACTS, make_checkpoint, pixels, write_image

from geoprep.cpus import usable_cpus
from geoprep.errors import UsageError
from training.predict import COMMAND, main
from training.prediction import instances
from training.prediction.instances import share_cores
from training.prediction.job import open_job
from training.prediction.journal import WriteJournal, folder_of
from training.prediction.predict_options import PredictOptions
from training.prediction.screen import Screen

HERE = Path(__file__).resolve().parents[2]
OPTIONS = ("--model", FACTS.model, "--precision", "fp32", "--compile", "off", "--window", "64")
OPTIONS += ("--overlap", "32")
several_cores = pytest.mark.skipif(usable_cpus() < 2, reason="one core")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    make_checkpoint(folder / "best.pt")
    (folder / "images").mkdir()
    for i in range(4):
        write_image(folder / "images" / f"{i}.tif", pixels(100, 120, seed=i))
    return folder


def words(scenes, out, *more):
    return [str(w) for w in (scenes / "best.pt", scenes / "images", "--out", out, *OPTIONS, *more)]


def test_shares_are_neighbouring_cores():
    assert share_cores([0, 1, 4, 5, 6], 2) == [[0, 1], [4, 5, 6]]
    assert share_cores([3], 1) == [[3]]
    with pytest.raises(UsageError, match="may use 2 cores"):
        share_cores([0, 1], 3)


@several_cores
def test_two_instances_predict_the_bytes_of_one(scenes, command, tmp_path):
    command(main, *words(scenes, tmp_path / "one"))
    said = command(main, *words(scenes, tmp_path / "two", "--instances", 2)).out
    assert "2 processes together" in said
    assert "4 predicted, 0 already complete, 0 failed" in said
    for i in range(4):
        one, two = (tmp_path / name / f"{i}.tif" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
        assert said.count(str(two)) == 1


@several_cores
def test_error_of_several_instances_is_printed_once(scenes, command, out):
    command(main, *words(scenes, out))
    more = ("--instances", 2, "--tta", "flips")
    error = command(main, *words(scenes, out, *more), status=2).err
    assert error.count("Error") == 1
    assert "made with other options (tta)" in error


def test_image_of_another_process_is_busy(scenes, command, out):
    out.mkdir()
    with WriteJournal(out / "2.tif", {"someone": "else"}):
        said = command(main, *words(scenes, out)).out
        assert folder_of(out / "2.tif").is_dir()
    assert "3 predicted, 0 already complete, 1 by another process, 0 failed" in said
    assert "busy " in said
    assert not (out / "2.tif").exists()


def test_images_are_predicted_on_file_systems_without_locks(scenes, tmp_path, monkeypatch):
    """As on some network file systems."""
    fails = mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr(fcntl, "flock", fails)
    assert main(words(scenes, tmp_path / "out")) == 0
    assert len(list((tmp_path / "out").glob("*.tif"))) == 4


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_a_process_predicts_the_images_that_it_takes(scenes, tmp_path, more):
    values = COMMAND.parse(words(scenes, tmp_path / "out", *more))
    job, _ = open_job(PredictOptions(**values))
    taken = multiprocessing.get_context("spawn").Value("q", 1)  # another one has the first
    outcomes = job.run(Screen(quiet=True), partial(instances._next, taken, first=True))
    assert {outcome.error for outcome in outcomes} == {""}
    made = sorted(path.name for path in (tmp_path / "out").glob("*.tif"))
    assert made == ["1.tif", "2.tif", "3.tif"]


@pytest.mark.slow
@several_cores
def test_ctrl_c_ends_all_instances(scenes, tmp_path):
    for i in range(40):
        source, target = scenes / "images" / f"{i % 4}.tif", tmp_path / "images" / f"{i}.tif"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(source.read_bytes())
    command = [sys.executable, "-m", "training.predict", str(scenes / "best.pt")]
    command += [str(tmp_path / "images"), "--out", str(tmp_path / "out"), *OPTIONS]
    command[command.index(FACTS.model)] = "helpers.predict_cases:interrupting"
    process = subprocess.Popen(
        [*command, "--instances", "2"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _, error = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert "Interrupted" in error
    deadline = time.monotonic() + 600
    while alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(process.pid)


def alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
