"""Recorded steps, with stand-ins for the graphs and streams of CUDA that compute on the CPU."""

import warnings
import weakref
from dataclasses import replace

import pytest
import torch
from helpers.runs import STAGED, STATEFUL, assert_same_run
from helpers.steps import SAMPLES, NoReads

from training.checkpoint import load
from training.engine.native import random_state, set_random_state
from training.run import captured, start
from training.run.step import train_step


class _OfTheDevice:
    """Random numbers of the CPU that stand for the device's: the host may draw them."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __eq__(self, other):
        return True


@pytest.fixture
def recordings(monkeypatch):
    """Let runs on the CPU record their steps; return the lists of batches of the recordings.

    A recording takes no step. What replays it sees the numbers of the host as they were then.
    """
    made, choose = [], start.choose_engine

    def record(take, state):
        _, buffers, _, count = take.args
        made.append([len(batch) for batch in buffers])
        step, groups = state.step, state.optimizer.param_groups
        numbers = [dict(group) for group in groups]
        values = torch.full((4 * count + 1 + (state.scaler is not None),), torch.nan)

        def replay():
            done, state.step = state.step, step
            for group, before in zip(groups, numbers, strict=True):
                group.update(before)
            with NoReads():
                values.copy_(take().flat())
            state.step = done

        return replay, values

    def choose_engine(*settings, capture):
        engine = choose(*settings, capture=capture)
        return replace(engine, captures=capture, skips_steps=True)

    def random_numbers(device):  # those of the device are no hindrance
        state = random_state(device)
        return state | {"torch": torch.zeros(0), "device": _OfTheDevice(state["torch"])}

    monkeypatch.setattr(start, "choose_engine", choose_engine)
    monkeypatch.setattr(captured, "record", record)
    monkeypatch.setattr(captured, "beside", lambda take: take())

    def restore(state, device):
        set_random_state(state | {"torch": state["device"].numbers}, device)

    monkeypatch.setattr(captured, "random_state", random_numbers)
    monkeypatch.setattr(captured, "set_random_state", restore)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda _: None)
    return made


def as_it_is(monkeypatch):
    """Let no step be recorded; all else is as for recordings."""
    monkeypatch.setattr(
        captured.CapturedStep, "__init__", lambda self, _: self.__dict__.update(_possible=False)
    )


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        (("--ema", 0.9), [[4]]),
        (("--accumulate", 4, "--optimizer", "sgd", "--schedule", "cosine"), [[4] * 4, [4] * 2]),
        (("--precision", "fp16", "--optimizer", "adamw", "--ema", 0.9), [[4]]),
    ],
)
def test_a_run_of_recorded_steps_equals_one_of_steps_as_they_are(
    stoppable, tmp_path, monkeypatch, recordings, options, batches
):
    one, other, parts = (tmp_path / name for name in ("one", "other", "parts"))
    common = ("--epochs", 5, *options)
    said = stoppable("--out", one, *common).out
    assert recordings == batches
    assert "images/s" in said
    stoppable("--out", parts, *common, at=9)
    stoppable("--resume", parts)
    assert_same_run(one, parts)
    as_it_is(monkeypatch)
    stoppable("--out", other, *common)
    assert_same_run(one, other)


def test_a_run_goes_on_with_and_without_recordings(stoppable, tmp_path, recordings):
    """Its checkpoint holds plain numbers in the groups of the optimizer."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    stoppable("--out", out, "--epochs", 2, "--ema", 0.9, at=8)
    assert len(recordings) == 1
    groups = load(out).optimizer["param_groups"]
    assert {type(group["lr"]) for group in groups} == {float}
    assert not any(group["capturable"] for group in groups)
    stoppable("--resume", out, "--capture", "off")
    stoppable("--out", whole, "--epochs", 2, "--ema", 0.9, "--capture", "off")
    weights, others = (load(run).model for run in (out, whole))
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name])
    stoppable("--resume", whole, "--epochs", 3, "--capture", "auto")
    assert len(recordings) == 2


def test_each_stage_records_its_shape(fit, out, recordings):
    fit("--out", out, "--stages", "64@32:1,64:1,32:1", network=STAGED)
    assert recordings == [[4]] * 3


def test_a_loss_of_nan_stops_a_run_of_recorded_steps(fit, out, monkeypatch, recordings):
    # The model counts its calls, of which a comparison would be one more.
    monkeypatch.setattr(captured, "compared", lambda _recorded, take, _state: (take(), ""))
    options = ("--epochs", 1, "--log-every", 6, "--save-every", 3)
    said = fit("--out", out, *options, model="poisoned", status=1).err
    assert "the loss is not a number (step 5, epoch 1, seed 0)" in said
    assert load(out).progress["step"] == 3


def waits(image, label, key):
    """An augmentation that reads a value of the device, as torch warns of."""
    warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
    return image, label


@pytest.mark.filterwarnings("ignore:called a synchronizing")
@pytest.mark.parametrize(
    ("augmentation", "why"),
    [
        ("helpers.tiny:random_shift", "the host draws random numbers"),
        (f"{__name__}:waits", "the host reads values of the device"),
        ("none", "operation not permitted when stream is capturing"),
    ],
)
def test_a_step_that_cannot_be_recorded_is_taken_as_it_is(
    fit, tmp_path, monkeypatch, recordings, augmentation, why
):
    def record(take, state):
        assert augmentation == "none", "found before"
        kept = torch.zeros(3)  # as activations are
        held.append(weakref.ref(kept))
        raise RuntimeError(f"CUDA error: {why}\nmore")

    def take(*given):
        assert not any(reference() is not None for reference in held)
        return train_step(*given)

    held = []
    monkeypatch.setattr(captured, "record", record)
    monkeypatch.setattr(captured, "train_step", take)
    one, other = tmp_path / "one", tmp_path / "other"
    common = ("--epochs", 2, "--ema", 0.9, "--augmentation", augmentation)
    said = fit("--out", one, *common, network=STATEFUL).out
    assert len([line for line in said.splitlines() if "not recorded" in line and why in line]) == 1
    as_it_is(monkeypatch)
    fit("--out", other, *common, network=STATEFUL)
    assert_same_run(one, other)


def forgets_the_rate(replay, values, state):
    """The update of another learning rate, as if the rate were a number of the recording."""
    for group in state.optimizer.param_groups:
        group["lr"].mul_(3)
    replay()
    for group in state.optimizer.param_groups:
        group["lr"].div_(3)


def reads_an_old_batch(replay, values, state):
    replay()
    values[0] *= 1.1


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (forgets_the_rate, "weights"),
        (reads_an_old_batch, "loss"),
    ],
)
def test_a_recording_that_is_wrong_is_found_and_undone(
    fit, tmp_path, monkeypatch, recordings, wrong, what
):
    right = captured.record

    def record(take, state):
        replay, values = right(take, state)
        return (lambda: wrong(replay, values, state)), values

    monkeypatch.setattr(captured, "record", record)
    one, other = tmp_path / "one", tmp_path / "other"
    common = ("--epochs", 2, "--ema", 0.9, "--optimizer", "adamw")
    said = fit("--out", one, *common, network=STATEFUL).out
    assert f"taken as it is in {what}\n" in said
    assert recordings == [[4]]
    as_it_is(monkeypatch)
    fit("--out", other, *common, network=STATEFUL)
    assert_same_run(one, other)


def test_the_profile_of_a_recorded_step_has_no_phases(fit, out, recordings):
    options = ("--crops-per-tile", 64, "--batch-size", 2)
    said = fit("--out", out, "--profile", network=(*STATEFUL[:2], *SAMPLES[:2], *options)).out
    assert "recorded steps have no phases: use --capture off" in said
    assert "phase of a step" not in said
    assert recordings == [[2]]
