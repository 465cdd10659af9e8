"""Engines: what is chosen and why, what a step does under each precision, and compiling."""

import copy

import pytest
import torch
from helpers.steps import batch, losses, trainable_of
from torch import nn

from geoprep.errors import UsageError
from training.engine import ipex as engine_ipex
from training.engine.native import choose_engine, choose_precision, missing_compiler
from training.run.parts import make_optimizer, prepare
from training.run.step import StepState, train_step
from training.settings import Config

CPU = torch.device("cpu")


def _trainable(targets="bins", dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1)
    )
    return trainable_of(model, targets, dtype)


def _losses(engine):
    module = _trainable(dtype=engine.dtype)
    optimizer = prepare(module, engine, Config(lr=0.01))
    return losses(engine, module, optimizer, steps=4)


def test_bf16_and_fp32_reach_the_same_loss():
    bf16, fp32 = (_losses(choose_engine("native", "cpu", p, "off")) for p in ("bf16", "fp32"))
    assert bf16 == pytest.approx(fp32, rel=0.01)
    assert fp32[-1] < fp32[0]


def test_parameters_stay_fp32_in_channels_last_under_the_same_names():
    module = _trainable()
    names = list(module.state_dict())
    prepare(module, choose_engine("native", "cpu"), Config(lr=0.01))
    assert list(module.state_dict()) == names
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert module.model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_weight_decay_applies_to_kernels_only():
    module = _trainable()
    optimizer = make_optimizer(module.model, Config(lr=0.01, weight_decay=0.5))
    decays = {p.ndim: g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decays == {4: 0.5, 1: 0.0}
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(module.parameters()))


def test_the_fused_optimizer_copies_no_kernel_and_changes_weights_as_torchs_does():
    engine, module = choose_engine("native", "cpu", "fp32", "off"), _trainable()
    ours = prepare(module, engine, Config(lr=0.01))
    plain = copy.deepcopy(module)
    theirs = make_optimizer(plain.model, Config(lr=0.01))
    for _ in range(2):
        for mine, other in zip(module.parameters(), plain.parameters(), strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        with torch.profiler.profile() as profile:
            ours.step()
        theirs.step()
    assert "aten::clone" not in {row.key for row in profile.key_averages()}
    torch.testing.assert_close(dict(module.state_dict()), dict(plain.state_dict()), rtol=0, atol=0)
    states = [[*optimizer.state_dict()["state"].values()] for optimizer in (ours, theirs)]
    torch.testing.assert_close(*states, rtol=0, atol=0)
    kernel = module.model[0].weight
    assert ours.state[kernel]["exp_avg"].stride() == kernel.stride()


def test_logits_of_a_whole_tile_have_its_size():
    module = _trainable().eval()
    image = batch(side=40).image
    logits = module.logits(image)
    assert logits.shape == (2, 8, 40, 40)
    inside = module.logits(image[..., :32, :32])
    torch.testing.assert_close(logits[..., :30, :30], inside[..., :30, :30])


def test_padding_of_a_whole_tile_does_not_count():
    module = _trainable().eval()
    given = batch(side=40)
    target, valid = module.prep.target(given.label), given.label != 255
    expected = module.loss(module.logits(given.image), target, valid)
    torch.testing.assert_close(module(given), expected)


@pytest.mark.slow
@pytest.mark.skipif(missing_compiler(CPU) is not None, reason="no C++ compiler")
def test_a_compiled_loss_equals_the_plain_one():
    plain, fast = (
        _losses(choose_engine("native", "cpu", "fp32", mode)) for mode in ("off", "loss")
    )
    assert fast == pytest.approx(plain, rel=1e-5)


def test_validation_does_not_run_compiled_code():
    module = _trainable()
    module.compile_parts("loss")
    module._compiled_loss = lambda *_: pytest.fail("compiled loss in evaluation")
    module.eval()(batch())


@pytest.mark.parametrize(
    ("mode", "compiled"),
    [("off", []), ("loss", ["RoadLoss"]), ("model", ["RoadLoss", "Sequential"])],
)
def test_parts_are_compiled_in_the_mode_that_was_asked_for(monkeypatch, mode, compiled):
    found = []

    def compile_part(part, *, dynamic, options):
        assert dynamic is False
        assert options is None
        found.append(type(part).__name__)
        return part

    monkeypatch.setattr(torch, "compile", compile_part)
    monkeypatch.setattr("training.engine.native.missing_compiler", lambda _: None)
    engine, module = choose_engine("native", "cpu", "fp32", mode), _trainable()
    state = StepState.of(module, engine, Config(lr=0.01))
    assert found == compiled
    train_step(module, [batch()], state)


def test_the_model_gets_channels_last(monkeypatch):
    engine, module = choose_engine("native", "cpu", "fp32", "off"), _trainable()
    state, seen = StepState.of(module, engine, Config(lr=0.01)), []
    module.model.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    train_step(module, [batch()], state)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_a_missing_compiler_is_noted_and_nothing_compiled(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    engine = choose_engine("native", "cpu")
    assert engine.compile_mode == "off"
    assert "no-such-compiler" in engine.reason
    assert _losses(engine)


def test_auto_is_native_and_the_extension_is_used_on_request(monkeypatch):
    monkeypatch.setattr(engine_ipex, "state", lambda: "works")
    assert choose_engine("auto", "cpu", compile_mode="off").name == "native"
    engine = choose_engine("ipex", "cpu", compile_mode="off")
    assert engine.name == "ipex"
    assert "as requested" in engine.reason


def test_a_missing_extension_is_a_one_line_error_with_the_command(monkeypatch):
    monkeypatch.setattr(engine_ipex, "state", lambda: "is not installed")
    with pytest.raises(UsageError) as error:
        choose_engine("ipex", "cpu")
    message = str(error.value)
    assert "\n" not in message
    assert "pip install torch==2.8.0 intel-extension-for-pytorch==2.8.0" in message
    assert "retired" in message


def test_an_extension_for_another_torch_is_named(monkeypatch):
    monkeypatch.setattr(engine_ipex.importlib.metadata, "version", lambda _: "2.7.0+cpu")
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    with pytest.raises(UsageError, match=r"2\.7\.0\+cpu does not fit torch 2\.13\.0\+cpu"):
        choose_engine("ipex", "cpu")
    assert choose_engine("auto", "cpu").name == "native"


def test_an_extension_that_does_not_load_says_why(monkeypatch):
    def fail():
        raise OSError("libintel.so: undefined symbol\nmore")

    monkeypatch.setattr(engine_ipex.importlib.metadata, "version", lambda _: torch.__version__)
    monkeypatch.setattr(engine_ipex, "_module", fail)
    assert engine_ipex.state().endswith("does not load: libintel.so: undefined symbol")


@pytest.mark.parametrize(
    ("precision", "supported", "dtype", "tf32", "note"),
    [
        ("bf16", True, torch.bfloat16, True, "bf16, tf32 on"),
        ("bf16", False, torch.float16, True, "fp16, loss scaled (this device has no bf16)"),
        ("auto", True, torch.bfloat16, True, "bf16, tf32 on"),
        ("auto", False, torch.float16, True, "fp16, loss scaled (this device has no bf16)"),
        ("fp16", True, torch.float16, True, "fp16, loss scaled, tf32 on"),
        ("tf32", True, torch.float32, True, "fp32, tf32 on"),
        ("tf32", False, torch.float32, True, "fp32 (this device has no tf32)"),
        ("fp32", True, torch.float32, False, "fp32, tf32 off"),
    ],
)
def test_precision_on_cuda(monkeypatch, cuda_settings, precision, supported, dtype, tf32, note):
    """PyTorch's defaults would compute fp32 convolutions in TensorFloat-32."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: supported)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not tf32
    assert choose_precision(torch.device("cuda"), precision) == (dtype, note)
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
    assert torch.backends.cudnn.allow_tf32 is tf32


@pytest.fixture
def cuda_settings():
    """Restore the settings of CUDA devices after a test."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32
    yield
    cuda.allow_tf32, cudnn.allow_tf32 = before


def test_precision_on_a_cpu(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    for computed, dtype, note in (
        (True, torch.bfloat16, "bf16"),
        (False, torch.float32, "fp32 (this cpu has no instructions for bf16)"),
    ):
        monkeypatch.setattr(
            torch.cpu, "_is_avx512_bf16_supported", lambda computed=computed: computed
        )
        assert choose_precision(cpu, "auto") == (dtype, note)
    assert choose_precision(cpu, "bf16") == (torch.bfloat16, "bf16")
    assert choose_precision(cpu, "fp16") == (torch.float16, "fp16, loss scaled")
    assert choose_precision(cpu, "tf32") == (torch.float32, "fp32 (tf32 is for cuda, not cpu)")
