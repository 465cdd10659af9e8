"""The benchmark of training: its commands, figures and complete runs of its parts."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import training as benchmark
from benchmarks.child import ROOT, ChildError
from benchmarks.common import Result
from benchmarks.fitting import ladder, learning
from benchmarks.fitting.convolutions import record
from benchmarks.fitting.ladder import CEILING, FIT, IPEX, KEPT, PLAIN, RUNGS
from benchmarks.loading.data import LoadingSizes, synthetic_store
from training.fit import COMMAND
from training.settings import Config

BATCH, CROP = 2, 32


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    sizes = LoadingSizes(scenes=4, scene_side=128)
    return synthetic_store(tmp_path_factory.mktemp("city"), sizes, 1)


def a_result(**settings):
    usual = {"quick": False, "batch_size": BATCH, "crop": CROP, "repeats": 2}
    usual |= {"seeds": 1, "recipe": {}}
    return Result("training", usual | settings, {"cores": 2, "processor": "one"})


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


def test_the_bound_is_every_convolution_of_a_step_and_nothing_else():
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1))
    found = record(network, torch.rand(BATCH, 3, CROP, CROP))
    names = [call.name() for call, _ in found]
    assert names == ["aten::convolution"] * 2 + ["aten::convolution_backward"] * 2
    images = [given[0] for _, given in found[:2]]
    assert [tuple(image.shape) for image in images] == [
        (BATCH, 3, CROP, CROP),
        (BATCH, 8, CROP, CROP),
    ]
    assert all(image.dtype == torch.bfloat16 for image in images)
    assert all(image.is_contiguous(memory_format=torch.channels_last) for image in images)
    # The image needs no gradient, so the backward pass computes none.
    masks = [given[-1] for _, given in found[2:]]
    assert [mask[0] for mask in masks] == [True, False]


def fake_rates(monkeypatch, rates):
    """Replace runs by answers with these images per second."""

    def measure_rung(rung, store, work, options):
        if rates[rung.name] is None:
            raise ChildError("no such luck")
        return {"rate": rates[rung.name], "waited": 0.01, "peak": 100.0}

    monkeypatch.setattr(ladder, "measure_rung", measure_rung)
    monkeypatch.setattr(ladder, "ask", lambda target, task: {"rate": rates[CEILING]})


def everywhere(rungs):
    """Return rungs with an interpreter that exists."""
    return [replace(rung, python=Path("/")) for rung in rungs]


def test_the_ladder_is_judged_by_its_ratios(monkeypatch, store, tmp_path):
    rates = {rung.name: 5.0 for rung in RUNGS} | {"fit": 12.0, "ipex": 12.2, CEILING: 16.0}
    fake_rates(monkeypatch, rates)
    result = a_result()
    ladder.measure_ladder(result, store, tmp_path, everywhere(RUNGS))
    found = {name: result[f"ladder.{name}"] for name in ("over_fp32", "over_ipex", "share")}
    assert found["over_fp32"].median == pytest.approx(2.4)
    assert found["share"].median == pytest.approx(0.75)
    assert [figure.met for figure in found.values()] == [True, False, False]


def test_a_rung_that_does_not_start_is_left_out_with_a_note(monkeypatch, store, tmp_path):
    fake_rates(monkeypatch, {"fit": 2.0, "ipex": None, CEILING: 16.0})
    result = a_result()
    ladder.measure_ladder(result, store, tmp_path, everywhere([FIT, IPEX]))
    assert "ladder.ipex.rate" not in result.figures
    assert result["ladder.fit.rate"].median == 2
    assert any("no such luck" in note for note in result.notes)


@pytest.fixture
def learnt(monkeypatch):
    """Replace commands by functions that write their outputs; return the calls."""
    asked = []

    def trained(store, out, options):
        asked.append((out.name, options[-1]))
        if "--fail" in options:
            raise ChildError("no such luck")
        out.mkdir(parents=True, exist_ok=True)
        (out / "best.pt").touch()
        ious = ("0.3", "", "0.7") if "--good" in options else ("0.2", "", "0.4")
        rows = [{"best_road_iou": iou, "bin_iou": iou} for iou in ious]
        return [{**row, "epoch": i, "seconds": 60 * i} for i, row in enumerate(rows, start=1)]

    def judged(command):
        metrics = {"road_iou": 0.7, "bin_iou": 0.7, "speed_mae_mph": None}  # nothing found
        Path(command[command.index("--json") + 1]).write_text(json.dumps({"metrics": metrics}))
        return ""

    monkeypatch.setattr(learning, "fit", trained)
    monkeypatch.setattr(learning, "run", judged)
    return asked


def test_recipes_learn_in_turns_a_run_per_seed(store, tmp_path, learnt):
    recipes = {"good": ["--good"], "bad": [], "broken": ["--fail"]}
    result = a_result(seeds=2)
    learning.measure_city(result, store, tmp_path, recipes)
    turns = [("good", "0"), ("bad", "0"), ("broken", "0"), ("bad", "1"), ("good", "1")]
    assert learnt == turns
    assert result["city.good.road_iou"].values == (0.7, 0.7)
    assert math.isnan(result["city.good.speed_error"].median)
    assert result["city.good.epoch 3.road_iou"].values == (0.7, 0.7)
    assert result["city.bad.epoch 1.minutes"].values == (1.0, 1.0)
    assert "city.bad.epoch 2.minutes" not in result.figures
    assert any("no such luck" in note for note in result.notes)


def test_the_city_is_learnt_as_the_demo_does(tmp_path):
    made = tmp_path / "Makefile"
    made.write_text(
        "EPOCHS = 3\nSIZE ?= 4\ndemo: x\n"
        "\tgeoprep build-zarr --city moscow --source $(DEMO)/data --tile 64 --out a.zarr\n"
        "\tpython -m training.fit $(DEMO)/moscow.zarr --epochs $(EPOCHS) --batch-size $(SIZE) "
        "--out r\n"
    )
    assert learning.demo_options(makefile=made) == ["--epochs", "3", "--batch-size", "4"]
    assert learning.demo_options(learning.BUILD, made) == ["--tile", "64"]
    made.write_text("demo:\n")
    with pytest.raises(ChildError, match="--recipe"):
        learning.demo_options(makefile=made)


def test_the_demo_of_this_project_trains_with_settings_that_exist():
    Config.from_flat(COMMAND.parse(["store.zarr", *learning.demo_options()]))
    text = (ROOT / "Makefile").read_text()
    assert f"SCENES = {learning.SCENES}\n" in text


@pytest.mark.slow
def test_a_run_records_prints_and_draws_what_it_is_asked_for(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "QUICK", replace(benchmark.QUICK, crop=CROP))
    measure = partial(ladder.measure_ladder, rungs=[KEPT], seconds=0.01)
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
