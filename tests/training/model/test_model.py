"""The network: names, sizes, and that doubling and convolving is what it says."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from geoprep.errors import UsageError
from training.model.build import build_model, is_code
from training.model.unet import DecoderStep, UpConv, set_prior


def parameter_count(network):
    return sum(p.numel() for p in network.parameters())


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return build_model(bands=3, channels=8)


def test_the_encoder_is_named_like_torchvisions_resnet34(network):
    names = set(network.encoder.state_dict())
    blocks = {1: 3, 2: 4, 3: 6, 4: 3}
    for stage, count in blocks.items():
        assert f"layer{stage}.{count - 1}.conv2.weight" in names
        assert f"layer{stage}.{count}.conv1.weight" not in names
    assert {"conv1.weight", "bn1.running_var", "layer2.0.downsample.0.weight"} <= names
    # torchvision's ResNet34 has 21,797,672 parameters, 513,000 of them in the classifier.
    assert parameter_count(network.encoder) == 21_797_672 - 513_000


def test_the_model_has_about_24_million_parameters(network):
    assert 24.4e6 < parameter_count(network) < 24.6e6


def test_the_small_model_takes_a_fifth_of_the_products():
    def products(spec):
        with FlopCounterMode(display=False) as counted:
            build_model(spec, bands=3, channels=8).eval()(torch.zeros(1, 3, 64, 64))
        return counted.get_total_flops()

    assert products("unet-small") < products("resnet34-unet") / 5
    assert parameter_count(build_model("unet-small", bands=3, channels=8)) < 2.2e6


def test_upconv_is_doubling_and_a_convolution():
    up = UpConv(5, 3).double()
    nn.init.normal_(up.weight)
    x = torch.randn(2, 5, 4, 6, dtype=torch.float64, requires_grad=True)
    expected = functional.conv2d(
        functional.interpolate(x, scale_factor=2, mode="nearest"), up.weight, padding=1
    )
    torch.testing.assert_close(up(x), expected)
    probe = torch.randn_like(expected)
    ours, theirs = (
        torch.autograd.grad((out * probe).sum(), [x, up.weight]) for out in (up(x), expected)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_of_joined_features_are_contiguous_and_those_of_their_slices(frozen):
    step = DecoderStep(8, 4, 6).to(memory_format=torch.channels_last)
    nn.init.normal_(step.up.weight)
    maps = torch.randn(2, 8, 4, 4), torch.randn(2, 4, 8, 8)
    x, skip = (part.to(memory_format=torch.channels_last) for part in maps)
    leaves = [part.requires_grad_() for part in ([x] if frozen else [x, skip])]
    probe = torch.randn(2, 6, 8, 8)
    ours = torch.autograd.grad((step(x, skip) * probe).sum(), leaves)
    up = functional.relu(step.up_bn(step.up(x)))
    plain = functional.relu(step.mix_bn(step.mix(torch.cat([up, skip], 1))))
    torch.testing.assert_close(ours, torch.autograd.grad((plain * probe).sum(), leaves))
    assert all(gradient.is_contiguous(memory_format=torch.channels_last) for gradient in ours)


def test_channels_last_is_kept(network):
    network = network.to(memory_format=torch.channels_last)
    image = torch.randn(1, 3, 64, 64).to(memory_format=torch.channels_last)
    assert network(image).is_contiguous(memory_format=torch.channels_last)


def test_an_odd_side_is_refused_with_the_fix(network):
    with pytest.raises(UsageError, match="multiple of 32"):
        network(torch.zeros(1, 3, 50, 64))


def test_an_untrained_model_predicts_the_prior():
    torch.manual_seed(0)
    network = build_model(bands=4, channels=2)
    set_prior(network, torch.tensor([0.02, 0.3]))
    logits = network(torch.randn(2, 4, 64, 32))
    assert logits.shape == (2, 2, 64, 32)
    share = torch.sigmoid(logits).mean((0, 2, 3))
    torch.testing.assert_close(share, torch.tensor([0.02, 0.3]), rtol=0.5, atol=0)


def test_a_share_of_zero_has_a_finite_prior():
    network = nn.Module()
    network.head = nn.Conv2d(4, 1, 1)
    set_prior(network, torch.zeros(1))
    assert torch.isfinite(network.head.bias).all()


def test_a_custom_model(monkeypatch):
    mine = ModuleType("mine")
    mine.build = lambda bands, channels: nn.Conv2d(bands, channels, 1)
    mine.text = lambda bands, channels: "not a module"
    monkeypatch.setitem(sys.modules, "mine", mine)
    assert build_model("mine:build", bands=4, channels=2).weight.shape == (2, 4, 1, 1)
    with pytest.raises(UsageError, match="str"):
        build_model("mine:text", bands=4, channels=2)
    set_prior(build_model("mine:build", bands=4, channels=2), torch.zeros(2))


@pytest.mark.parametrize("spec", ["resnet50", "no_such_package:build", "math:no_such_name"])
def test_an_unknown_model_is_refused(spec):
    with pytest.raises(UsageError, match=spec):
        build_model(spec, bands=3, channels=8)


def test_models_of_smp_are_built_and_a_missing_package_is_named(monkeypatch, tmp_path):
    made = {}

    def create_model(arch, encoder_name, encoder_weights, in_channels, classes):
        made.update(locals())
        return nn.Conv2d(in_channels, classes, 1)

    package = SimpleNamespace(create_model=create_model)
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", package)
    network = build_model("smp:DeepLabV3Plus:tu-resnet18", bands=4, channels=8)
    assert network.in_channels == 4
    assert (made["arch"], made["encoder_name"]) == ("DeepLabV3Plus", "tu-resnet18")
    assert made["encoder_weights"] is None
    assert not is_code("smp:Unet:resnet34")
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", None)
    with pytest.raises(UsageError, match="pip install segmentation-models-pytorch"):
        build_model("smp:Unet:resnet34", bands=3, channels=8)
    (tmp_path / "segmentation_models_pytorch.py").write_text("import nowhere_vision.ops\n")
    monkeypatch.delitem(sys.modules, "segmentation_models_pytorch")
    monkeypatch.syspath_prepend(str(tmp_path))
    says = "`model` smp:Unet:resnet34 needs nowhere_vision.*pip install nowhere_vision"
    with pytest.raises(UsageError, match=says):
        build_model("smp:Unet:resnet34", bands=3, channels=8)
    (tmp_path / "segmentation_models_pytorch.py").write_text("raise RuntimeError('no nms')\n")
    importlib.invalidate_caches()
    with pytest.raises(UsageError, match=r"\(no nms\): pip install .* torchvision --index-url"):
        build_model("smp:Unet:resnet34", bands=3, channels=8)
