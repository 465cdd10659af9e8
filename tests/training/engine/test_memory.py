"""The memory plan against what is known, and the choice of a batch size."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from geoprep.errors import UsageError
from training.engine import memory as memoryplan
from training.engine.batchsize import StepTimer, Trial, find_batch_size
from training.engine.memory import MemoryPlan, check, measure_activations, plan
from training.engine.native import choose_engine
from training.losses import make_loss
from training.module import Trainable
from training.optim import make_optimizer

GIB = 2**30


def _network(bands=3, channels=8):
    return nn.Sequential(
        nn.Conv2d(bands, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, channels, 1)
    )


def _planned(available=10 * GIB, per_sample=GIB):
    return MemoryPlan(
        data=GIB,
        model=GIB,
        optimizer=GIB,
        activations=4 * per_sample,
        available=available,
        limited_by="the machine",
        batch_size=4,
        crop=256,
        per_sample=per_sample,
        fixed=0,
    )


def test_activations_of_a_known_network():
    kept = measure_activations(_network(), bands=3, dtype=torch.float32)
    # The image, what enters and what leaves BatchNorm in fp32; then the loss.
    tensors = (3 + 16 + 16) * 4
    assert kept.pixel == pytest.approx(tensors + 8 * memoryplan._LOSS_BYTES, rel=0.01)
    assert kept.fixed < 1000
    assert kept.largest == pytest.approx(8 * memoryplan._LOSS_BYTES, rel=0.01)


def test_bf16_halves_what_the_convolutions_keep():
    bf16, fp32 = (
        measure_activations(_network(), bands=3, dtype=d).pixel - 8 * memoryplan._LOSS_BYTES
        for d in (torch.bfloat16, torch.float32)
    )
    assert bf16 == pytest.approx(fp32 / 2, rel=0.05)


def test_measuring_leaves_no_trace():
    network = nn.Sequential(_network(), nn.Dropout(0.5)).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.random.get_rng_state()
    measure_activations(network, bands=3, dtype=torch.bfloat16)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None for p in network.parameters())


def test_the_plan_counts_model_optimizer_and_data():
    network = _network()
    values = sum(p.numel() for p in network.parameters()) * 4
    options = {"crop": 64, "bands": 3, "dtype": torch.float32, "tiles_bytes": 1000}
    adam = plan(network, batch_size=2, optimizer="adamw", **options)
    sgd = plan(network, batch_size=2, optimizer="sgd", ema=True, **options)
    assert (adam.data, adam.model, adam.optimizer) == (1000, 2 * values, 2 * values)
    assert (sgd.model, sgd.optimizer) == (3 * values, values)
    assert adam.activations == adam.fixed + 2 * adam.per_sample
    assert adam.total == 1000 + 4 * values + adam.activations


def test_tiles_to_be_loaded_count_against_what_is_there(monkeypatch):
    here = memoryplan.available_memory()
    monkeypatch.setattr(memoryplan, "available_memory", lambda: replace(here, nbytes=GIB))
    options = {"batch_size": 1, "crop": 64, "bands": 3, "optimizer": "sgd", "tiles_bytes": GIB}
    loaded, planned = (
        plan(_network(), dtype=torch.float32, loaded=there, **options) for there in (True, False)
    )
    assert loaded.fits
    assert not planned.fits


def test_a_batch_that_fits_is_let_through():
    check(_planned())


def test_one_that_does_not_names_the_largest_that_does():
    with pytest.raises(
        UsageError, match=r"4 x 256 x 256 needs 7.00 of 5.50 GiB.*--batch-size 2 fits"
    ):
        check(_planned(available=int(5.5 * GIB)))


def test_where_none_fits_it_says_what_else():
    with pytest.raises(UsageError, match="smaller --crop"):
        check(_planned(available=3 * GIB))


def test_the_plan_for_another_batch_size():
    assert _planned().of(2).activations == 2 * GIB
    assert _planned().of(8).fits is False
    assert str(_planned()).startswith("7.00 of 10.00 GiB: data 1.00, model 1.00")


def test_the_fastest_size_is_taken():
    seconds = {2: 0.25, 4: 0.4, 8: 1.0}
    size, trials = find_batch_size(_planned(20 * GIB), seconds.__getitem__)
    assert size == 4
    assert trials == [Trial(2, 8.0), Trial(4, 10.0), Trial(8, 8.0)]


def test_of_rates_alike_the_larger_batch_is_taken():
    assert find_batch_size(_planned(20 * GIB), lambda n: n * 0.1 - 0.0001 * (n == 4))[0] == 16


def test_larger_sizes_are_not_tried_once_they_only_get_slower():
    seconds = {2: 0.2, 4: 1.0}
    assert find_batch_size(_planned(20 * GIB), seconds.__getitem__)[0] == 2


def test_only_sizes_that_fit_are_tried():
    tried = []
    find_batch_size(_planned(8 * GIB), lambda n: tried.append(n) or 1.0 * n)
    assert tried == [2, 4]


def test_no_size_that_fits_is_an_error():
    with pytest.raises(UsageError, match="needs"):
        find_batch_size(_planned(4 * GIB), lambda _: 1.0)


def test_timing_steps_leaves_the_module_as_it_was(tiny_prep):
    torch.manual_seed(0)
    trainable = Trainable(tiny_prep, _network(), make_loss())
    before = {name: value.clone() for name, value in trainable.state_dict().items()}
    engine = choose_engine("native", "cpu", "fp32")
    timer = StepTimer(trainable, engine, make_optimizer(lr=0.1), crop=32, bands=3, repeats=1)
    assert timer(2) > 0
    assert timer.engine.compile_mode == "off"
    assert all(torch.equal(value, before[name]) for name, value in trainable.state_dict().items())


@pytest.fixture
def tiny_prep():
    from loaders.device import DevicePrep, Normalize, SpeedTarget

    return DevicePrep(Normalize([100.0] * 3, [50.0] * 3), SpeedTarget())
