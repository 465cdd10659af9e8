"""The choice of a batch size, also where memory runs out."""

import weakref

import pytest
import torch
from helpers.steps import trainable_of
from torch import nn

from geoprep.errors import UsageError
from loaders import ClassTarget, DevicePrep, Normalize
from training.engine.native import choose_engine
from training.model.losses import ClassLoss
from training.model.trainable import Trainable
from training.process import is_out_of_memory
from training.run import capacity, timing
from training.run.capacity import choose_batch_size, fastest, measured_rates
from training.settings import Config

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
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 8, 1))
    return trainable_of(model)


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
    real = capacity.train_step

    def limit_to(most, error):
        tried, held = [], []

        def step(module, batches, state):
            (batch,) = batches
            tried.append(len(batch))
            if len(batch) > most:
                tensor = torch.zeros(1000)
                held.append(weakref.ref(tensor))
                raise type(error)(*error.args)
            return real(module, batches, state)

        monkeypatch.setattr(capacity, "train_step", step)
        # As if larger batches were always faster.
        monkeypatch.setattr(capacity, "_GIVE_UP", 0.0)
        return tried, held

    return limit_to


def test_a_size_that_runs_out_of_memory_ends_the_search(store_path, store, limit):
    tried, held = limit(4, torch.OutOfMemoryError("full"))
    size, note = choose(auto(store_path), store)
    assert size in (2, 4)
    assert max(tried) == 8
    assert "; at most 4 fit into memory, and " in note
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
    real = capacity.estimate

    def estimate(*given):
        found = real(*given)
        room = found.total(8)
        seen.append(room)
        return capacity.replace(found, available=room + (tiles if len(seen) > 1 else 0))

    monkeypatch.setattr(capacity, "estimate", estimate)
    monkeypatch.setattr(capacity, "measured_rates", lambda *given: {given[-1][-1]: 1.0})
    (less, _), (more, note) = (choose(auto(store_path), store) for _ in range(2))
    assert (less < 8, more) == (True, 8)
    assert "; at most 8 fit into memory, and " in note


def test_steps_are_measured_as_in_training(trainable, monkeypatch):
    seen = []
    real = capacity.train_step

    def step(module, batches, state):
        result = real(module, batches, state)
        modes = [part.training for part in module.modules()]
        seen.append((all(modes), engine.dtype, len(state.optimizer.state), state.clip))
        return result

    monkeypatch.setattr(capacity, "train_step", step)
    engine = choose_engine("native", "cpu", "bf16", "off")
    assert measured_rates(trainable.eval(), engine, Config.from_flat({"clip": 1.0}), 32, [2])[2] > 0
    parameters = len(list(trainable.model.parameters()))
    assert set(seen) == {(True, torch.bfloat16, parameters, 1.0)}


def test_steps_with_classes_are_measured():
    prep = DevicePrep(Normalize([100.0] * 3, [50.0] * 3), ClassTarget(4))
    trainable = Trainable(prep, nn.Conv2d(3, 4, 1), ClassLoss())
    engine = choose_engine("native", "cpu", "fp32", "off")
    assert measured_rates(trainable, engine, Config(), 32, [2])[2] > 0


def test_the_fastest_size_is_chosen_and_the_larger_of_equal_rates():
    assert fastest({2: 8.0, 4: 10.0, 8: 8.0}) == 4
    assert fastest({2: 10.0, 4: 10.1, 8: 10.0, 16: 9.0}) == 8


def test_sizes_are_tried_until_rates_fall_or_the_bound_is_reached(trainable, monkeypatch):
    """With a clock by which steps of 2, 4, 8, ... images take this many seconds."""
    engine, now = choose_engine("native", "cpu", "fp32", "off"), [0.0]
    takes = {2: 0.25, 4: 0.4, 8: 1.0}

    def step(module, batches, state):
        now[0] += takes[len(batches[0])]

    monkeypatch.setattr(capacity, "train_step", step)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    given = trainable, engine, Config(), 32
    assert measured_rates(*given, capacity.SIZES) == pytest.approx({2: 8.0, 4: 10.0, 8: 8.0})
    assert list(measured_rates(*given, (2, 4))) == [2, 4]
