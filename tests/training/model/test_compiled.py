"""Compiled parts: failing compilers; BatchNorm with ReLU compared with torch's operators."""

from dataclasses import replace

import pytest
import torch
from helpers.steps import trainable_of
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch.nn import functional

from geoprep.errors import UsageError
from training.engine.native import choose_engine, missing_compiler
from training.model import compiled as module
from training.model.build import build_model
from training.model.compiled import Compiled, OnePassNorm, fuse_norms, norm_relu
from training.run.parts import prepare
from training.settings import Config

CHANNELS = 5


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(module, "_SMALLEST", 1)


@pytest.fixture
def uncompiled(monkeypatch, any_size):
    monkeypatch.setattr(module, "_compiled", lambda: (module._forward, module._backward))


def _norm(fused):
    layer = nn.BatchNorm2d(CHANNELS)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-1, 2, CHANNELS))
        layer.bias.copy_(torch.linspace(1, -1, CHANNELS))
        layer.running_mean.fill_(3.0)
    if fused:
        fuse_norms(layer)
        assert type(layer) is OnePassNorm
    return layer


def _passes(fused, dtype, shortcut, offset=4.0):
    """Return y, the gradients of all inputs, and the buffers, after two steps."""
    generator = torch.Generator().manual_seed(0)
    layer, found = _norm(fused), []
    for _ in range(2):
        x, s, g = (torch.randn(3, CHANNELS, 6, 7, generator=generator) for _ in range(3))
        x, s, g = (
            t.to(dtype).contiguous(memory_format=torch.channels_last)
            for t in (x * 2 + offset, s, g)
        )
        inputs = [x.requires_grad_(), *([s.requires_grad_()] if shortcut else [])]
        before = x.clone()  # torch's operators add in place
        y = norm_relu(layer, x, s if shortcut else None)
        torch.testing.assert_close(x, before, rtol=0, atol=0)
        grads = torch.autograd.grad(y, [*inputs, layer.weight, layer.bias], g)
        assert y.is_contiguous(memory_format=torch.channels_last)
        found += [y.detach(), *grads]
    return [*found, *layer.buffers()]


@pytest.mark.parametrize("shortcut", [False, True])
def test_values_gradients_and_statistics_are_those_of_torch(uncompiled, shortcut):
    ours, theirs = (_passes(fused, torch.float32, shortcut) for fused in (True, False))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shortcut", [False, True])
def test_bf16_is_within_its_rounding(uncompiled, shortcut):
    ours = _passes(True, torch.bfloat16, shortcut)
    y, *_ = _passes(False, torch.bfloat16, shortcut)
    torch.testing.assert_close(ours[0], y, rtol=2**-6, atol=2**-6)
    exact = _norm(False).double()
    x = 2 * torch.randn(3, CHANNELS, 6, 7, generator=torch.Generator().manual_seed(0)) + 4
    values = functional.relu(exact(x.to(torch.bfloat16).double()))
    if not shortcut:  # rounded once
        torch.testing.assert_close(ours[0].double(), values, rtol=2**-8, atol=1e-6)


def test_a_mean_far_from_0_costs_no_digits(uncompiled):
    layer = _norm(True)
    layer.running_mean.fill_(1000.0)
    x = 1000 + torch.randn(4, CHANNELS, 64, 64, generator=torch.Generator().manual_seed(0))
    found = norm_relu(layer, x)
    wanted = functional.relu(_norm(False).double()(x.double()))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=2e-4)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_compiler(torch.device("cpu"))), reason="no C++ compiler")
def test_the_compiled_operation_is_the_plain_one_for_every_shape(any_size):
    for shortcut in (False, True):
        ours, theirs = (_passes(fused, torch.float32, shortcut) for fused in (True, False))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    layer, plain = _norm(True), _norm(False)
    x = torch.randn(2, CHANNELS, 33, 9, generator=torch.Generator().manual_seed(0))
    x = x.contiguous(memory_format=torch.channels_last)
    ours, theirs = norm_relu(layer, x), norm_relu(plain, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)  # as above


def test_small_maps_evaluation_and_other_layers_use_torchs_operators():
    x = torch.randn(2, CHANNELS, 8, 8)
    for training in (True, False):
        ours, theirs = (norm_relu(_norm(fused).train(training), x) for fused in (True, False))
        assert torch.equal(ours, theirs)
    assert torch.equal(norm_relu(nn.Identity(), x), x.relu())


@pytest.mark.parametrize(("mode", "fused"), [("off", False), ("loss", True), ("model", False)])
def test_training_fuses_norms_where_it_compiles_the_loss_only(mode, fused):
    engine = choose_engine("native", "cpu", "fp32", mode)
    model = build_model(bands=3, channels=8)
    names = list(model.state_dict())
    prepare(trainable_of(model), engine, Config())
    assert isinstance(model.encoder.bn1, OnePassNorm) == (fused and engine.compile_mode == "loss")
    assert list(model.state_dict()) == names


def test_training_on_an_accelerator_fuses_no_norms():
    """Where compiling them would take 15 s; ``meta`` stands for the device."""
    engine = choose_engine("native", "cpu", "fp32", "loss")
    model = build_model(bands=3, channels=8)
    prepare(trainable_of(model), replace(engine, device=torch.device("meta")), Config())
    assert model.encoder.bn1.weight.is_meta
    assert type(model.encoder.bn1) is nn.BatchNorm2d


def test_a_failing_compiler_warns_once_and_the_plain_loss_is_used(monkeypatch):
    def broken(*_args, **_options):
        calls.append(1)
        raise TorchDynamoException("cc1plus: out of memory\nand much more")

    calls = []
    monkeypatch.setattr(torch, "compile", lambda plain, **_: broken)
    call = Compiled(lambda x: x + 1, "the loss")
    with pytest.warns(RuntimeWarning, match=r"the loss could not be compiled.*cc1plus: out of"):
        assert call(1) == 2
    assert call(2) == 3
    assert len(calls) == 1


def test_an_error_of_the_callable_itself_is_not_hidden(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda plain, **_: plain)

    def refuse(_):
        raise UsageError("odd side")

    with pytest.raises(UsageError, match="odd side"):
        Compiled(refuse, "the model")(1)
