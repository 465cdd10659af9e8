"""Batches of a step, learning rate schedules and averaged weights."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers import tiny
from torch.nn import functional

from loaders import Batch, ClassTarget, DevicePrep, Normalize, SpeedTarget
from loaders.sampling import Schedule
from training.checkpoint import RunProgress
from training.engine.native import choose_engine
from training.model.losses import ClassLoss, RoadLoss
from training.model.trainable import Trainable, average_share, copy_weights, update_average
from training.run.parts import make_optimizer, prepare
from training.run.step import (
    StepResult,
    StepState,
    TrainingError,
    batch_groups,
    learning_rate,
    skip_unless_finite,
    train_step,
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
    update_average(averaged, model, average_share(0.999, 1))
    assert averaged["1.num_batches_tracked"] == 7
    assert torch.allclose(averaged["0.weight"], start + 9 / 11)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
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


def test_a_skipped_first_step_leaves_no_momentum_of_sgd():
    """The steps after it are those of a run that begins with them."""
    engine = replace(choose_engine("native", "cpu", "fp32", "off"), skips_steps=True)
    trained = []
    for norms in ((torch.nan, 1.0, 1.0), (1.0, 1.0)):
        torch.manual_seed(0)
        config = Config(optimizer="sgd", lr=0.1)
        optimizer = prepare(trainable := unequal(0)[2], engine, config)
        for norm in norms:
            for parameter in trainable.model.parameters():
                parameter.grad = torch.full_like(parameter, norm)
            skip_unless_finite(optimizer, torch.tensor(norm))
            optimizer.step()
        trained.append(trainable.model.state_dict())
    assert all(torch.equal(value, trained[1][name]) for name, value in trained[0].items())


def test_averages_are_those_of_one_lerp_per_tensor_to_the_last_bit():
    model = tiny.normed(3, 8)
    averaged = copy_weights(model)
    changed(model)
    wanted = {
        name: averaged[name].lerp(value, 1 - 0.9) if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    update_average(averaged, model, 1 - 0.9)
    assert all(torch.equal(averaged[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("applied", [True, False])
def test_a_skipped_step_leaves_the_averages(applied):
    """The device decides on it, so the host passes a tensor."""
    model = tiny.normed(3, 8)
    averaged, other = copy_weights(model), copy_weights(model)
    before = copy_weights(model)
    changed(model)
    update_average(averaged, model, 1 - 0.9, torch.tensor(applied))
    update_average(other, model, 1 - 0.9)
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


def unequal(classes):
    """Return two batches, the second labelled in a sixteenth of its pixels; and a linear model."""
    torch.manual_seed(0)
    image = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    label = torch.randint(0, classes or 80, (2, 32, 32), dtype=torch.uint8)
    label[1, 8:], label[1, :, 8:] = 255, 255
    index, key = torch.arange(2), torch.arange(2)
    parts = image, label, index, torch.zeros(2, 3).int(), key
    prep = DevicePrep(
        Normalize([100.0] * 3, [50.0] * 3), ClassTarget(classes) if classes else SpeedTarget("bins")
    )
    weights = torch.linspace(0.5, 1.5, classes or 8)
    loss = ClassLoss("ce-dice", weights, 0.0) if classes else RoadLoss("ce-dice", weights, 0.0)
    whole = Batch(*parts, has_classes=bool(classes))
    several = [Batch(*(p[i : i + 1] for p in parts), has_classes=bool(classes)) for i in (0, 1)]
    return whole, several, Trainable(prep, torch.nn.Conv2d(3, classes or 8, 1), loss)


@pytest.mark.parametrize("classes", [0, 3])
def test_a_step_of_several_batches_is_that_of_one_batch_of_all_their_pixels(classes):
    whole, several, trainable = unequal(classes)
    steps = []
    for batches in ([whole], several):
        copied = copy.deepcopy(trainable)
        optimizer = torch.optim.SGD(copied.model.parameters(), lr=1.0)
        engine = choose_engine("native", "cpu", "fp32", "off")
        state = StepState(engine, copied.model, optimizer)
        result = train_step(copied, batches, state, len(batches))
        change = [
            b - a
            for a, b in zip(trainable.model.parameters(), copied.model.parameters(), strict=True)
        ]
        progress = RunProgress()
        progress.add(torch.stack(result.losses).tolist())
        steps.append([*change, torch.tensor(progress.sums[:2]) / progress.labelled])
    torch.testing.assert_close(*steps, rtol=1e-5, atol=1e-7)
    if classes:  # torch's own loss over all labelled pixels
        ready = trainable.prep(whole)
        weights = trainable.loss.weights.flatten()
        loss = functional.cross_entropy(trainable.model(ready.image), ready.target, weights)
        loss.backward()
        gradients = [-p.grad for p in trainable.model.parameters()]
        torch.testing.assert_close(steps[1][:2], gradients, rtol=1e-5, atol=1e-7)


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
