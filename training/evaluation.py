"""How good a network is on whole tiles, over all ranks: while it trains, and afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geoprep.speed import NODATA
from geoprep.store import Store
from loaders import (
    BatchLoader,
    DevicePrep,
    DeviceTiles,
    Normalize,
    RamTiles,
    SpeedTarget,
    Split,
    StreamTiles,
)
from training.checkpoint import Facts
from training.data import differences, tiles_of
from training.decode import chosen_threshold, default_threshold, road_probability, speed_byte
from training.engine import Engine, add_up, add_up_in_place, share_buffers
from training.inference import Runner, Views, average_views, pad_batch
from training.metrics import STEPS, RoadMetrics, Sweep
from training.module import Trainable
from training.monitor import ANY_ROAD_MPH, Example


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
    on_batch: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return the metrics of a network over a loader, of all ranks together.

    Parameters
    ----------
    trainable
        Whose ``logits`` are looked at; its loss is as it is, not compiled.
    engine
        How it computes.
    facts
        What the logits mean.
    loader
        Of whole tiles.
    on_batch
        Called before each batch; may raise to stop.

    Returns
    -------
    dict
        ``val_loss``, the mean over tiles, then as `training.metrics.RoadMetrics.compute`;
        ``road_iou`` is that of the usual threshold, and ``threshold`` the one to predict with.
    """
    metrics = RoadMetrics(facts.targets, facts.class_mph, device=engine.device)
    total, tiles = torch.zeros((), dtype=torch.float64, device=engine.device), 0
    target = trainable.prep.target
    with evaluation_mode(trainable):
        share_buffers(trainable)
        for batch in loader:
            on_batch()
            there = batch.to(engine.device, non_blocking=True)
            with engine.autocast():
                logits = trainable.logits(there.image)
            metrics.update(logits.float().sigmoid(), there.speed)
            parts = trainable.loss(logits, target(there.speed), target.valid(there.speed))
            total, tiles = total + len(there) * parts.total.double(), tiles + len(there)
    add_up_in_place(metrics.counts())
    summed, count = add_up([total.item(), tiles], engine.device)
    return {"val_loss": summed / max(count, 1)} | metrics.compute()


def examples(
    trainable: Trainable,
    engine: Engine,
    facts: Facts,
    loader: BatchLoader,
    chosen: Sequence[int],
) -> list[Example]:
    """Return tiles of a loader with their labels and predictions, to look at.

    Parameters
    ----------
    trainable, engine, facts, loader
        As for `evaluate`.
    chosen
        Numbers of the tiles.
    """
    found = []
    with evaluation_mode(trainable):
        for tile in chosen:
            image, speed = loader.tiles.pixels(tile)
            there = torch.from_numpy(image)[None].permute(0, 3, 1, 2).to(engine.device)
            with engine.autocast():
                logits = trainable.logits(there)
            prediction = predicted_speed(logits, facts)[0].cpu().numpy()
            prediction[speed == NODATA] = NODATA
            found.append(Example(image, speed, prediction, facts.targets != "binary"))
    return found


def predicted_speed(logits: Tensor, facts: Facts) -> Tensor:
    """Return the mask byte of a prediction, uint8 (n, y, x): 0, or mph from 1 on a road."""
    probabilities = logits.float().sigmoid()
    threshold = default_threshold(facts.targets)
    if facts.targets == "binary":
        return (road_probability(probabilities) >= threshold).to(torch.uint8) * ANY_ROAD_MPH
    return speed_byte(probabilities, facts.targets, facts.class_mph, threshold)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How good a network is.

    Attributes
    ----------
    title
        What was looked at, for people.
    level
        Tile side in pixels.
    tiles
        How many.
    threshold
        Least probability of a road that the figures are of.
    metrics
        By name, see `training.metrics.RoadMetrics`.
    scenes
        One by one, in the order of the stores: ``scene``, its id, the number of its ``tiles``, and
        its metrics.
    sweep
        The road mask at every ``threshold`` k / 256: ``precision``, ``recall``, ``road_iou``.
    notes
        What a person should know about the figures.
    """

    title: str
    level: int
    tiles: int
    threshold: float
    metrics: dict[str, float]
    scenes: list[dict[str, Any]]
    sweep: list[dict[str, float]]
    notes: list[str]


def evaluate_runner(
    runner: Runner,
    facts: Facts,
    stores: Sequence[str | Path | Store],
    split: Split = "val",
    *,
    level: int | None = None,
    threshold: float | None = None,
    tta: Views = "none",
    batch_size: int = 4,
    quiet: bool = True,
) -> Evaluation:
    """Return how good a network is on a split of one or more stores.

    Where it was trained on one fold of several, training and validation tiles are those of that
    fold, not of the split that the store holds.

    Parameters
    ----------
    runner
        The network, see `training.inference.runner`.
    facts
        What it is for.
    stores
        One or several, with the bands that the network was trained on.
    split
        ``val``, ``train``, ``test`` or ``all``.
    level
        Tile side in pixels; None for the one trained on last.
    threshold
        Least probability of a road; None for that of the checkpoint, as in a map.
    tta
        Views averaged over.
    batch_size
        Tiles per batch and rank.
    quiet
        No progress bar.

    Raises
    ------
    StoreError, UsageError
        A store cannot be used, or does not belong to the network.
    """
    facts = replace(facts, level=facts.level if level is None else level)
    tiles = tiles_of(facts, stores, split, progress=False if quiet else None)
    folds = facts.folds if split in ("train", "val") else None
    which = "" if folds is None else f" of fold {facts.fold or 0} of {folds}, as in training"
    title = f"{len(tiles)} {split} tiles{which}, {facts.level} x {facts.level} pixels"
    notes = differences(facts, tiles.stores)
    if split in ("train", "all"):
        which = "these tiles" if split == "train" else "part of these tiles"
        notes.append(f"the network has learned from {which}, if its stores are the same")
    names, scene_of = _scenes(tiles)
    scene_of = scene_of.to(runner.device)
    threshold = chosen_threshold(facts.targets, threshold, facts.threshold)
    how: dict[str, Any] = {"threshold": threshold, "device": runner.device}
    metrics = RoadMetrics(facts.targets, facts.class_mph, groups=len(names), **how)
    pad = DevicePrep(Normalize(facts.mean, facts.std), SpeedTarget("binary")).pad
    for batch in BatchLoader(tiles, batch_size, shuffle=False):
        image = pad_batch(pad(batch.image), batch_size if runner.fixed_batch else 0)
        found = average_views(runner, image, tta)[: len(batch)].permute(0, 3, 1, 2)
        there = batch.to(runner.device)
        metrics.update(found, there.speed, scene_of[there.index])
    add_up_in_place(metrics.counts())
    if lost := int(metrics.lost):
        notes.append(f"the network gave no number for {lost:,} labelled pixels: left out")
    each = zip(names, torch.bincount(scene_of).tolist(), metrics.by_group(), strict=True)
    return Evaluation(
        title=title,
        level=tiles.side,
        tiles=len(tiles),
        threshold=threshold,
        metrics=metrics.compute(),
        scenes=[{"scene": name, "tiles": count} | figures for name, count, figures in each],
        sweep=_steps(metrics.sweep()),
        notes=notes,
    )


def _scenes(tiles: RamTiles | DeviceTiles | StreamTiles) -> tuple[list[str], Tensor]:
    """Return the names of all scenes, and the number of each tile's, int64 (tile,)."""
    pairs = np.stack([tiles.table["store"], tiles.table["scene"]], axis=1)
    scenes, number = np.unique(pairs, axis=0, return_inverse=True)
    names = [str(tiles.stores[store].scenes.id[scene]) for store, scene in scenes.tolist()]
    return names, torch.from_numpy(number.reshape(-1).astype(np.int64))


def _steps(sweep: Sweep) -> list[dict[str, float]]:
    """Return a row per threshold."""
    rows = zip(*(values.tolist() for values in sweep), strict=True)
    names = ("threshold", "precision", "recall", "road_iou")
    return [dict(zip(names, (k / STEPS, *row), strict=True)) for k, row in enumerate(rows)]
