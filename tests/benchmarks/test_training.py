"""The benchmark of training: its commands, figures and a complete run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import training as benchmark
from benchmarks.common import Result
from benchmarks.loading.data import LoadingSizes, synthetic_store
from benchmarks.training import CASES, STEADY, Fitted
from training.fit import COMMAND
from training.settings import Config

BATCH, CROP = 2, 32


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_run_has_settings_that_exist(case):
    config = Config.from_flat(COMMAND.parse(["a.zarr", *STEADY, *case.options]))
    assert config.epochs == config.val_every == 3


def test_cases_are_judged_by_ratios_of_their_rates(monkeypatch, tmp_path):
    rates = {"fp32": 5.0, "fit": 12.0, "ipex": 12.2, "ranks": 10.0}

    def fit(store, out, options, case):
        name = next(name for name in CASES if CASES[name].title == case.title)
        assert options[-4:-2] == ["--batch-size", str(BATCH // case.ranks)]
        loss = "0.51" if name == "ranks" else "0.5"
        row = {"images_per_s": str(rates[name]), "data_wait": "", "loss": loss}
        return Fitted([row | {"images_per_s": "1"}, row, row], 100 << 20)

    monkeypatch.setattr(benchmark, "fit", fit)
    there = {name: replace(case, python=Path("/")) for name, case in CASES.items()}
    monkeypatch.setattr(benchmark, "CASES", there)
    sizes = {"batch_size": BATCH, "crop": CROP, "repeats": 2, "only": list(CASES)}
    result = Result("training", sizes)
    benchmark.measure_cases(result, tmp_path, tmp_path)
    names = ("fit.over_fp32", "fit.over_ipex", "ranks.difference")
    assert [result[name].met for name in names] == [True, False, True]
    assert [result[name].median for name in names] == pytest.approx([2.4, 12 / 12.2, 0.02])
    assert result["fit.peak"].median == 100


@pytest.mark.slow
def test_a_run_records_and_prints(tmp_path, monkeypatch, capsys):
    sizes = LoadingSizes(scenes=4, scene_side=128)
    store = synthetic_store(tmp_path / "city", sizes, 1)
    monkeypatch.setattr(benchmark, "QUICK", replace(benchmark.QUICK, crop=CROP))
    record = tmp_path / "t.json"
    given = [str(store), "--quick", "--only", "fp32", "--repeats", "1"]
    given += ["--work", str(tmp_path / "work")]
    assert benchmark.main([*given, "--json", str(record)]) == 0
    figures = json.loads(record.read_text())["figures"]
    assert figures["fp32.rate"]["median"] > 0
    assert figures["fp32.peak"]["median"] > 50
    assert "Training, ResNet34-UNet" in capsys.readouterr().out
    assert not list((tmp_path / "work").iterdir())
