"""Validation while training: a network on whole tiles, each exactly once over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from geoprep.speed import NO_DATA
from loaders import BatchLoader
from training.checkpoint import Facts
from training.data import Tiles
from training.decode import default_threshold, road_probability, speed_byte
from training.distributed import add_up, share_buffers
from training.engine.native import Engine
from training.losses import LossParts
from training.metrics import RoadMetrics
from training.module import Trainable
from training.monitor.pictures import ANY_ROAD_MPH, Example


@contextmanager
def evaluation_mode(trainable: Trainable) -> Iterator[None]:
    """Put a module into evaluation mode, without gradients, and back."""
    trainable.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        trainable.train()


def evaluate(
    trainable: Trainable,
    engine: Engine,
    facts: Facts,
    loader: BatchLoader,
    *,
    loss: nn.Module | None = None,
    on_batch: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return the metrics of a network over a loader, of all ranks together.

    Parameters
    ----------
    trainable
        Whose ``logits`` are looked at.
    engine
        How it computes.
    facts
        What the logits mean.
    loader
        Of whole tiles.
    loss
        Also compute this one, as ``val_loss``, the mean over tiles.
    on_batch
        Called before each batch; may raise to stop.

    Returns
    -------
    dict
        As `training.metrics.RoadMetrics.compute`; ``road_iou`` is that of the usual threshold,
        and ``threshold`` the one to predict with.
    """
    metrics = RoadMetrics(facts.targets, facts.class_mph).to(engine.device)
    total = torch.zeros(2, dtype=torch.float64, device=engine.device)
    with evaluation_mode(trainable):
        share_buffers(trainable)
        for batch in loader:
            on_batch()
            there = batch.to(engine.device, non_blocking=True)
            with engine.autocast():
                logits = trainable.logits(there.image)
            metrics.update(logits.float().sigmoid(), there.speed)
            if loss is not None:
                total += len(there) * _loss(trainable, loss, logits, there.speed)
    results = {name: value.item() for name, value in metrics.compute().items()}
    if loss is None:
        return results
    summed, tiles = add_up(total.tolist(), engine.device)
    return {"val_loss": summed / max(tiles, 1)} | results


def _loss(trainable: Trainable, loss: nn.Module, logits: Tensor, speed: Tensor) -> Tensor:
    """Return loss and 1, fp64 (2,), on the device."""
    target = trainable.prep.target
    parts = cast(LossParts, loss(logits, target(speed), target.valid(speed)))
    return torch.stack([parts.total.double(), torch.ones_like(parts.total).double()])


def examples(
    trainable: Trainable,
    engine: Engine,
    facts: Facts,
    tiles: Tiles,
    chosen: Sequence[int],
) -> list[Example]:
    """Return the tiles ``chosen`` with their labels and predictions, to look at."""
    found = []
    with evaluation_mode(trainable):
        for tile in chosen:
            image, speed = tiles.pixels(tile)
            there = torch.from_numpy(image)[None].permute(0, 3, 1, 2).to(engine.device)
            with engine.autocast():
                logits = trainable.logits(there)
            prediction = predicted_speed(logits, facts)[0].cpu().numpy()
            prediction[speed == NO_DATA] = NO_DATA
            found.append(Example(image, speed, prediction, facts.targets != "binary"))
    return found


def predicted_speed(logits: Tensor, facts: Facts) -> Tensor:
    """Return the mask byte of a prediction, uint8 (n, y, x): 0, or mph from 1 on a road."""
    probabilities = logits.float().sigmoid()
    threshold = default_threshold(facts.targets)
    if facts.targets == "binary":
        return (road_probability(probabilities) >= threshold).to(torch.uint8) * ANY_ROAD_MPH
    return speed_byte(probabilities, facts.targets, facts.class_mph, threshold)
