"""Averaged weights."""

import pytest
import torch
from helpers import tiny

from geoprep.errors import UsageError
from training.ema import Ema


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


def test_a_decay_beyond_its_range_is_refused():
    with pytest.raises(UsageError, match="--ema"):
        Ema(tiny.build(3, 8), 1.0)
