"""The extension's engine. Runs where the extension is: ``make ipex``, then its own environment."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.export_cases import FACTS, IMAGE
from helpers.steps import batch, losses
from helpers.stores import write_store
from helpers.tiny import normed
from torch import nn

from loaders import DevicePrep, Normalize, SpeedTarget
from training.checkpoint import Checkpoint, CheckpointError, save
from training.engine import ipex as engine_ipex
from training.engine.native import choose_engine
from training.export import main as export
from training.model.build import build_model
from training.model.losses import RoadLoss
from training.model.trainable import Trainable
from training.model.unet import UpConv
from training.run.parts import prepare
from training.runners.model_files import load_runner
from training.runners.runner import NativeRunner
from training.settings import Config

pytestmark = pytest.mark.skipif(
    engine_ipex.state() != "works",
    reason=f"{engine_ipex.PACKAGE} {engine_ipex.state()}; make ipex installs it on its own",
)


def _network():
    """Return convolutions of every kind that the ResNet34-UNet has, few of them."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        _filled(UpConv(16, 16)),
        nn.Conv2d(16, 8, 3, padding=1),
    )


def _filled(up):
    nn.init.kaiming_normal_(up.weight, mode="fan_out")
    return up


def _prepared(engine, weights=None):
    torch.manual_seed(0)
    prep = DevicePrep(Normalize([100.0] * 3, [50.0] * 3, engine.dtype), SpeedTarget())
    trainable = Trainable(prep, _network(), RoadLoss())
    if weights is not None:
        trainable.model.load_state_dict(weights)
    return trainable, prepare(trainable, engine, Config(lr=0.01))


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 1e-2)])
def test_both_engines_train_to_the_same_loss(precision, tolerance):
    curves = [
        losses(engine, *_prepared(engine), steps=8, side=64)
        for engine in (choose_engine(name, "cpu", precision, "off") for name in ("native", "ipex"))
    ]
    assert curves[1] == pytest.approx(curves[0], rel=tolerance)
    assert curves[1][-1] < 0.9 * curves[1][0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_beside_a_frozen_encoder_all_other_kernels_learn(precision):
    """The extension trains no convolution in evaluation mode, which is that of the encoder."""
    engine = choose_engine("ipex", "cpu", precision, "off")
    torch.manual_seed(0)
    prep = DevicePrep(Normalize([100.0] * 3, [50.0] * 3, engine.dtype), SpeedTarget())
    trainable = Trainable(prep, build_model(bands=3, channels=8), RoadLoss())
    optimizer = prepare(trainable, engine, Config(lr=0.01, encoder_lr=0))
    before = {name: value.clone() for name, value in trainable.model.state_dict().items()}
    losses(engine, trainable.train(), optimizer, steps=2, side=64)
    after = trainable.model.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert not [name for name in moved if name.startswith("encoder.")]
    learnt = {name for name, _ in trainable.model.named_parameters() if "encoder." not in name}
    assert learnt <= moved


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_checkpoints_hold_fp32_with_the_names_of_the_model(precision):
    engine = choose_engine("ipex", "cpu", precision, "off")
    module, optimizer = _prepared(engine)
    losses(engine, module, optimizer, steps=1, side=64)
    saved = module.model.state_dict()
    assert list(saved) == list(_network().state_dict())
    assert {v.dtype for v in saved.values() if v.is_floating_point()} == {torch.float32}
    assert all(saved[name].shape == v.shape for name, v in _network().state_dict().items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resumed_run_equals_one_that_was_not_stopped(precision):
    engine = choose_engine("ipex", "cpu", precision, "off")
    module, optimizer = _prepared(engine)
    losses(engine, module, optimizer, steps=2, side=64)
    weights = {name: value.clone() for name, value in module.model.state_dict().items()}
    again, its_optimizer = _prepared(engine, weights)
    its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    expected = losses(engine, module, optimizer, steps=2, side=64)
    assert losses(engine, again, its_optimizer, steps=2, side=64) == expected


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_loaded_later_are_used(precision):
    """Averaged weights are put in and taken out again while a run goes on."""
    engine = choose_engine("ipex", "cpu", precision, "off")
    module, optimizer = _prepared(engine)
    losses(engine, module, optimizer, steps=1, side=64)
    averaged = {
        name: value * 0.9 if value.is_floating_point() else value
        for name, value in module.model.state_dict().items()
    }
    module.model.load_state_dict(averaged)
    plain = _network()
    plain.load_state_dict(averaged)
    module.eval()
    plain.eval()
    with torch.no_grad(), engine.autocast():
        image = batch(side=64).image
        expected = plain(module.prep.normalize(image))
        torch.testing.assert_close(module.logits(image), expected, rtol=0.02, atol=0.02)


def _saved(path):
    """Return an untrained network that is also a checkpoint."""
    torch.manual_seed(0)
    network = normed(3, 8).eval()
    save(path, Checkpoint(info=FACTS, model=network.state_dict()))
    return network


def test_an_export_in_bf16_predicts_as_the_checkpoint(tmp_path, capsys):
    network = _saved(tmp_path / "best.pt")
    words = [tmp_path / "best.pt", "--model", FACTS.model, "--format", "ipex-bf16"]
    assert export([str(word) for word in (*words, "--out", tmp_path / "x.ipex")]) == 0
    assert "bfloat16 on cpu, IPEX" in capsys.readouterr().out
    runner, record = load_runner(tmp_path / "x.ipex")
    assert (record.precision, record.info.bands) == ("bfloat16", FACTS.bands)
    plain = NativeRunner(network, FACTS, device=torch.device("cpu"), precision="fp32")
    for image in (IMAGE, IMAGE, IMAGE[:1, :, :32]):
        assert 0 < (runner(image) - plain(image)).abs().max() < 0.02


def test_an_export_in_int8_predicts_as_the_checkpoint(tmp_path, capsys):
    """By the command, into a file that another reader opens; its layers are fused in INT8."""
    network = _saved(tmp_path / "best.pt")
    words = [tmp_path / "best.pt", "--model", FACTS.model, "--format", "ipex-int8", "--tiles", 8]
    words += ["--calibrate", write_store(tmp_path / "tiny.zarr"), "--out", tmp_path / "x.ipex"]
    assert export([str(word) for word in words]) == 0
    assert "int8 on cpu, IPEX" in capsys.readouterr().out
    runner, record = load_runner(tmp_path / "x.ipex")
    assert (record.precision, record.calibration, record.info.bands) == ("int8", 8, FACTS.bands)
    plain = NativeRunner(network, FACTS, device=torch.device("cpu"), precision="fp32")
    for image in (IMAGE, IMAGE, IMAGE[:1, :, :32]):  # it is fused in its second call
        apart = (runner(image) - plain(image)).abs()
        assert 0 < apart.mean() < 0.005
    # Rounded to 8 bits, unlike an answer in bf16.
    assert "quantize_per_tensor" in str(runner.module.graph)
    data = bytearray((tmp_path / "x.ipex").read_bytes())
    (tmp_path / "half.ipex").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=r"half\.ipex is damaged"):
        load_runner(tmp_path / "half.ipex")


@pytest.mark.slow
def test_ipexrun_starts_a_run():
    """It takes a module only as ``--no-python python -m``, like torch's own launcher."""
    launcher = Path(sys.executable).with_name("ipexrun")
    launch = [launcher, "cpu", "--ninstances", "1", "--ncores-per-instance", "1", "--no-python"]
    done = subprocess.run(
        [*launch, sys.executable, "-m", "training.fit", "--help-all"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--engine" in done.stdout
