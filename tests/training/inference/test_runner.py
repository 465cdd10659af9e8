"""The network as prediction runs it: views averaged once each, plain and compiled alike."""

import numpy as np
import pytest
import torch
from helpers.predict_cases import FACTS, neighbourly, pixels, probabilities

from geoprep.errors import UsageError
from training.inference import runner as runner_module
from training.inference.runner import (
    VIEWS,
    CompiledRunner,
    NativeRunner,
    average_views,
    choose_dtype,
    should_compile,
)
from training.prediction.prediction_tags import check_targets

CPU = torch.device("cpu")


def batch(n=2, height=32, width=64):
    return torch.from_numpy(np.stack([pixels(height, width, seed=i) for i in range(n)]))


def make_runner():
    torch.manual_seed(3)
    network = neighbourly(3, 8).eval()
    return NativeRunner(network, FACTS, device=CPU, precision="fp32"), network


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
    marked = torch.arange(6.0).reshape(1, 1, 2, 3)
    seen = {(view.of(marked).shape, *view.of(marked).flatten().tolist()) for view in VIEWS[name]}
    assert len(seen) == len(VIEWS[name]) == count
    for view in VIEWS[name]:
        torch.testing.assert_close(
            view.undo(view.of(marked).permute(0, 2, 3, 1)), marked.permute(0, 2, 3, 1)
        )


def test_views_are_averaged_as_probabilities():
    runner, network = make_runner()
    image = batch(1, 32, 64)[0].numpy()
    wanted = np.zeros((8, 32, 64))
    for k in range(4):  # the square's symmetries once more, by other means
        for mirrored in (False, True):
            turned = np.rot90(image[:, ::-1] if mirrored else image, k)
            answer = probabilities(network, np.ascontiguousarray(turned))
            back = np.rot90(answer, -k, axes=(1, 2))
            wanted += (back[:, :, ::-1] if mirrored else back) / 8
    windows = torch.from_numpy(image).permute(2, 0, 1)[None]
    result = average_views(runner, windows, "d4")[0].permute(2, 0, 1)
    np.testing.assert_allclose(result, wanted, atol=1e-5)


def test_a_model_is_compiled_if_that_pays_and_the_user_reads_only_what_matters(monkeypatch):
    few, many = 10**6, 10**10
    monkeypatch.setattr(runner_module, "missing_compiler", lambda device: None)
    assert should_compile("off", CPU, many) == (False, "")
    assert should_compile("auto", CPU, few) == (False, "")
    for mode, size in (("on", few), ("auto", many)):
        compiled, note = should_compile(mode, CPU, size)
        assert compiled
        assert note == "compiling the model with the first batch, up to a minute"
    assert should_compile("auto", torch.device("cuda"), many) == (False, "")
    monkeypatch.setattr(runner_module, "missing_compiler", lambda device: "since there is none")
    assert should_compile("auto", CPU, few) == (False, "")
    for mode, size in (("on", few), ("auto", many)):
        assert should_compile(mode, CPU, size) == (
            False,
            "model not compiled, since there is none",
        )


def test_precision_follows_the_hardware(monkeypatch):
    assert choose_dtype(CPU, "bf16") == torch.bfloat16
    assert choose_dtype(CPU, "fp32") == torch.float32
    for computed in (True, False):
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda computed=computed, **_: computed
        )
        found = choose_dtype(torch.device("cuda"), "auto")
        assert found == (torch.bfloat16 if computed else torch.float32)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert choose_dtype(CPU, "auto") == torch.float32


def test_checkpoints_of_other_targets_are_refused():
    from dataclasses import replace

    check_targets(FACTS)
    with pytest.raises(UsageError, match="continuous"):
        check_targets(replace(FACTS, targets="continuous"))


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
        result = CompiledRunner(runner)(image)
    torch.testing.assert_close(result, runner(image))


@pytest.mark.slow
def test_compiled_model_has_frozen_weights_and_the_same_probabilities():
    if runner_module.missing_compiler(CPU):
        pytest.skip("no compiler")
    runner, network = make_runner()
    compiled = CompiledRunner(runner)
    image = batch().permute(0, 3, 1, 2)
    plain = runner(image)
    torch.testing.assert_close(compiled(image), plain, atol=1e-5, rtol=0)
    with torch.no_grad():
        network.weight.zero_()  # which a network that is not frozen would look up again
    torch.testing.assert_close(compiled(image), plain, atol=1e-5, rtol=0)
    assert not torch.allclose(runner(image), plain, atol=1e-2)
