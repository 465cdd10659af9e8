"""Optimizers by name, the course of the learning rate, averaged weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from geoprep.errors import UsageError
from training.config import Config, OptimizerConfig

MOMENTUM = 0.9

STATE_PER_PARAMETER: dict[str, int] = {"adamw": 2, "adam": 2, "sgd": 1}
"""fp32 values that an optimizer keeps beside each parameter."""

RISE = 0.3
START = 1 / 25
END = START / 1e4
"""One-cycle: share of the run that rises, first and last factor: the defaults of torch's."""


def make_optimizer(network: nn.Module, config: Config) -> Optimizer:
    """Return the optimizer of a network's parameters, which are where they stay.

    Weight decay is for the kernels alone: pulling biases and the factors of BatchNorm towards
    zero helps nothing and costs accuracy (He et al. 2019, "Bag of tricks").

    Parameters
    ----------
    network
        With a part named ``encoder``, where that learns at another rate; at a rate of 0 its
        parameters are frozen.
    config
        Which optimizer (``sgd`` has a Nesterov momentum of 0.9) and its figures.

    Raises
    ------
    UsageError
        The encoder is to learn at another rate, and the network has none.
    """
    factor = config.encoder_lr
    encoder = getattr(network, "encoder", None)
    if factor != 1 and not isinstance(encoder, nn.Module):
        raise UsageError("--encoder-lr: this network has no part named encoder")
    slow = set() if factor == 1 or encoder is None else set(encoder.parameters())
    for parameter in slow:
        parameter.requires_grad_(factor > 0)
    groups: list[dict[str, Any]] = [
        {
            "params": [
                p
                for p in network.parameters()
                if p.requires_grad and (p.ndim > 1, p in slow) == (kernel, slower)
            ],
            "weight_decay": config.weight_decay if kernel else 0.0,
            "factor": factor if slower else 1.0,
        }
        for slower in (False, True)
        for kernel in (True, False)
    ]
    kinds: dict[str, Callable[..., Optimizer]] = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": partial(torch.optim.SGD, momentum=MOMENTUM, nesterov=True),
    }
    used = [group for group in groups if group["params"]]
    return kinds[config.optimizer](used, lr=config.lr, fused=True)


def learning_rate(config: OptimizerConfig, epochs: int, done: float) -> float:
    """Return the learning rate of a step: no state, nothing to restore.

    Parameters
    ----------
    config
        Schedule, highest rate, warm-up.
    epochs
        Of the whole run.
    done
        Epochs that are done at the end of the step.
    """
    if config.schedule == "onecycle":
        return config.lr * _one_cycle(done / epochs)
    rising = min(config.warmup, epochs / 2)
    if done < rising:
        return config.lr * (done / rising)
    if config.schedule == "cosine":
        return config.lr * _cosine(1.0, 0.0, (done - rising) / (epochs - rising))
    return config.lr


def _cosine(first: float, last: float, share: float) -> float:
    """Return the point of a half cosine wave from ``first`` to ``last``."""
    share = min(max(share, 0.0), 1.0)
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * share))


def _one_cycle(share: float) -> float:
    """Return the factor of Smith's one-cycle policy (2018), as torch's OneCycleLR has it."""
    if share < RISE:
        return _cosine(START, 1.0, share / RISE)
    return _cosine(1.0, END, (share - RISE) / (1 - RISE))


class Ema:
    """Exponential moving average of a network's weights, and of its running statistics.

    The decay rises from 0.1 over the first steps as ``(1 + step) / (10 + step)``, so that the
    average does not remember the random weights of the start.

    Parameters
    ----------
    network
        Whose weights these are; they start as its own.
    decay
        Within 0..1; 0.999 averages over the last thousand steps.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = network
        self.decay = decay
        self.weights = _copy(network)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the network's weights after optimizer step ``step``, which counts from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        now = self.network.state_dict()
        floats = [name for name, value in now.items() if value.is_floating_point()]
        torch._foreach_lerp_([self.weights[n] for n in floats], [now[n] for n in floats], 1 - decay)
        for name in now.keys() - set(floats):
            self.weights[name].copy_(now[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the network have the averaged weights for a while."""
        own = _copy(self.network)
        self.network.load_state_dict(self.weights)
        try:
            yield
        finally:
            self.network.load_state_dict(own)

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor]) -> None:
        """Go on with averaged weights of a checkpoint."""
        for name, value in weights.items():
            self.weights[name].copy_(value)


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
