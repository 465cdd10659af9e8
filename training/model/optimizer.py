"""The optimizer of a model, from settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from geoprep.errors import UsageError
from training.settings import Config

MOMENTUM = 0.9

STATE_PER_PARAMETER: dict[str, int] = {"adamw": 2, "adam": 2, "sgd": 1}
"""fp32 values that an optimizer stores per parameter."""


def make_optimizer(model: nn.Module, config: Config) -> Optimizer:
    """Return the optimizer of a model's parameters.

    Weight decay applies to kernels only: decaying biases and BatchNorm factors costs accuracy
    (He et al. 2019, "Bag of tricks").
    """
    factor = config.encoder_lr
    encoder = getattr(model, "encoder", None)
    if factor != 1 and not isinstance(encoder, nn.Module):
        raise UsageError("`encoder_lr`: this model has no part named encoder")
    slow = set() if factor == 1 or encoder is None else set(encoder.parameters())
    for parameter in slow:
        parameter.requires_grad_(factor > 0)
    groups: list[dict[str, Any]] = [
        {
            "params": [
                p
                for p in model.parameters()
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
