"""Published weights into the encoder, by file, for any number of bands."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from urllib.error import URLError

import pytest
import torch
from helpers import tiny
from helpers.predict_cases import FACTS
from helpers.steps import trainable_of
from helpers.tiny import build, encoded
from torch import nn

from geoprep.errors import UsageError
from training.checkpoint import Checkpoint, load, save
from training.model.build import build_model
from training.model.unet import ResNet34
from training.run.pretrained import (
    SYNTHETIC,
    adapt_bands,
    choose_model,
    first_weights,
    load_encoder_weights,
    load_initial_weights,
)
from training.settings import Config


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


@pytest.fixture(scope="module")
def untrained():
    """A model for files that are refused."""
    return build_model(bands=3, channels=1)


def test_weights_of_three_bands_are_not_changed(published, file):
    network = build_model(bands=3, channels=1)
    assert load_encoder_weights(network, str(file)) == f"encoder from {file}"
    loaded = network.encoder.state_dict()
    assert all(torch.equal(loaded[name], published[name]) for name in loaded)


@pytest.mark.parametrize("bands", [1, 8])
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


def _damaged(weights, kind):
    if kind == "other network":
        return {"features.0.weight": torch.zeros(3)}
    if kind == "deeper":
        return {**weights, "layer1.3.conv1.weight": torch.zeros(64, 64, 3, 3)}
    if kind == "lacking":
        return {k: v for k, v in weights.items() if not k.startswith("layer4")}
    return {**weights, "layer1.0.conv1.weight": torch.zeros(64, 64, 1, 1)}


@pytest.mark.parametrize("kind", ["other network", "deeper", "lacking", "other shape"])
def test_weights_of_another_model_are_refused(published, untrained, tmp_path, kind):
    path = tmp_path / "other.pth"
    torch.save(_damaged(published, kind), path)
    with pytest.raises(UsageError, match=r"other\.pth.*ResNet34"):
        load_encoder_weights(untrained, str(path))


@pytest.mark.parametrize("content", [b"", b"no weights at all", None])
def test_an_unreadable_file_is_refused(untrained, tmp_path, content):
    path = tmp_path / "bad.pth"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"bad\.pth"):
        load_encoder_weights(untrained, str(path))


def test_a_model_without_such_an_encoder_is_refused(file):
    with pytest.raises(UsageError, match="no encoder"):
        load_encoder_weights(nn.Conv2d(3, 1, 1), str(file))


def test_without_connection_the_error_says_what_to_do(untrained, monkeypatch):
    def fail(*_args, **_options):
        raise URLError("no route")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", fail)
    with pytest.raises(UsageError, match="give the file"):
        load_encoder_weights(untrained, "imagenet")


def info(**changed):
    return replace(FACTS, model="helpers.tiny:encoded", **changed)


@pytest.fixture
def trained(tmp_path):
    """The folder of a run whose averaged weights differ from its last ones."""
    model = encoded(3, 8)
    averaged = {name: value + 1 for name, value in model.state_dict().items()}
    save(tmp_path / "best.pt", Checkpoint(info=info(), model=model.state_dict(), ema=averaged))
    return tmp_path, averaged


def test_a_run_with_the_same_targets_gives_all_weights(trained):
    folder, averaged = trained
    model = encoded(3, 8)
    said = load_initial_weights(model, info(level=32, gsd_m=(2, 2)), str(folder))
    assert said == f"4 of 4 weights from {folder / 'best.pt'}"
    assert all(torch.equal(value, averaged[name]) for name, value in model.state_dict().items())


def test_other_targets_and_bands_keep_what_fits(trained):
    folder, averaged = trained
    model = encoded(4, 1)
    head = model.head.weight.clone()
    wanted = info(bands=("red", "green", "blue", "nir"), targets="binary", channels=1)
    line = load_initial_weights(model, wanted, str(folder / "best.pt"))
    assert line.startswith("2 of 4 weights from")
    assert "adapted from 3 to 4 bands; at random: 2 of head (its targets are bins)" in line
    kernel = averaged["encoder.weight"]
    assert line.endswith("; no kernel of its name for nir")
    torch.testing.assert_close(model.encoder.weight, adapt_bands(kernel, 4, [0, 1, 2, 0]))
    assert torch.equal(model.encoder.bias, averaged["encoder.bias"])
    assert torch.equal(model.head.weight, head)


@pytest.mark.parametrize("own", [False, True], ids=["bins from binary", "the same targets"])
def test_the_last_layer_of_a_model_without_a_head_is_for_its_targets_only(tmp_path, own):
    def model():
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))

    trained, fresh = model(), model()
    was = {"targets": "binary", "channels": 1, "class_mph": ()}
    save(tmp_path / "best.pt", Checkpoint(info=info(**was), model=trained.state_dict()))
    before = fresh[2].weight.clone()
    wanted = info(**was) if own else info(channels=1, class_mph=())
    line = load_initial_weights(fresh, wanted, str(tmp_path))
    assert line.startswith(f"{4 if own else 2} of 4 weights")
    assert torch.equal(fresh[0].weight, trained[0].weight)
    assert torch.equal(fresh[2].weight, trained[2].weight if own else before)


def test_a_small_model_of_synthetic_cities_comes_with_the_package():
    network = build_model("unet-small", bands=4, channels=1)
    layers = network.head, network.encoder.blocks, network.decoder
    before = [next(layer.parameters()).clone() for layer in layers]
    wanted = info(bands=("nir", "red", "green", "blue"), targets="binary", channels=1, class_mph=())
    line = load_initial_weights(network, wanted, "synthetic")
    assert line.startswith("66 of 68 weights from synthetic cities, first convolution adapted")
    after = [next(layer.parameters()) for layer in layers]
    same = [torch.equal(*pair) for pair in zip(before, after, strict=True)]
    assert same == [True, False, False]
    assert SYNTHETIC.stat().st_size <= 4.5e6


def test_a_run_of_another_model_is_refused(trained):
    with pytest.raises(UsageError, match=r"`init_from` .*: no weight of .* fits"):
        load_initial_weights(build(3, 8), info(), str(trained[0]))


@pytest.mark.parametrize(
    ("kind", "settings", "model"),
    [
        ("cpu", {}, "unet-small"),
        ("cuda", {}, "resnet34-unet"),
        ("cpu", {"encoder_weights": "imagenet"}, "resnet34-unet"),
        ("cuda", {"init_from": "RUN"}, "unet-small"),
        ("cuda", {"model": "unet-small"}, "unet-small"),
        ("cpu", {"model": "resnet34-unet"}, "resnet34-unet"),
    ],
)
def test_auto_takes_the_model_of_the_weights_or_of_the_device(tmp_path, kind, settings, model):
    weights = build_model("unet-small", bands=3, channels=8).state_dict()
    save(tmp_path / "best.pt", Checkpoint(info=replace(FACTS, model="unet-small"), model=weights))
    given = {name: str(tmp_path) if value == "RUN" else value for name, value in settings.items()}
    config, why = choose_model(Config(**given), kind)
    assert config == Config(**given | {"model": model})
    assert bool(why) == ("model" not in settings)


@pytest.mark.parametrize(
    ("facts", "settings", "synthetic"),
    [
        ({}, {}, True),
        ({"bands": ("B02 blue", "B03 green", "B04 red")}, {}, True),
        ({"targets": "binary", "channels": 1}, {}, True),
        ({"bands": ("red", "green", "blue", "nir")}, {}, False),
        ({"bands": ("B1", "B2", "B3")}, {}, False),
        ({"targets": "classes", "channels": 8}, {}, False),
        ({}, {"init_from": None}, False),
        ({}, {"init_from": "synthetic"}, True),
        ({"model": "resnet34-unet"}, {}, False),
    ],
)
def test_roads_in_colours_start_from_synthetic_cities(facts, settings, synthetic):
    made = replace(FACTS, **{"model": "unet-small", **facts})
    model = build_model(made.model, bands=len(made.bands), channels=made.channels)
    said = first_weights(model, made, Config(**settings), None)
    assert ("weights from synthetic cities" in said) == synthetic
    assert ("random weights" in said) == (not synthetic)


def test_auto_runs_no_code_that_weights_name(trained):
    with pytest.raises(UsageError, match=r"add `model` helpers\.tiny:encoded"):
        choose_model(Config(init_from=str(trained[0])), "cpu")


def test_encoders_of_smp_get_their_published_weights(monkeypatch):
    asked = []

    def create_model(arch, encoder_name, encoder_weights, in_channels, classes):
        asked.append((encoder_name, encoder_weights))
        model = encoded(in_channels, classes)
        nn.init.constant_(model.encoder.weight, 3.0 if encoder_weights else 0.0)
        return model

    package = SimpleNamespace(create_model=create_model)
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", package)
    spec = "smp:Unet:mit_b0"
    model = build_model(spec, bands=4, channels=8)
    assert "4 bands" in load_encoder_weights(model, "imagenet", spec)
    assert asked == [("mit_b0", None), ("mit_b0", "imagenet")]
    assert (model.encoder.weight == 3).all()


@pytest.mark.parametrize(
    ("bands", "kernels", "lacking"),
    [
        (("blue", "green", "red"), [2, 1, 0], ""),
        (("nir", "red", "green"), [0, 0, 1], "nir"),
        (("coastal", "blue", "Band 3 (green)", "red", "nir"), [0, 2, 1, 0, 1], "coastal, nir"),
        (("B4", "B3", "B2"), [0, 1, 2], "B4, B3, B2"),
    ],
)
def test_bands_get_the_kernels_of_their_names(published, file, trained, bands, kernels, lacking):
    """Of published weights and of a run with bands red, green and blue; others take their turn."""
    count = len(bands)
    says = f"; no kernel of its name for {lacking}" if lacking else ""
    network = build_model(bands=count, channels=1)
    line = load_encoder_weights(network, str(file), names=bands)
    assert line.endswith(says or f"encoder from {file}")
    wanted = published["conv1.weight"][:, kernels] * (3 / count)
    torch.testing.assert_close(network.encoder.conv1.weight, wanted)
    folder, averaged = trained
    model = encoded(count, 8)
    line = load_initial_weights(model, info(bands=bands), str(folder))
    assert line.endswith(says or "best.pt")
    wanted = averaged["encoder.weight"][:, kernels] * (3 / count)
    torch.testing.assert_close(model.encoder.weight, wanted)


def test_a_frozen_encoder_keeps_statistics_and_draws_no_dropout_until_it_is_unfrozen(fit, out):
    """With other targets and averaged weights, after a resume, and as the start of another run."""
    own = ("--epochs", 2, "--ema", 0.9, "--precision", "fp32")
    fit("--out", out / "a", *own, model="dropping")
    frozen = ("--init-from", out / "a", "--encoder-lr", 0, "--targets", "binary")
    said = fit("--out", out / "b", *own, *frozen, model="dropping").out
    assert "5 of 7 weights from" in said
    assert "at random: 2 of head (its targets are bins)" in said
    again = ("--model", "helpers.tiny:dropping")
    fit("--resume", out / "b", "--epochs", 3, store=None, network=again)
    both = ("--resume", out / "b", *frozen[:2])
    said = fit(*both, store=None, network=again, status=2).err
    assert "--init-from and --resume both set the weights" in said
    missing = ("--out", out / "x", "--init-from", out / "no")
    assert "no such checkpoint" in fit(*missing, model="dropping", status=1).err
    fit("--out", out / "c", *own, "--init-from", out / "b", model="dropping")
    start = load(out / "a" / "best.pt").ema
    for name, kept in (("b", True), ("c", False)):
        last = load(out / name / "last.pt")
        for weights in (last.model, last.ema):
            parts = {key: value for key, value in weights.items() if key.startswith("encoder")}
            same = {torch.equal(v, start[k]) for k, v in parts.items() if v.is_floating_point()}
            assert same == {kept}
    frozen_model = trainable_of(tiny.dropping(3, 8))
    frozen_model.model.encoder.requires_grad_(False)
    assert not any(part.training for part in frozen_model.train().model.encoder.modules())
