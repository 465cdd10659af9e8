"""Memory estimates against known values."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.forks import as_rank
from helpers.steps import trainable_of
from torch import nn

from loaders.memory import Available
from training.engine.native import choose_engine
from training.run.capacity import LOSS_BYTES, Estimate, available, estimate, measure_activations
from training.settings import Config

GIB = 2**30
REPO = Path(__file__).resolve().parents[3]


def _model(bands=3, channels=8):
    return nn.Sequential(
        nn.Conv2d(bands, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, channels, 1)
    )


def _estimate(available):
    free = {"available": available, "limited_by": "the machine"}
    return Estimate(tiles=GIB, state=2 * GIB, fixed=0, per_sample=GIB, side=256, **free)


def test_activations_of_a_known_model():
    fixed, pixel = measure_activations(_model(), bands=3, dtype=torch.float32)
    # The image, what enters and what leaves BatchNorm in fp32; the loss; and once more the largest
    # of them, a gradient.
    tensors = (3 + 16 + 16) * 4
    assert pixel == pytest.approx(tensors + 2 * 8 * LOSS_BYTES, rel=0.01)
    assert fixed < 1000


def test_bf16_halves_the_memory_of_convolutions():
    bf16, fp32 = (
        measure_activations(_model(), bands=3, dtype=d)[1] - 2 * 8 * LOSS_BYTES
        for d in (torch.bfloat16, torch.float32)
    )
    assert bf16 == pytest.approx(fp32 / 2, rel=0.05)


def test_measuring_changes_no_state():
    model = nn.Sequential(_model(), nn.Dropout(0.5)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    measure_activations(model, bands=3, dtype=torch.bfloat16)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    assert all(module.training for module in model.modules())


def test_the_estimate_counts_weights_optimizer_and_tiles():
    model = _model()
    values = sum(p.numel() for p in model.parameters()) * 4
    engine = choose_engine("native", "cpu", "fp32")
    adam, sgd = (
        estimate(trainable_of(model), Config.from_flat(settings), engine, 64)
        for settings in ({"optimizer": "adamw"}, {"optimizer": "sgd", "ema": 0.9})
    )
    assert (adam.state, sgd.state) == (4 * values, 4 * values)
    assert adam.total(2) == 4 * values + adam.fixed + 2 * adam.per_sample
    assert replace(adam, tiles=1000).total(2) == adam.total(2) + 1000


def test_a_batch_that_does_not_fit_names_the_largest_that_fits_or_other_settings():
    assert not _estimate(10 * GIB).warnings(4)
    assert _estimate(10 * GIB).line(4).startswith("about 7.00 of 10.00 GiB: tiles 1.00")
    (said,) = _estimate(int(5.5 * GIB)).warnings(4)
    assert re.search(r"4 x 256 x 256 needs about 7.00 of 5.50 GiB.*`batch_size` 2 should fit", said)
    (said,) = _estimate(3 * GIB).warnings(4)
    assert "smaller `crop`" in said


def test_random_states_are_kept_for_the_named_device_only(monkeypatch):
    """A state of each other GPU would make a context there, some hundred MB each."""
    asked = []

    class Module:
        get_rng_state = staticmethod(lambda: asked.append("read") or torch.zeros(1))
        set_rng_state = staticmethod(lambda state: asked.append("restored"))

    monkeypatch.setattr(torch, "get_device_module", lambda device: asked.append(device) or Module)
    measure_activations(_model(), bands=3, dtype=torch.float32)
    assert not asked
    measure_activations(_model().to("meta"), bands=3, dtype=torch.float32)
    device = torch.device("meta")
    assert asked == [device, "read", device, "restored"] * 2


def test_unused_memory_of_torch_counts_as_available(monkeypatch):
    """Of an accelerator with 3 GiB free and 2 GiB reserved, 1.5 GiB of them in use."""
    device = SimpleNamespace(
        mem_get_info=lambda _: (3 * GIB, 8 * GIB),
        memory_reserved=lambda _: 2 * GIB,
        memory_allocated=lambda _: 3 * GIB // 2,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda _: device)
    assert available(torch.device("cuda")) == (7 * GIB // 2, "device cuda")


def test_ranks_of_a_machine_share_its_memory(monkeypatch):
    device = torch.device("cpu")
    monkeypatch.setattr("training.run.capacity.available_memory", lambda: Available(8 * GIB, "it"))
    assert available(device) == (8 * GIB, "it")
    as_rank(monkeypatch, LOCAL_WORLD_SIZE=4)
    assert available(device) == (2 * GIB, "it, 4 ranks")
