"""The benchmark of training: its commands, figures and complete runs of its parts."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks import training as benchmark
from benchmarks.child import ROOT
from benchmarks.common import Result
from benchmarks.fitting import ladder, learning
from benchmarks.fitting.ladder import CEILING, FIT, KEPT, PLAIN, RUNGS
from benchmarks.loading.data import LoadingSizes, synthetic_store
from training.fit import COMMAND
from training.settings import Config

BATCH, CROP = 2, 32


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    sizes = LoadingSizes(scenes=4, scene_side=128)
    return synthetic_store(tmp_path_factory.mktemp("city"), sizes, 1)


def test_the_top_of_the_ladder_is_what_fit_does_by_default():
    """Except for the engine: if the extension is installed, it is the default."""
    assert FIT.options == ("--engine", "native")
    assert FIT.keep_memory
    assert KEPT.options == PLAIN.options
    assert KEPT.keep_memory != PLAIN.keep_memory


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_every_run_that_is_timed_has_settings_that_exist(rung):
    config = Config.from_flat(COMMAND.parse(["a.zarr", *ladder.STEADY, *rung.options]))
    assert config.epochs == config.val_every == 3


def test_the_ladder_is_judged_by_its_ratios(monkeypatch, store, tmp_path):
    rates = {rung.name: 5.0 for rung in RUNGS} | {"fit": 12.0, "ipex": 12.2, CEILING: 16.0}

    def measure_rung(rung, store, work, options):
        return {"rate": rates[rung.name], "waited": 0.01, "peak": 100.0}

    monkeypatch.setattr(ladder, "measure_rung", measure_rung)
    monkeypatch.setattr(ladder, "ask", lambda target, task: {"rate": rates[CEILING]})
    result = Result("training", {"batch_size": BATCH, "crop": CROP, "repeats": 2})
    there = [replace(rung, python=Path("/")) for rung in RUNGS]
    ladder.measure_ladder(result, store, tmp_path, there)
    found = {name: result[f"ladder.{name}"] for name in ("over_fp32", "over_ipex", "share")}
    assert found["over_fp32"].median == pytest.approx(2.4)
    assert found["share"].median == pytest.approx(0.75)
    assert [figure.met for figure in found.values()] == [True, False, False]


def test_the_demo_of_this_project_trains_with_settings_that_exist():
    Config.from_flat(COMMAND.parse(["store.zarr", *learning.demo_options()]))
    text = (ROOT / "Makefile").read_text()
    assert f"SCENES = {learning.SCENES}\n" in text


@pytest.mark.slow
def test_a_run_records_prints_and_draws_what_it_is_asked_for(
    store, tmp_path, monkeypatch, capsys, forked
):
    monkeypatch.setattr(benchmark, "QUICK", replace(benchmark.QUICK, crop=CROP))
    rung = replace(KEPT, options=(*KEPT.options, "--model", "helpers.tiny:normed"))
    measure = partial(ladder.measure_ladder, rungs=[rung], seconds=0.01)
    monkeypatch.setattr(benchmark, "measure_ladder", measure)
    record, plot = tmp_path / "t.json", tmp_path / "t.png"
    given = [str(store), "--quick", "--repeats", "1", "--work", str(tmp_path)]
    given += ["--only", "ladder", "--json", str(record), "--plot", str(plot)]
    assert benchmark.main(given) == 0
    figures = json.loads(record.read_text())["figures"]
    for name in ("ladder.kept.rate", "ladder.kept.step", "ladder.convolutions.rate"):
        assert figures[name]["median"] > 0
    assert figures["ladder.kept.peak"]["median"] > 50
    assert "Training, ResNet34-UNet" in capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json", "t.png"]
