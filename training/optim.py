"""Optimizers by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from geoprep.errors import UsageError

OptimizerName = Literal["adamw", "adam", "sgd"]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]

MOMENTUM = 0.9

STATE_PER_PARAMETER: dict[str, int] = {"adamw": 2, "adam": 2, "sgd": 1}
"""fp32 values that an optimizer keeps beside each parameter."""


def make_optimizer(
    name: OptimizerName = "adamw",
    *,
    lr: float,
    weight_decay: float = 0.0,
    fused: bool = True,
) -> MakeOptimizer:
    """Return a function that makes an optimizer of parameters.

    Weight decay is for the kernels alone: pulling biases and the factors of BatchNorm towards
    zero helps nothing and costs accuracy (He et al. 2019, "Bag of tricks").

    Parameters
    ----------
    name
        ``adamw``, ``adam`` or ``sgd`` (Nesterov momentum 0.9).
    lr, weight_decay
        As torch has them.
    fused
        One pass over all of a parameter's values instead of one per operation.

    Raises
    ------
    UsageError
        The name is unknown.
    """
    if name not in get_args(OptimizerName):
        raise UsageError(f"--optimizer {name} is not one of {', '.join(get_args(OptimizerName))}")

    def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
        every = list(parameters)
        groups = [
            {"params": [p for p in every if p.ndim > 1], "weight_decay": weight_decay},
            {"params": [p for p in every if p.ndim <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if name == "sgd":
            return torch.optim.SGD(groups, lr=lr, momentum=MOMENTUM, nesterov=True, fused=fused)
        kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
        return kind(groups, lr=lr, fused=fused)

    return make
