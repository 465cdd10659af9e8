"""The benchmark of advice."""

import json
from dataclasses import replace

import pytest
import torch
from helpers.export_cases import FACTS
from helpers.stores import write_store

from benchmarks.advice import main
from training.checkpoint import Checkpoint, save
from training.model.build import build_model


def test_scores_of_model_and_forest_stand_beside_the_advice(tmp_path, capsys):
    torch.manual_seed(0)
    model = build_model("resnet34-unet", bands=3, channels=8).state_dict()
    (tmp_path / "run").mkdir()
    facts = replace(FACTS, model="resnet34-unet")
    save(tmp_path / "run" / "best.pt", Checkpoint(info=facts, model=model))
    pair = f"{write_store(tmp_path / 'tiny.zarr')}={tmp_path / 'run'}"
    assert main([pair, "--json", str(tmp_path / "a.json")]) == 0
    recorded = json.loads((tmp_path / "a.json").read_text())
    figures = {name.removeprefix(pair): f["median"] for name, f in recorded["figures"].items()}
    assert figures[".model"] < 0.5 < figures[".forest"]  # a model that has learned nothing
    assert figures[".difference"] == pytest.approx(figures[".model"] - figures[".forest"])
    assert "or take the forest" in recorded["notes"][0]
    printed = capsys.readouterr().out
    assert "tiny, run" in printed
    assert "train longer" in printed


def test_a_run_without_a_store_is_refused(capsys):
    assert main(["roofs.zarr"]) == 2
    assert "roofs.zarr: expected STORE=RUN" in capsys.readouterr().err
