"""The module of a training step: a batch of bytes in, its loss out; and the weights in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Self

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from loaders import Batch, DevicePrep
from training.model.compiled import Compiled
from training.model.losses import LossParts
from training.setting_texts import CompileMode

Timed = Callable[[str], AbstractContextManager[object]]
"""Returns a context manager around a phase of a step, given its name."""

WAIT, NORMALISE = "wait for the batch", "normalise, targets"
COPY, AVERAGE = "copy to the device", "averaged weights"


class Trainable(nn.Module):
    """Module that maps a batch of bytes to its loss.

    Normalisation and loss are inside the module, so that only three scalars come back from each
    device under ``DistributedDataParallel``.
    """

    def __init__(self, prep: DevicePrep, model: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.prep = prep
        self.model = model
        self.loss = loss
        self.timed: Timed = record_function
        # Beside the modules, so that the names in state_dict() stay the same.
        self._compiled_model: Callable[..., Tensor] | None = None
        self._compiled_loss: Callable[..., LossParts] | None = None

    def compile_parts(self, mode: CompileMode) -> None:
        """Compile the loss, or model and loss, for training; validation uses neither."""
        if mode != "off":
            self._compiled_loss = Compiled(self.loss, "the loss")
        if mode == "model":
            self._compiled_model = Compiled(self.model, "the model")

    def train(self, mode: bool = True) -> Self:
        """Put all but a frozen encoder into training mode: its statistics and dropout stay."""
        super().train(mode)
        encoder = getattr(self.model, "encoder", None)
        if isinstance(encoder, nn.Module):
            weights = [*encoder.parameters()]
            if weights and not any(weight.requires_grad for weight in weights):
                encoder.eval()
        return self

    def forward(self, batch: Batch) -> LossParts:
        """Return the loss of a batch on the device of this module."""
        model = (self.training and self._compiled_model) or self.model
        loss = (self.training and self._compiled_loss) or self.loss
        with self.timed(NORMALISE):
            ready = self.prep(batch)
        with self.timed("model forward"):
            logits = model(ready.image)
        with self.timed("loss forward"):
            parts: LossParts = loss(logits, ready.target, ready.valid)
        return parts if parts.weight is not None else parts._replace(weight=ready.valid.sum())

    def logits(self, image: Tensor) -> Tensor:
        """Return logits (n, channel, y, x) of uint8 (n, band, y, x), without padding."""
        rows, columns = image.shape[-2:]
        padded = self.prep.pad(image)
        logits: Tensor = self.model(self.prep.normalize(padded))
        return logits[..., :rows, :columns]


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


def average_share(decay: float, step: int) -> float:
    """Return the share of the weights in the averaged ones at a step, counted from 1.

    The decay rises over the first steps as ``(1 + step) / (10 + step)``, so that the average
    forgets the random initial weights.
    """
    return 1 - min(decay, (1 + step) / (10 + step))


@torch.no_grad()
def update_average(
    averaged: dict[str, Tensor],
    model: nn.Module,
    share: float | Tensor,
    applied: Tensor | None = None,
) -> None:
    """Move averaged weights and running statistics by a share of the way to the model's, in place.

    ``applied``, a bool on the device, leaves the averages as they are if it is False: the step was
    skipped.
    """
    now = model.state_dict()
    floats = [name for name, value in now.items() if value.is_floating_point()]
    averages, values = [averaged[n] for n in floats], [now[n] for n in floats]
    if applied is None:
        torch._foreach_lerp_(averages, values, share)  # type: ignore[arg-type]  # a number here
    else:  # the weight is on the device, where lerp takes none
        change = torch._foreach_sub(values, averages)
        torch._foreach_mul_(change, applied * share)
        torch._foreach_add_(averages, change)
    counters = [name for name in now if not now[name].is_floating_point()]  # such as of batches
    if counters:
        torch._foreach_copy_([averaged[n] for n in counters], [now[n] for n in counters])
