"""The network as prediction runs it: views averaged once each, plain and compiled alike."""

import numpy as np
import pytest
import torch
from helpers.predict_cases import FACTS, neighbourly, pixels, probabilities

from training.model.unet import ResNetUNet, UpConv
from training.runners import runner as runner_module
from training.runners.runner import NativeRunner, average_views

CPU = torch.device("cpu")


def batch(n=2, height=32, width=64):
    return torch.from_numpy(np.stack([pixels(height, width, seed=i) for i in range(n)]))


def make_runner(precision="fp32"):
    torch.manual_seed(3)
    network = neighbourly(3, 8).eval()
    return NativeRunner(network, FACTS, device=CPU, precision=precision), network


def test_probabilities_are_sigmoids_of_the_normalised_image():
    runner, network = make_runner()
    image = batch()
    result = runner(image.permute(0, 3, 1, 2))
    assert result.is_contiguous()
    for i in range(2):
        wanted = probabilities(network, image[i].numpy())
        np.testing.assert_allclose(result[i].permute(2, 0, 1), wanted, atol=1e-5)


@pytest.mark.parametrize(("name", "count"), [("none", 1), ("flips", 4), ("d4", 8)])
def test_each_view_counts_exactly_once(name, count):
    marked, seen = torch.arange(6.0).reshape(1, 1, 2, 3), []

    def look(image):
        seen.append((image.shape, *image.flatten().tolist()))
        return image.permute(0, 2, 3, 1).clone()

    found = average_views(look, marked, name)
    assert len(seen) == len(set(seen)) == count
    torch.testing.assert_close(found, marked.permute(0, 2, 3, 1))


def test_a_model_is_compiled_if_that_pays_and_the_user_reads_only_what_matters(monkeypatch):
    few, many = 10**6, 10**10
    runner, _ = make_runner()

    def chosen(mode, pixels):
        runner.compile_mode = mode
        found, note = runner.for_pixels(pixels)
        return found is runner, note

    monkeypatch.setattr(runner_module, "missing_compiler", lambda device: None)
    assert chosen("off", many) == chosen("auto", few) == (True, "")
    for mode, size in (("on", few), ("auto", many)):
        note = "compiling the model with the first batch, up to a minute"
        assert chosen(mode, size) == (False, note)
    monkeypatch.setattr(runner_module, "missing_compiler", lambda device: "since there is none")
    assert chosen("auto", few) == (True, "")
    for mode, size in (("on", few), ("auto", many)):
        assert chosen(mode, size) == (True, "model not compiled, since there is none")
    runner.device = torch.device("cuda")
    assert chosen("auto", many) == (True, "")


@pytest.mark.parametrize("computes", [True, False])
def test_precision_follows_the_hardware(monkeypatch, computes):
    monkeypatch.setattr(runner_module, "computes_bf16", lambda device: computes)
    found = {name: make_runner(name)[0].precision for name in ("auto", "bf16", "fp32")}
    auto = "bfloat16" if computes else "float32"
    assert found == {"auto": auto, "bf16": "bfloat16", "fp32": "float32"}


def test_model_that_cannot_be_compiled_runs_uncompiled(monkeypatch):
    from torch._dynamo.exc import TorchDynamoException

    def broken(*args, **kwargs):
        def call(image):
            raise TorchDynamoException("no such luck\nand more")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    runner, _ = make_runner()
    image = batch().permute(0, 3, 1, 2)
    with pytest.warns(RuntimeWarning, match="no such luck"):
        result = runner.in_shape(image)
    torch.testing.assert_close(result, runner(image))


def test_a_model_predicts_with_kernels_that_are_computed_before():
    torch.manual_seed(0)
    network = ResNetUNet(3, 8).eval()
    runner = NativeRunner(network, FACTS, device=CPU, precision="fp32")
    assert runner.to_compile() is runner.module
    computed = UpConv, torch.nn.BatchNorm2d
    assert not any(isinstance(layer, computed) for layer in runner.module.modules())
    image = batch(height=32, width=64)
    found = runner(image.permute(0, 3, 1, 2))
    for window, pixels_of in zip(found, image, strict=True):
        wanted = probabilities(network, pixels_of.numpy())
        np.testing.assert_allclose(window.permute(2, 0, 1), wanted, atol=1e-5)


def test_a_model_is_compiled_on_its_device():
    device = torch.device("meta")
    runner = NativeRunner(ResNetUNet(3, 8).eval(), FACTS, device=device, precision="fp32")
    assert runner.in_shape.device == device
    compiled = runner.to_compile()
    held = (*compiled.parameters(), *compiled.buffers())
    assert {value.device for value in held} == {device}


@pytest.mark.slow
def test_compiled_model_has_frozen_weights_and_the_same_probabilities():
    if runner_module.missing_compiler(CPU):
        pytest.skip("no compiler")
    runner, _ = make_runner()
    compiled = runner.in_shape
    image = batch().permute(0, 3, 1, 2)
    plain = runner(image)
    torch.testing.assert_close(compiled(image), plain, atol=1e-5, rtol=0)
    with torch.no_grad():
        # which a network that is not frozen would look up again
        runner.module.network.weight.zero_()
    torch.testing.assert_close(compiled(image), plain, atol=1e-5, rtol=0)
    assert not torch.allclose(runner(image), plain, atol=1e-2)
