"""The direction of roads: targets from labels, their loss, and models that learn it."""

import math
import os
import signal
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.steps import SAMPLES
from helpers.stores import write_store
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import avg_pool2d, interpolate

from training.checkpoint import load, load_model
from training.model import unet as model_module
from training.model.build import build_model
from training.model.losses import RoadLoss, direction_loss, road_directions
from training.run import trainer

SIDE = 64


def line(angle: float, width: float = 6.0, offset: float = 0.0) -> torch.Tensor:
    """Return a road through the middle at an angle from the x axis, y down, fp32 (1, 1, y, x)."""
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    across = -math.sin(angle) * x + math.cos(angle) * y - offset
    return torch.from_numpy((np.abs(across) <= width / 2).astype(np.float32))[None, None]


@settings(max_examples=15, deadline=None)
@given(angle=st.floats(0, math.pi), width=st.floats(3, 12), offset=st.floats(-4, 4))
def test_straight_road_has_its_angle_everywhere(angle, width, offset):
    road = line(angle, width, offset)
    directions, weights = road_directions(road)
    inner = (slice(None), slice(None), slice(8, -8), slice(8, -8))  # ends touch the border
    on = weights[inner] > 0.5
    assert on.sum() >= 16
    assert torch.all(weights[inner][(avg_pool2d(road, 2)[inner] == 1)] > 0.8)
    turn = (torch.atan2(directions[:, 1:], directions[:, :1]) / 2)[inner][on]
    off = (turn - angle + math.pi / 2) % math.pi - math.pi / 2
    assert off.abs().median() < math.radians(5)
    assert off.abs().max() < math.radians(8)  # at the steps of the staircase that pixels make


def test_weights_are_shares_and_zero_away_from_roads():
    road = torch.maximum(line(0.3), line(1.7, 9.0))
    directions, weights = road_directions(road)
    assert directions.shape == (1, 2, SIDE // 2, SIDE // 2)
    assert weights.min() >= 0
    assert weights.max() <= 1
    assert torch.equal(weights > 0, avg_pool2d(road, 2) > 0)
    assert directions.norm(dim=1).max() <= 1 + 1e-5
    middle = slice(SIDE // 4 - 1, SIDE // 4 + 1)
    square = road_directions(torch.maximum(line(0.0), line(math.pi / 2)))[1]
    assert square[..., middle, middle].max() < 0.1  # no direction prevails


def test_transposed_and_mirrored_roads_turn_with_the_image():
    road = torch.maximum(line(0.4), line(1.2, 4.0, 9.0))
    directions, weights = road_directions(road)
    mirrored, same = road_directions(road.flip(-1))
    torch.testing.assert_close(same.flip(-1), weights)
    torch.testing.assert_close(
        (mirrored.flip(-1) * torch.tensor([1.0, -1.0]).view(1, 2, 1, 1)) * weights,
        directions * weights,
        atol=1e-4,
        rtol=0,
    )
    transposed, _ = road_directions(road.mT)
    torch.testing.assert_close(
        transposed.mT * weights,
        directions * torch.tensor([-1.0, 1.0]).view(1, 2, 1, 1) * weights,
        atol=1e-4,
        rtol=0,
    )


def test_loss_of_known_and_opposite_directions():
    road = torch.cat([line(0.5), line(1.4)])
    known = interpolate(road_directions(road)[0], scale_factor=2)
    assert direction_loss(known, road) < 1e-6
    weights = road_directions(road)[1].sum()
    expected = 4 * weights / (weights + 1)  # opposite unit vectors
    torch.testing.assert_close(direction_loss(-known, road), expected, atol=1e-3, rtol=1e-3)
    assert direction_loss(known, torch.zeros_like(road)) == 0


def test_loss_of_a_batch_adds_the_gradient_of_directions_and_not_their_value():
    target = torch.maximum(line(0.5), line(1.4))
    valid = torch.ones(1, SIDE, SIDE, dtype=torch.bool)
    logits = torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    both = RoadLoss(direction=0.3)(logits, target, valid)
    alone = RoadLoss()(logits[:, :1], target, valid)
    torch.testing.assert_close(torch.stack(both), torch.stack(alone))
    (found,) = torch.autograd.grad(both.total, logits)
    wanted = alone.total + 0.3 * direction_loss(logits[:, 1:], target)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, logits)[0])
    assert found[:, 1:].abs().max() > 0
    nothing = RoadLoss(direction=0.3)(logits, target, torch.zeros_like(valid))
    assert torch.autograd.grad(nothing.total, logits)[0].abs().max() == 0


def test_loss_is_computed_in_fp32_whatever_the_precision_of_the_model():
    road = torch.maximum(line(0.5, 9.0), line(1.4))
    predicted = torch.zeros(1, 2, SIDE, SIDE, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = direction_loss(predicted + 0.3, road)
    assert torch.equal(low, direction_loss(predicted + 0.3, road))
    assert low.dtype == torch.float32


BUILT_IN = ("--targets", "binary", *SAMPLES, "--pictures", "0")


@pytest.fixture
def small_unet(monkeypatch):
    """Give the built-in model an encoder of 704 weights: files of 24.5 million take seconds."""

    class Encoder(nn.Module):
        def __init__(self, bands):
            super().__init__()
            widths = (bands, *(4,) * 5)
            self.convs = nn.ModuleList(nn.Conv2d(*pair, 3, 2, 1) for pair in pairwise(widths))

        def forward(self, image):
            maps = [image]
            for conv in self.convs:
                maps.append(torch.relu(conv(maps[-1])))
            return maps[1:]

    monkeypatch.setattr(model_module, "ResNet34", Encoder)
    for name in ("_ENCODER_WIDTHS", "_DECODER_WIDTHS"):
        monkeypatch.setattr(model_module, name, (4,) * 5)


def test_model_returns_directions_in_training_only(small_unet):
    torch.manual_seed(0)
    plain = build_model(bands=3, channels=2)
    torch.manual_seed(0)
    model = build_model(bands=3, channels=2, directions=True)
    image = torch.randn(2, 3, 64, 64)
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert torch.equal(model.eval()(image), plain.eval()(image))
    both, one = model.train()(image), plain.train()(image)
    assert both.shape == (2, 4, 64, 64)
    torch.testing.assert_close(both[:, :2], one)


def test_a_run_learns_directions_and_its_files_predict_without(fit, small_unet, tmp_path):
    out, plain = tmp_path / "run", tmp_path / "plain"
    said = fit("--out", out, "--epochs", 1, "--ema", 0.9, network=BUILT_IN).out
    assert "focal-dice and 0.1 of the direction of roads" in said
    said = fit("--out", plain, "--epochs", 1, "--direction", 0, network=BUILT_IN).out
    assert "of the direction" not in said
    last, best, without = load(out), load(out / "best.pt"), load(plain)
    assert sorted(last.auxiliary) == ["direction.bias", "direction.weight"]
    assert best.auxiliary == without.auxiliary == {}
    assert last.model.keys() == last.ema.keys() == best.model.keys() == without.model.keys()
    stem = "encoder.convs.0.weight"
    assert not torch.equal(last.model[stem], without.model[stem])
    model, _ = load_model(out / "last.pt")
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 1, 64, 64)


def test_a_resumed_run_goes_on_with_its_directions(fit, small_unet, tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    fit("--out", whole, "--epochs", 2, network=BUILT_IN)
    step, done = trainer.train_step, []

    def interrupted(*args, **options):
        done.append(1)
        if len(done) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return step(*args, **options)

    monkeypatch.setattr(trainer, "train_step", interrupted)
    fit("--out", parts, "--epochs", 2, network=BUILT_IN, status=130)
    fit("--resume", parts, store=None, network=())
    one, other = load(whole), load(parts)
    for name, value in (one.model | one.auxiliary).items():
        assert torch.equal((other.model | other.auxiliary)[name], value), name
    more = ("--resume", whole / "best.pt", "--out", tmp_path / "more", "--epochs", 3)
    assert "0.1 of the direction" in fit(*more, store=None, network=()).out
    said = fit(
        "--resume", whole, "--direction", 0, "--epochs", 3, store=None, network=(), status=2
    ).err
    assert "--direction was auto and cannot become 0" in said


def test_weights_without_directions_begin_runs_with_and_without(fit, small_unet, out, tmp_path):
    fit("--out", out, "--epochs", 1, "--direction", 0, network=BUILT_IN)
    assert load(out).auxiliary == {}
    other = tmp_path / "other"
    options = ("--init-from", out, "--epochs", 1)
    said = fit(*options, "--out", other, "--direction", 0.1, network=BUILT_IN).out
    assert "at random: 2 of direction" in said
    fit(*options, "--out", tmp_path / "auto", network=BUILT_IN)
    assert load(tmp_path / "auto").auxiliary == {}


def test_only_roads_of_the_built_in_model_have_directions(fit, small_unet, tmp_path):
    tiny = ("--model", "helpers.tiny:build", *BUILT_IN)
    said = fit("--out", tmp_path / "tiny", "--epochs", 1, network=tiny).out
    assert load(tmp_path / "tiny").auxiliary == {}
    cover = write_store(tmp_path / "cover.zarr", classes=("background", "slow", "fast"))
    classes = ("--out", tmp_path / "cover", "--epochs", 1, *BUILT_IN[2:])
    said += fit(*classes, store=cover, network=()).out
    assert load(tmp_path / "cover").auxiliary == {}
    assert "of the direction" not in said
    for wrong, store in ((tiny, {}), (BUILT_IN[2:], {"store": cover})):
        options = ("--out", tmp_path / "wrong", "--direction", 0.5)
        said = fit(*options, network=wrong, **store, status=2).err
        assert "--direction 0.5 needs roads and --model resnet34-unet" in said
    assert not (tmp_path / "wrong").exists()


def test_directions_are_learnt_with_speeds_on_request(fit, small_unet, tmp_path):
    options = ("--epochs", 1, *BUILT_IN[2:], "--targets", "bins")
    fit("--out", tmp_path / "auto", *options, network=())
    assert load(tmp_path / "auto").auxiliary == {}
    found = []
    for weight in (0.1, 1e-9):
        out = tmp_path / str(weight)
        fit("--out", out, *options, "--direction", weight, network=())
        found.append(load(out).auxiliary["direction.weight"])
    assert not torch.equal(*found)
