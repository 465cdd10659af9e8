"""Training and prediction on an accelerator, compared with the CPU.

Each test runs twice: on the CPU, which shows that the test itself works, and marked `accelerator`
on the accelerator, where there is one. With GEOPREP_TEST_DEVICE=cpu these too run on the CPU.
"""

import shutil

import numpy as np
import pytest
import rasterio
import torch
from helpers import tiny
from helpers.predict_cases import pixels, write_image
from helpers.runs import assert_same_run
from helpers.steps import batch as noise
from helpers.steps import trainable_of

from loaders import BatchLoader, DevicePrep, Jitter, Normalize, RamTiles, SpeedTarget
from training import export_model, load_model, train
from training.checkpoint import load
from training.engine.native import choose_engine
from training.fit import main
from training.model.trainable import copy_weights
from training.process import is_out_of_memory
from training.run.step import StepState, TrainingError, train_step
from training.settings import Config

MODEL = "helpers.tiny:undropped"
SETTINGS = {"model": MODEL, "crop": 32, "crops_per_tile": 1, "batch_size": 4}
SETTINGS |= {"loader_threads": 1, "precision": "fp32", "compile": "off", "pictures": 0}
SETTINGS |= {"lr": 1e-2, "optimizer": "sgd", "ema": 0.9, "epochs": 1, "progress": False}
STEPS = 6
"""Steps of the epoch."""


@pytest.fixture(
    scope="module", params=["cpu", pytest.param("found", marks=pytest.mark.accelerator)]
)
def device(request, accelerator):
    """Return the device under test."""
    return accelerator if request.param == "found" else "cpu"


@pytest.fixture(scope="module")
def runs(store_path, tmp_path_factory, device, short_runs):
    """Return two runs of the same settings: on the CPU, and on the device with its own tiles."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        train(store_path, out=folder / name, device=where, residency=kept, **SETTINGS)
        for name, where, kept in (("cpu", "cpu", "ram"), ("device", device, "device"))
    ]


def a_step(device, build, **settings):
    """Return module, optimizer and a function that takes a step on the device."""
    torch.manual_seed(0)
    module = trainable_of(build(3, 8)).train()
    config = Config.from_flat({"optimizer": "adamw", **settings})
    engine = choose_engine("native", device, config.precision, "off")
    state = StepState.of(module, engine, config)
    image = noise().image.permute(0, 2, 3, 1).numpy()
    tiles = RamTiles.from_arrays(np.ascontiguousarray(image), noise().label.numpy())
    batches = list(BatchLoader(tiles, 2, shuffle=False))
    return module, lambda: train_step(module, batches, state)


def test_training_equals_that_of_the_cpu(runs):
    cpu, device = (run.metrics for run in runs)
    np.testing.assert_allclose(device["loss"], cpu["loss"], rtol=1e-3)
    np.testing.assert_allclose(device["val_loss"], cpu["val_loss"], rtol=1e-3)
    weights, others = (load(run.folder / "last.pt").model for run in runs)
    assert load(runs[1].folder / "last.pt").progress["step"] == STEPS
    for name, value in weights.items():
        torch.testing.assert_close(others[name].cpu(), value, rtol=1e-3, atol=1e-4)


def test_images_and_targets_are_those_of_the_cpu(device):
    prep = DevicePrep(Normalize([100.3] * 3, [50.0] * 3), SpeedTarget("bins"), jitter=Jitter())
    here, there = prep(noise()), prep.to(device)(noise().to(device))
    torch.testing.assert_close(there.image.cpu(), here.image, rtol=1e-6, atol=1e-6)
    assert there.image.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(there.target.cpu(), here.target)


@pytest.mark.accelerator
@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "bf16", "noise": 4.0},
        {"precision": "fp16", "residency": "device"},
        {"accumulate": 4, "optimizer": "sgd", "stages": "64@32:3,32:3", "epochs": 30, "crop": 256},
    ],
)
def test_recorded_steps_give_the_bits_of_steps_as_they_are(
    store_path, tmp_path, accelerator, short_runs, monkeypatch, settings
):
    if accelerator != "cuda":
        pytest.skip("graphs are recorded on CUDA devices")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    usual = SETTINGS | {"model": "helpers.tiny:normed", "optimizer": "adamw", "epochs": 3}
    try:
        for capture in ("auto", "off"):
            out = tmp_path / capture
            train(store_path, out=out, device="cuda", capture=capture, **usual | settings)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same_run(tmp_path / "auto", tmp_path / "off")
    groups = load(tmp_path / "auto").optimizer["param_groups"]
    assert {(type(group["lr"]), group.get("capturable", False)) for group in groups} == {
        (float, False)
    }


def reads(image, label, key):
    """An augmentation that reads a value of the device."""
    return image + int(key[0]) % 2, label


@pytest.mark.accelerator
@pytest.mark.parametrize(
    ("augmentation", "why"),
    [
        ("helpers.tiny:random_shift", "the host draws random numbers"),
        (f"{__name__}:reads", "the host reads values of the device"),
        ("helpers.tiny:darken", "images/s"),
    ],
)
def test_an_augmentation_that_cannot_be_recorded_is_told(
    store_path, tmp_path, accelerator, short_runs, capfd, augmentation, why
):
    if accelerator != "cuda":
        pytest.skip("graphs are recorded on CUDA devices")
    settings = SETTINGS | {"epochs": 3, "augmentation": augmentation}
    train(store_path, out=tmp_path / "run", device="cuda", **settings)
    said = capfd.readouterr().out
    assert why in said
    assert ("not recorded" in said) == (why != "images/s")


def test_a_checkpoint_of_the_device_opens_on_the_cpu(runs):
    saved = load(runs[1].folder / "last.pt")
    tensors = [*saved.model.values(), *saved.ema.values()]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    image = pixels(64, 64).transpose(2, 0, 1)
    assert load_model(runs[1].best, device="cpu", model=MODEL)(image).shape == (8, 64, 64)


@pytest.mark.slow
def test_a_run_of_the_device_is_resumed_on_the_cpu(runs, tmp_path, capfd):
    more = shutil.copytree(runs[1].folder, tmp_path / "more")
    words = ["--resume", more, "--device", "cpu"]
    words += ["--epochs", 2, "--residency", "ram", "--model", SETTINGS["model"], "--quiet"]
    assert main([str(word) for word in words]) == 0
    assert load(more / "last.pt").progress["epoch"] == 2


def test_predictions_are_within_a_level_of_those_of_the_cpu(runs, device, tmp_path):
    image = write_image(tmp_path / "scene.tif", pixels(150, 170))
    found = []
    for number, where in enumerate(("cpu", device)):
        how = {"device": where, "precision": "fp32", "model": MODEL}
        model = load_model(runs[0].best, **how)
        how |= {"window": 64, "overlap": 16, "progress": False}
        (path,) = model.predict(image, tmp_path / str(number), **how)
        with rasterio.open(path) as file:
            found.append(file.read().astype(int))
    cpu, other = found
    bands = [0, *range(2, len(cpu))]  # the second is a speed, not a level
    assert np.abs(cpu - other)[bands].max() <= 1
    assert (cpu[1] != other[1]).mean() < 0.01


@pytest.mark.slow
def test_an_export_of_the_device_computes_as_the_checkpoint(runs, tmp_path):
    file = export_model(runs[1].best, tmp_path / "model.pt2", format="fp32", model=MODEL)
    image = pixels(64, 64).transpose(2, 0, 1)
    one = load_model(runs[1].best, device="cpu", model=MODEL)(image)
    other = load_model(file, device="cpu")(image)
    np.testing.assert_allclose(one, other, atol=0.02)


@pytest.mark.parametrize("model", [tiny.steep, tiny.explosive])
def test_a_step_that_is_not_finite_changes_no_weight(device, model):
    module, step = a_step(device, model)
    for number in range(1, 6):
        before = copy_weights(module.model)
        try:
            result = step()
            failed = not torch.isfinite(result.norm).item()
        except TrainingError:  # the CPU says it at once
            failed = True
        assert failed == (number == 5)
        same = [torch.equal(before[n], v) for n, v in module.model.state_dict().items()]
        assert all(same) == failed


@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32", "auto"])
def test_every_precision_trains(device, precision):
    _, step = a_step(device, tiny.normed, precision=precision)
    assert all(torch.isfinite(step().norm) for _ in range(3))


def test_fp16_finds_a_scale_of_the_loss_and_trains(device):
    module, step = a_step(device, tiny.normed, precision="fp16")
    before = copy_weights(module.model)
    assert any(torch.isfinite(step().norm) for _ in range(16))
    assert not torch.equal(before["0.weight"], module.model[0].weight)


def test_a_size_that_does_not_fit_leaves_the_device_usable(device):
    where = torch.device(device)
    with pytest.raises((RuntimeError, MemoryError)) as found:
        torch.empty(1 << 60, dtype=torch.uint8, device=where)
    assert is_out_of_memory(found.value)
    assert int(torch.ones(3, device=where).sum()) == 3
