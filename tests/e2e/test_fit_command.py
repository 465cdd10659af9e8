"""Training in processes of its own: killed, with several ranks, started by launchers."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from helpers.forks import Command, run_ranks
from helpers.runs import assert_same_run, rows
from helpers.stores import write_store

from training.checkpoint import load
from training.evaluate import main as evaluate
from training.fit import main

REPO = Path(__file__).resolve().parents[2]
HELPERS = REPO / "tests"

ONE = ("--device", "cpu", "--compile", "off", "--threads", "1", "--loader-threads", "1", "--quiet")
SAMPLES = ("--crop", "32", "--crops-per-tile", "1", "--pictures", "0")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("store") / "tiny.zarr")


@pytest.fixture
def run(tmp_path, python):
    """Return a function that trains in a process of its own that can import the tests' models."""
    env = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "LD_PRELOAD")}
    env["PYTHONPATH"] = f"{REPO}{os.pathsep}{HELPERS}"

    def run(*words, before=()):
        return python(*before, "-m", "training.fit", *words, cwd=tmp_path, env=env)

    return run


def column(folder, name):
    return [float(row[name]) for row in rows(folder)]


@pytest.fixture
def here(tmp_path, monkeypatch, short_runs):
    """Return a function that trains in this process; the other processes are under test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOOM_AT", "0")
    return lambda *command: main([*map(str, command)])


@pytest.mark.slow
def test_killed_in_mid_epoch_and_resumed_equals_never_killed(store, tmp_path, here, forks):
    common = ("--model", "helpers.tiny:killed", *ONE, *SAMPLES, "--batch-size", "4", "--ema", "0.9")
    common = (store, *common, "--epochs", "2", "--save-every", "2")
    assert here(*common, "--out", "whole") == 0
    words = ("-m", "training.fit", *map(str, common), "--out", "parts")
    (killed,) = forks.run(Command(words, str(tmp_path), {"DOOM_AT": "6"}))
    assert killed.returncode == -9
    assert load(tmp_path / "parts").progress["step"] == 4
    assert here("--resume", "parts", "--model", "helpers.tiny:killed") == 0
    assert "epoch 1, step 4" in (tmp_path / "parts" / "log.txt").read_text()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.fixture
def ranks(tmp_path, forks):
    """Return a function that runs a command as two ranks, whose completed processes it returns."""

    def start(*words, folders=(tmp_path, tmp_path), module="training.fit", **environment):
        return run_ranks(forks, ("-m", module, *map(str, words)), folders, **environment)

    return start


@pytest.mark.slow
def test_two_ranks_have_the_losses_of_one_process(store, tmp_path, here, run, ranks, capfd):
    """The same global batch, no BatchNorm: what differs is dice, taken per rank and averaged."""
    common = (store, "--model", "helpers.tiny:build", *ONE, *SAMPLES, "--precision", "fp32")
    common = (*common, "--epochs", "3", "--lr", "0.02")
    assert here(*common, "--batch-size", "8", "--out", "alone") == 0
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    two = run(*common, "--batch-size", "4", "--out", "ranks", before=launch)
    assert two.returncode == 0, two.stderr
    assert "2 ranks" in two.stdout
    assert two.stdout.count("epoch 1/3") == 1
    assert (tmp_path / "ranks" / "best.pt").exists()
    for name, tolerance in (("loss", 0.02), ("val_loss", 0.03)):
        one, two = column(tmp_path / "alone", name), column(tmp_path / "ranks", name)
        assert two == pytest.approx(one, rel=tolerance), name
    assert column(tmp_path / "alone", "step") == column(tmp_path / "ranks", "step")
    # Two ranks evaluate it as one process, each on its share of the tiles.
    judge = ("ranks/best.pt", store, "--model", "helpers.tiny:build", "--precision", "fp32")
    judge = (*judge, "--threads", "1", "--quiet", "--json")
    capfd.readouterr()
    assert evaluate([*map(str, judge)]) == 0
    judged, _ = ranks(*judge, module="training.evaluate")
    assert judged.returncode == 0, judged.stderr
    one, two = json.loads(capfd.readouterr().out), json.loads(judged.stdout)
    assert two["tiles"] == one["tiles"] > 1
    assert two["metrics"] == pytest.approx(one["metrics"], nan_ok=True)


@pytest.mark.slow
def test_ranks_stopped_by_a_signal_resume_exactly(store, tmp_path, ranks):
    """In an epoch, then in the first batch of a validation, which is not finished first.

    Every rank draws the same dropout as without the interruptions.
    """
    model = ("--model", "helpers.tiny:one_rank_interrupted")
    common = (store, *model, *ONE, *SAMPLES, "--batch-size", "2", "--epochs", "2")
    common = (*common, "--val-batch-size", "2", "--log-every", "2")
    never = {"DOOM_AT": "0", "DOOM_IN_VALIDATION": "0"}
    whole, _ = ranks(*common, "--out", "whole", **never)
    assert whole.returncode == 0, whole.stderr
    parts, _ = ranks(*common, "--out", "parts", **never | {"DOOM_AT": "3"})
    assert "stopped by Ctrl-C, saved in parts/last.pt" in parts.stdout, parts.stderr
    assert "--resume parts --model helpers.tiny:one_rank_interrupted" in parts.stdout
    assert 3 <= load(tmp_path / "parts").progress["step"] < 6
    again = ("--resume", "parts", *model)
    parts, _ = ranks(*again, **never | {"DOOM_IN_VALIDATION": "1"})
    assert "stopped by SIGTERM, saved in parts/last.pt" in parts.stdout, parts.stderr
    assert load(tmp_path / "parts").progress["history"] == []
    parts, _ = ranks(*again, **never)
    assert parts.returncode == 0, parts.stderr
    a, b = load(tmp_path / "whole"), load(tmp_path / "parts")
    assert all(torch.equal(a.model[name], b.model[name]) for name in a.model)
    assert len(b.rng["other_ranks"]) == 1
    assert torch.equal(a.rng["other_ranks"][0]["torch"], b.rng["other_ranks"][0]["torch"])
    assert len(column(tmp_path / "parts", "loss")) == 2


TIMED = """
import json, os, sys
from training.fit import main
from training.run import timing, trainer

seconds, rates, step = [0.0], [], trainer.train_step


def timed(module, batches, state, *given):
    seconds[0] += 1.0 + int(os.environ["RANK"])
    rates.append(state.rate)
    return step(module, batches, state, *given)


timing._now, trainer.train_step = lambda: seconds[0], timed
assert main(sys.argv[1:]) == 0
print(json.dumps(rates))
"""


@pytest.mark.slow
def test_two_ranks_follow_the_clock_of_the_slower(store, tmp_path, forks):
    """Its steps take two seconds, those of the first rank one."""
    common = (str(store), "--model", "helpers.tiny:normed", *ONE, *SAMPLES, "--batch-size", "2")
    words = ("-c", TIMED, *common, "--time", "40s", "--out", "timed")
    ended = run_ranks(forks, words, (tmp_path, tmp_path))
    assert [one.returncode for one in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    one, other = (json.loads(rank.stdout.splitlines()[-1]) for rank in ended)
    assert one == other
    assert 18 <= len(one) <= 20
    assert one[-1] < max(one) / 100, "the schedule ends with the time"


@pytest.mark.slow
def test_one_rank_reads_the_checkpoint_for_all(store, tmp_path, here, ranks):
    """As on two machines: the disk of the second rank has no run."""
    common = ("--model", "helpers.tiny:build", *ONE)
    assert here(store, *common, *SAMPLES, "--batch-size", "4", "--epochs", "1", "--out", "run") == 0
    (tmp_path / "elsewhere").mkdir()
    folders = (tmp_path, tmp_path / "elsewhere")
    said = ranks("--resume", "run", *common, "--epochs", "2", folders=folders)
    assert [one.returncode for one in said] == [0, 0], said
    assert len(column(tmp_path / "run", "loss")) == 2
    assert not list((tmp_path / "elsewhere").iterdir())
    # A run of two ranks is resumed by one.
    assert here("--resume", "run", *common, "--epochs", "3") == 0
    assert len(column(tmp_path / "run", "loss")) == 3


@pytest.mark.slow
def test_the_xeon_launcher_starts_a_run(store, tmp_path, run):
    launch = ("-m", "torch.backends.xeon.run_cpu", "--ninstances", "1", "--no-python")
    launch = (*launch, sys.executable)
    common = (store, "--model", "helpers.tiny:build", *SAMPLES, "--epochs", "1", "--compile", "off")
    done = run(*common, "--out", "run", before=launch)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "best.pt").exists()


def test_a_missing_store_is_a_one_line_error_without_files(tmp_path, here, capfd):
    assert here("nowhere.zarr", *ONE) == 1
    said = capfd.readouterr().err
    assert said.startswith("Error: nowhere.zarr: no such store")
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())
