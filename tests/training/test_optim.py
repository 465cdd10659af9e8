"""Learning rates are a function of how far a run is; averaged weights."""

import pytest
import torch
from helpers import tiny

from training.config import OptimizerConfig
from training.optim import Ema, learning_rate


def changed(network):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)


def test_the_average_follows_and_the_network_keeps_its_own():
    network = tiny.normed(3, 8)
    ema = Ema(network, 0.5)
    before = network[0].weight.clone()
    changed(network)
    ema.update(1000)
    assert torch.allclose(ema.weights["0.weight"], before + 0.5)
    with ema.applied():
        assert torch.equal(network[0].weight, ema.weights["0.weight"])
    assert torch.equal(network[0].weight, before + 1)


def test_counters_are_taken_over_and_early_steps_count_more():
    network = tiny.normed(3, 8)
    ema = Ema(network, 0.999)
    start = network[0].weight.clone()
    network[1].num_batches_tracked += 7
    changed(network)
    ema.update(1)
    assert ema.weights["1.num_batches_tracked"] == 7
    assert torch.allclose(ema.weights["0.weight"], start + 9 / 11)


def schedule(name, epochs=10, **options):
    config = OptimizerConfig(schedule=name, lr=1.0, **options)
    return lambda done: learning_rate(config, epochs, done)


def test_one_cycle_is_that_of_torch():
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


def test_cosine_warms_up_and_comes_to_rest():
    course = schedule("cosine", warmup=2.0)
    assert course(1.0) == 0.5
    assert course(2.0) == 1.0
    assert course(6.0) == pytest.approx(0.5)
    assert course(10.0) == 0.0


def test_constant_is_constant_and_warm_up_never_takes_most_of_a_run():
    assert schedule("constant", warmup=0.0)(0.5) == 1.0
    assert schedule("constant", epochs=1, warmup=5.0)(0.5) == 1.0
