"""The choice of a batch size, also where memory runs out, and rates by setting."""

import re
import weakref

import pytest
import torch
from torch import nn

from geoprep.errors import UsageError
from loaders import DevicePrep, Normalize, SpeedTarget
from training.engine.native import choose_engine
from training.model.losses import RoadLoss, Trainable
from training.run import batch_size
from training.run.batch_size import (
    attempt,
    choose_batch_size,
    fastest,
    is_out_of_memory,
    measure_rates,
    occupied,
    step_timer,
)
from training.settings import Config

EMPTY = torch.empty
CPU = torch.device("cpu")
MESSAGES = (
    "CUDA error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "MPS backend out of memory (MPS allocated: 9.05 GB, other allocations: 8.89 MB)",
    "Native API failed. 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
)


@pytest.fixture
def trainable():
    torch.manual_seed(0)
    prep = DevicePrep(Normalize([100.0] * 3, [50.0] * 3), SpeedTarget())
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 8, 1))
    return Trainable(prep, model, RoadLoss())


def auto(store_path, **settings):
    """Return settings with an automatic batch size: 1536 samples, up to 96 per batch."""
    usual = {"stores": (str(store_path),), "model": "helpers.tiny:normed", "crop": 32}
    usual |= {"crops_per_tile": 64, "batch_size": "auto", "ema": 0.9}
    return Config.from_flat(usual | settings)


def choose(config, store):
    """Return the batch size that `auto` chooses on the CPU, and what it says."""
    chosen, (note,) = choose_batch_size(
        config, choose_engine("native", "cpu", "fp32", "off"), (store,)
    )
    return chosen.batch_size, note


@pytest.fixture
def limit(monkeypatch):
    """Return a function that lets steps of more than so many images run out of memory.

    It returns the sizes that were tried, and weak references to what failed steps held.
    """
    real = batch_size.optimizer_step

    def limit_to(most, error):
        tried, held = [], []

        def step(module, optimizer, engine, batches, **options):
            (batch,) = batches
            tried.append(len(batch))
            if len(batch) > most:
                tensor = torch.zeros(1000)
                held.append(weakref.ref(tensor))
                raise type(error)(*error.args)
            return real(module, optimizer, engine, batches, **options)

        monkeypatch.setattr(batch_size, "optimizer_step", step)
        # As if larger batches were always faster.
        monkeypatch.setattr(batch_size, "_GIVE_UP", 0.0)
        return tried, held

    return limit_to


def test_a_size_that_runs_out_of_memory_ends_the_search(store_path, store, limit):
    tried, held = limit(4, torch.OutOfMemoryError("full"))
    size, note = choose(auto(store_path), store)
    assert size in (2, 4)
    assert max(tried) == 8
    assert note.endswith("; 8 does not fit into memory")
    assert held
    assert not any(reference() is not None for reference in held)


@pytest.mark.parametrize("error", [MemoryError(), *map(RuntimeError, MESSAGES)])
def test_every_backend_says_that_memory_is_full(error):
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError(str(error)))


def test_other_errors_are_raised(store_path, store, limit):
    limit(4, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        choose(auto(store_path), store)


def test_if_the_smallest_size_does_not_fit_other_settings_are_suggested(store_path, store, limit):
    limit(1, torch.OutOfMemoryError("full"))
    with pytest.raises(UsageError, match=r"`batch_size` auto: a batch of 2 x 32 x 32 .*`crop`"):
        choose(auto(store_path), store)


def test_tiles_in_memory_leave_less_for_batches(store_path, store, monkeypatch):
    """The memory that fits batches of 8 has to hold 32 tiles of 64 x 64 x 4 bytes as well."""
    tiles = 32 * 64 * 64 * 4
    seen = []
    real = batch_size.estimate

    def estimate(*given):
        found = real(*given)
        room = found.total(8)
        seen.append(room)
        return batch_size.replace(found, available=room + (tiles if len(seen) > 1 else 0))

    monkeypatch.setattr(batch_size, "estimate", estimate)
    monkeypatch.setattr(batch_size, "measure_rates", lambda seconds, most: {most: 1.0})
    (less, _), (more, note) = (choose(auto(store_path), store) for _ in range(2))
    assert (less < 8, more) == (True, 8)
    assert note.endswith("more than 8 may not fit into memory")


def test_steps_are_measured_as_in_training(trainable, monkeypatch):
    seen = []
    real = batch_size.optimizer_step

    def step(module, optimizer, engine, batches, **options):
        result = real(module, optimizer, engine, batches, **options)
        modes = [part.training for part in module.modules()]
        seen.append((all(modes), engine.dtype, len(optimizer.state), options["clip"]))
        return result

    averaged = []
    monkeypatch.setattr(batch_size, "optimizer_step", step)
    monkeypatch.setattr(batch_size, "update_average", lambda *_: averaged.append(1))
    engine = choose_engine("native", "cpu", "bf16", "off")
    config = Config.from_flat({"ema": 0.9, "clip": 1.0})
    step_timer(trainable.eval(), engine, config, 32, repeats=1)(2)
    parameters = len(list(trainable.model.parameters()))
    assert seen == [(True, torch.bfloat16, parameters, 1.0)] * 2
    assert len(averaged) == 2


class FakeDevice:
    """An accelerator with 10,000,000 bytes, of which tensors may take so many."""

    def __init__(self, room):
        self.room = room
        self.emptied = 0
        self.held = []

    def empty(self, *size, **how):
        if how.get("device") != torch.device("meta"):
            return EMPTY(*size, **how)
        (nbytes,) = size
        if nbytes > self.room:
            raise torch.OutOfMemoryError("full")
        self.held.append(nbytes)
        return object()

    def empty_cache(self):
        self.emptied += 1


@pytest.fixture
def device(monkeypatch):
    """Return a function that makes torch allocate on a `FakeDevice`."""

    def make(room):
        made = FakeDevice(room)
        monkeypatch.setattr(torch, "empty", made.empty)
        monkeypatch.setattr(torch, "get_device_module", lambda device: made)
        monkeypatch.setattr(batch_size, "available", lambda device: (10_000_000, "it"))
        monkeypatch.setattr(batch_size.DeviceTiles, "room", lambda device: room // 2)
        monkeypatch.setattr(batch_size, "max_over_ranks", lambda values, device: values)
        return made

    return make


@pytest.mark.parametrize(
    ("residency", "room", "held"),
    [
        ("device", 10_000_000, [500_000 + 32 * 64 * 64 * 4]),
        ("device", 1_000_000, [500_000 + 24 * 64 * 64 * 4]),
        ("device", 400_000, []),
        ("ram", 10_000_000, [500_000]),
    ],
    ids=["all tiles", "training tiles", "none fit", "tiles elsewhere"],
)
def test_sizes_are_tried_beside_the_tiles_of_a_device(
    residency, room, held, device, store_path, store, monkeypatch
):
    made = device(room)

    def timer(*given):
        assert made.held == held
        return lambda size: 1.0

    monkeypatch.setattr(batch_size, "step_timer", timer)
    engine = choose_engine("native", "cpu", "fp32", "off")
    engine = batch_size.replace(engine, device=torch.device("meta"))
    config = auto(store_path, residency=residency)
    chosen, _ = choose_batch_size(config, engine, (store,))
    assert chosen.batch_size == 64  # of 96 at most
    assert made.emptied >= 1


def test_a_failed_try_empties_the_cache_of_the_device(device):
    made = device(0)

    def fail():
        raise torch.OutOfMemoryError("full")

    assert attempt(fail, torch.device("meta")) is None
    assert made.emptied == 1
    with occupied(CPU, 1):
        assert not made.held


def test_the_fastest_size_is_chosen_and_the_larger_of_equal_rates():
    assert fastest({2: 8.0, 4: 10.0, 8: 8.0}) == 4
    assert fastest({2: 10.0, 4: 10.1, 8: 10.0, 16: 9.0}) == 8


def test_sizes_are_tried_until_rates_fall_or_the_bound_is_reached():
    assert measure_rates({2: 0.25, 4: 0.4, 8: 1.0}.__getitem__, 128) == {2: 8.0, 4: 10.0, 8: 8.0}
    assert list(measure_rates(lambda n: 0.1 * n, 16)) == [2, 4, 8, 16]


def test_timing_steps_does_not_change_the_module(trainable):
    before = {name: value.clone() for name, value in trainable.state_dict().items()}
    engine = choose_engine("native", "cpu", "fp32", "off")
    assert step_timer(trainable, engine, Config(), 32, repeats=1)(2) > 0
    assert all(torch.equal(value, before[name]) for name, value in trainable.state_dict().items())


def test_settings_are_compared_by_rate(fit, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda plain, **_: plain)  # instead of a minute
    out = tmp_path / "run"
    assert fit("--out", out, "--profile-settings", "--compile", "loss") == 0
    rows = [row for row in capfd.readouterr().out.splitlines() if "images/s" in row]
    named = ("a step of", "contiguous", "channels last, not", "channels last, --compile loss")
    assert all(any(row.startswith(name) for row in rows) for name in named)
    assert not out.exists()


def test_a_setting_that_does_not_fit_is_left_out(fit, tmp_path, capfd, limit):
    limit(0, torch.OutOfMemoryError("full"))
    assert fit("--out", tmp_path / "run", "--profile-settings") == 0
    assert re.search(r"contiguous, not compiled +does not fit", capfd.readouterr().out)


def test_on_a_device_only_the_end_of_the_steps_is_waited_for(trainable, monkeypatch):
    waits = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waits.append)
    meta = torch.device("meta")
    engine = batch_size.replace(choose_engine("native", "cpu", "fp32", "off"), device=meta)
    assert engine.skips_steps

    def prepare(module, engine, config):
        optimizer = torch.optim.SGD(module.to(engine.device).model.parameters(), config.lr)
        monkeypatch.setattr(optimizer, "step", lambda: None)  # there is no fused one for it
        return optimizer

    monkeypatch.setattr(batch_size, "prepare", prepare)
    assert step_timer(trainable, engine, Config(), 32, repeats=5)(2) > 0
    assert waits == [meta] * 2
    assert next(trainable.parameters()).device.type == "cpu"
