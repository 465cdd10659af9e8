"""Published weights into the encoder, by file, for any number of bands."""

from urllib.error import URLError

import pytest
import torch
from torch import nn

from geoprep.errors import UsageError
from training.model import ResNet34, build_model
from training.pretrained import adapt_bands, load_encoder_weights


@pytest.fixture(scope="module")
def published():
    """A state dictionary as torchvision publishes it, with its classifier."""
    torch.manual_seed(1)
    weights = ResNet34(3).state_dict()
    return {**weights, "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}


@pytest.fixture(scope="module")
def file(published, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "resnet34.pth"
    torch.save(published, path)
    return path


def test_weights_of_three_bands_are_not_changed(published, file):
    network = build_model(bands=3, channels=1)
    assert load_encoder_weights(network, str(file)) == f"encoder from {file}"
    loaded = network.encoder.state_dict()
    assert all(torch.equal(loaded[name], published[name]) for name in loaded)


@pytest.mark.parametrize("bands", [1, 4, 8])
def test_other_bands_keep_the_magnitude_of_the_output(published, file, bands):
    network = build_model(bands=bands, channels=1)
    assert f"from 3 to {bands} bands" in load_encoder_weights(network, str(file))
    kernel = network.encoder.conv1.weight
    assert kernel.shape[1] == bands
    if bands == 1:  # a grey image answers as the same image in three equal bands would
        torch.testing.assert_close(kernel, published["conv1.weight"].sum(1, keepdim=True))
    else:
        torch.testing.assert_close(kernel[:, 0], published["conv1.weight"][:, 0] * 3 / bands)
        torch.testing.assert_close(kernel[:, 3], published["conv1.weight"][:, 0] * 3 / bands)


def test_a_wrapped_and_prefixed_dictionary_is_understood(published, tmp_path):
    path = tmp_path / "run.pth"
    wrapped = {f"module.encoder.{name}": value for name, value in published.items()}
    torch.save({"state_dict": {**wrapped, "module.head.weight": torch.zeros(1)}, "epoch": 3}, path)
    network = build_model(bands=3, channels=1)
    load_encoder_weights(network, str(path))
    assert torch.equal(network.encoder.conv1.weight, published["conv1.weight"])


def test_none_does_not_change_the_model():
    network = build_model(bands=3, channels=1)
    before = network.encoder.conv1.weight.clone()
    assert "random" in load_encoder_weights(network, "none")
    assert torch.equal(network.encoder.conv1.weight, before)


def test_adapting_to_the_same_bands_is_the_identity():
    kernel = torch.randn(2, 4, 3, 3)
    assert adapt_bands(kernel, 4) is kernel


def _damaged(weights, kind):
    if kind == "other network":
        return {"features.0.weight": torch.zeros(3)}
    if kind == "deeper":
        return {**weights, "layer1.3.conv1.weight": torch.zeros(64, 64, 3, 3)}
    if kind == "lacking":
        return {k: v for k, v in weights.items() if not k.startswith("layer4")}
    return {**weights, "layer1.0.conv1.weight": torch.zeros(64, 64, 1, 1)}


@pytest.mark.parametrize("kind", ["other network", "deeper", "lacking", "other shape"])
def test_weights_of_another_model_are_refused(published, tmp_path, kind):
    path = tmp_path / "other.pth"
    torch.save(_damaged(published, kind), path)
    with pytest.raises(UsageError, match=r"other\.pth.*ResNet34"):
        load_encoder_weights(build_model(bands=3, channels=1), str(path))


@pytest.mark.parametrize("content", [b"", b"no weights at all", None])
def test_an_unreadable_file_is_refused(tmp_path, content):
    path = tmp_path / "bad.pth"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"bad\.pth"):
        load_encoder_weights(build_model(bands=3, channels=1), str(path))


def test_a_model_without_such_an_encoder_is_refused(file):
    with pytest.raises(UsageError, match="no encoder"):
        load_encoder_weights(nn.Conv2d(3, 1, 1), str(file))


def test_without_connection_the_error_says_what_to_do(monkeypatch):
    def fail(*_args, **_options):
        raise URLError("no route")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", fail)
    with pytest.raises(UsageError, match="give the file"):
        load_encoder_weights(build_model(bands=3, channels=1), "imagenet")
