"""The benchmark of inference: what it runs, what it says where a form is missing."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.deploy_cases import FACTS
from helpers.stores import write_store

from benchmarks import inference as benchmark
from benchmarks.child import ChildError
from benchmarks.common import Result
from benchmarks.inferring import forms, worker
from benchmarks.inferring.forms import BASE, FORMS
from training.checkpoint import Checkpoint, save
from training.model import build_network


class Doubler:
    """A runner that notes what went through it."""

    def __init__(self):
        self.seen = []

    def __call__(self, image):
        self.seen.append(tuple(image.shape))
        return image


class Talk:
    """A child that answers as one would whose rates are known."""

    def __init__(self, speed):
        self.speed = speed

    def ask(self, do, **arguments):
        if do == "latency":
            return {"seconds": [k / self.speed for k in range(1, 101)]}
        return {"mpx_s": self.speed * arguments["count"], "peak": 2**30}


def test_a_rate_counts_every_pixel_and_takes_two_batches_at_least():
    runner = Doubler()
    image = worker.images(2, 3, 32)
    assert image.is_contiguous(memory_format=torch.channels_last)
    found = worker.rate(runner, image, 0)
    assert runner.seen == [(2, 3, 32, 32)] * 2
    assert found > 0


def test_latencies_are_percentiles_and_areas_are_what_the_largest_batch_covers():
    result = Result("inference", {"quick": False})
    scale = benchmark.Scale(counts=(1, 4))
    found = benchmark.one_round(Talk(10.0), scale)
    benchmark.record(result, "fp32", [found], scale)
    assert result["fp32.p50"].values == (pytest.approx(50.5 / 10 * 1e3),)
    assert result["fp32.p99"].values == (
        pytest.approx(float(np.percentile(range(1, 101), 99)) * 100),
    )
    assert result["fp32.rate4"].values == (40.0,)
    assert result["fp32.area"].values == (pytest.approx(40 * 0.3**2 * 3600),)
    assert result["fp32.memory"].values == (1.0,)


def test_forms_of_the_extension_run_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(forms, "IPEX_PYTHON", tmp_path / "python")
    assert {name for name, form in FORMS.items() if form.python != sys.executable} == {"ipex-int8"}
    with pytest.raises(ChildError, match="make ipex"):
        forms.file_of(FORMS["ipex-int8"], Path("best.pt"), "x.zarr", tmp_path, 4)


def test_every_form_is_a_format_of_export():
    from training.export import SUFFIXES

    exported = [form for form in FORMS.values() if form.file]
    assert {form.options["format"] for form in exported} == set(SUFFIXES) - {"fp32"}
    assert all(form.file.endswith(SUFFIXES[form.options["format"]]) for form in exported)
    assert FORMS[BASE].compiled


@pytest.mark.slow
def test_a_checkpoint_is_judged_and_timed_beside_its_exports(tmp_path):
    """With a store, as a person would; a form that cannot be had leaves a note."""
    torch.manual_seed(0)
    from dataclasses import replace

    facts = replace(FACTS, network="resnet34-unet")
    network = build_network(facts.network, bands=3, channels=8)
    save(tmp_path / "best.pt", Checkpoint(facts=facts, network=network.state_dict()))
    store = write_store(tmp_path / "tiny.zarr")
    report = tmp_path / "inference.json"
    only = [word for name in ("fp32", "onnx-int8") for word in ("--only", name)]
    words = [str(tmp_path / "best.pt"), str(store), "--quick", "--repeats", "1", *only]
    assert benchmark.main([*words, "--work", str(tmp_path), "--json", str(report)]) == 0
    recorded = json.loads(report.read_text())
    figures = {name: one["values"] for name, one in recorded["figures"].items()}
    assert figures["fp32.drop"] == [0]
    assert 0 <= figures["fp32.road_iou"][0] <= 1
    assert abs(figures["onnx-int8.drop"][0]) < 0.2
    assert 0.2 < figures["onnx-int8.size"][0] / figures["fp32.size"][0] < 0.3
    for name in ("fp32", "onnx-int8"):
        assert figures[f"{name}.p99"][0] >= figures[f"{name}.p50"][0] > 0
        assert figures[f"{name}.rate2"][0] > 0
