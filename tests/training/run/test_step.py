"""Batches of a step, learning rate schedules and averaged weights."""

from types import SimpleNamespace

import pytest
import torch
from helpers import tiny

from loaders.sampling import Schedule
from training.model import copy_weights, update_average
from training.run.parts import make_optimizer
from training.run.step import (
    StepResult,
    TrainingError,
    batch_groups,
    learning_rate,
    skip_unless_finite,
)
from training.settings import Config, OptimizerConfig


def changed(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)


def test_counters_are_copied_and_early_steps_have_a_smaller_decay():
    model = tiny.normed(3, 8)
    averaged = copy_weights(model)
    start = model[0].weight.clone()
    model[1].num_batches_tracked += 7
    changed(model)
    update_average(averaged, model, 0.999, 1)
    assert averaged["1.num_batches_tracked"] == 7
    assert torch.allclose(averaged["0.weight"], start + 9 / 11)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("norm", [1.0, float("inf"), float("nan")])
def test_a_fused_optimizer_skips_a_step_without_a_finite_norm(name, norm):
    """As on accelerators, where nothing waits for the norm."""
    model = tiny.build(3, 8)
    optimizer = make_optimizer(model, Config(optimizer=name, lr=0.1))
    before = copy_weights(model)
    model(torch.ones(1, 3, 8, 8)).sum().backward()
    skip_unless_finite(optimizer, torch.tensor(norm))
    optimizer.step()
    changed = [not torch.equal(before[n], value) for n, value in model.state_dict().items()]
    assert any(changed) == (norm == 1.0)


def test_averages_are_those_of_one_lerp_per_tensor_to_the_last_bit():
    model = tiny.normed(3, 8)
    averaged = copy_weights(model)
    changed(model)
    wanted = {
        name: averaged[name].lerp(value, 1 - 0.9) if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    update_average(averaged, model, 0.9, 1000)
    assert all(torch.equal(averaged[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("applied", [True, False])
def test_a_skipped_step_leaves_the_averages(applied):
    """The device decides on it, so the host passes a tensor."""
    model = tiny.normed(3, 8)
    averaged, other = copy_weights(model), copy_weights(model)
    before = copy_weights(model)
    changed(model)
    update_average(averaged, model, 0.9, 1000, torch.tensor(applied))
    update_average(other, model, 0.9, 1000)
    wanted = other if applied else before
    assert all(torch.allclose(averaged[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(("loss", "scale"), [(1.0, None), (1.0, 1.0), (float("nan"), 65536.0)])
def test_only_an_overflow_of_scaled_gradients_lets_a_run_go_on(loss, scale):
    def step(loss, scale):
        norm, scale = torch.tensor(torch.inf), scale and torch.tensor(scale)
        return StepResult([torch.full((3,), loss)], [1], norm, 0.0, scale)

    assert step(1.0, 2.0).check() is False
    with pytest.raises(TrainingError):
        step(loss, scale).check()


@pytest.mark.parametrize(
    ("position", "steps"),
    [(0, [(2, 8), (2, 16), (1, 20)]), (8, [(2, 16), (1, 20)]), (16, [(1, 20)]), (20, [])],
)
def test_steps_of_several_batches_are_the_same_from_any_position(position, steps):
    loader = SimpleNamespace(schedule=Schedule(samples=20, batch_size=4))
    assert batch_groups(loader, position, 2) == steps


def schedule(name, epochs=10, **options):
    config = OptimizerConfig(schedule=name, lr=1.0, **options)
    return lambda done: learning_rate(config, epochs, done)


def test_one_cycle_equals_that_of_torch():
    steps = 2001
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=steps)
    ours = schedule("onecycle")
    for step in range(steps):
        wanted = theirs.get_last_lr()[0]
        # torch counts its phases in whole steps, which shifts them by a part of a step.
        assert ours(10 * step / (steps - 1)) == pytest.approx(wanted, abs=0.002), step
        optimizer.step()
        if step < steps - 1:
            theirs.step()


def test_cosine_warms_up_and_ends_at_zero():
    rate = schedule("cosine", warmup=2.0)
    assert rate(1.0) == 0.5
    assert rate(2.0) == 1.0
    assert rate(6.0) == pytest.approx(0.5)
    assert rate(10.0) == 0.0


def test_constant_is_constant_and_warm_up_is_at_most_half_of_a_run():
    assert schedule("constant", warmup=0.0)(0.5) == 1.0
    assert schedule("constant", epochs=1, warmup=5.0)(0.5) == 1.0
