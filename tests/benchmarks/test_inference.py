"""The benchmark of inference: its commands, figures, and notes on missing forms."""

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from helpers.export_cases import FACTS

from benchmarks import inference as benchmark
from benchmarks.child import ChildError
from benchmarks.inference import BASE, FORMS
from training.checkpoint import Checkpoint, save
from training.model.build import build_model

IPEX = {"ipex-bf16", "ipex-int8"}


def test_a_form_is_exported_by_the_command_into_the_folder(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(benchmark, "run", made.append)
    form = FORMS["openvino-int8"]
    file = benchmark.export_form(form, tmp_path / "best.pt", Path("x.zarr"), 4)
    assert file == tmp_path / "int8.xml"
    assert made[0][1:5] == ["-m", "training.export", str(tmp_path / "best.pt"), "--format"]
    assert made[0][-6:] == ["--calibrate", "x.zarr", "--tiles", "4", "--out", str(file)]
    file = benchmark.export_form(FORMS["fp32"], tmp_path / "best.pt", Path("x.zarr"), 4)
    assert file.name == "best.pt"
    assert len(made) == 1


def test_forms_of_the_extension_use_its_interpreter(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "IPEX_PYTHON", tmp_path / "python")
    assert {name for name, form in FORMS.items() if form.python != sys.executable} == IPEX
    with pytest.raises(ChildError, match="make ipex"):
        benchmark.export_form(FORMS["ipex-int8"], Path("best.pt"), Path("x.zarr"), 4)


def test_every_form_is_a_format_of_export():
    from training.export import SUFFIXES

    exported = [form for form in FORMS.values() if form.file]
    assert {form.export["format"] for form in exported} == set(SUFFIXES) - {"fp32"}
    assert all(form.file.endswith(SUFFIXES[form.export["format"]]) for form in exported)
    assert FORMS[BASE].runs[-2:] == ("--compile", "on")


@pytest.mark.slow
def test_forms_are_timed_alone_and_in_predictions(tmp_path, monkeypatch, same_process):
    def ask(target, given, python):
        module, _, name = target.partition(":")
        return getattr(import_module(module), name)(**given)

    def fit(store, out, options):
        torch.manual_seed(0)
        network = build_model("unet-small", bands=3, channels=8)
        facts = replace(FACTS, model="unet-small")
        save(out / "best.pt", Checkpoint(info=facts, model=network.state_dict()))

    monkeypatch.setattr(benchmark, "ask", ask)
    monkeypatch.setattr(benchmark, "fit", fit)
    monkeypatch.setattr(benchmark, "keep_memory", lambda *_, **__: "as it is")
    report = tmp_path / "inference.json"
    words = ["--quick", "--repeats", "1", "--only", "fp32,bf16", "--json", str(report)]
    assert benchmark.main([*words, "--work", str(tmp_path)]) == 0
    recorded = json.loads(report.read_text())
    figures = {name: one["values"] for name, one in recorded["figures"].items()}
    assert figures["bf16.size"] == figures["fp32.size"]
    for name in ("fp32", "bf16"):
        assert figures[f"{name}.p99"][0] >= figures[f"{name}.p50"][0] > 0
        assert figures[f"{name}.rate"][0] > 0
        assert figures[f"{name}.share"][0] > 0
