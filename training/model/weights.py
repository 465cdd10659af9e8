"""Weights of a model by name: copies, running statistics and averages over steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a model's parameters and buffers by name."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of floats in a model's ``state_dict`` by name, not copied."""
    parameters = {name for name, _ in model.named_parameters()}
    return {
        name: value
        for name, value in model.state_dict().items()
        if name not in parameters and value.is_floating_point()
    }


@torch.no_grad()
def update_average(
    averaged: dict[str, Tensor],
    model: nn.Module,
    decay: float,
    step: int,
    applied: Tensor | None = None,
) -> None:
    """Move averaged weights and running statistics towards those of the model, in place.

    The decay rises over the first steps (counted from 1) as ``(1 + step) / (10 + step)``, so that
    the average forgets the random initial weights. ``applied``, a bool on the device, leaves the
    averages as they are if it is False: the step was skipped.
    """
    weight = 1 - min(decay, (1 + step) / (10 + step))
    now = model.state_dict()
    floats = [name for name, value in now.items() if value.is_floating_point()]
    averages, values = [averaged[n] for n in floats], [now[n] for n in floats]
    if applied is None:
        torch._foreach_lerp_(averages, values, weight)
    else:  # the weight is on the device, where lerp takes none
        change = torch._foreach_sub(values, averages)
        torch._foreach_mul_(change, applied * weight)
        torch._foreach_add_(averages, change)
    counters = [name for name in now if not now[name].is_floating_point()]  # such as of batches
    if counters:
        torch._foreach_copy_([averaged[n] for n in counters], [now[n] for n in counters])
