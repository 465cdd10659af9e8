"""Metrics of a model on whole tiles, over all ranks: during training and for any model file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from geoprep.speed import NODATA
from geoprep.store.reader import StoreReader
from geoprep.texts import counted
from loaders import BatchLoader, Split
from training.checkpoint import ModelInfo
from training.data import differences, tiles_of
from training.engine.distributed import max_over_ranks, sum_in_place, sum_over_ranks
from training.engine.native import Engine
from training.evaluation.baseline import Baseline
from training.evaluation.metrics import (
    THRESHOLDS,
    ClassMetrics,
    Metrics,
    activated,
    metrics_of,
)
from training.evaluation.standing import (
    Standing,
    km_to_training,
    training_scenes,
    unlearned_classes,
)
from training.model.losses import SummedLoss
from training.model.trainable import Trainable
from training.pictures import ANY_ROAD_MPH, Example
from training.runners.decoding import DEFAULT_THRESHOLD, chosen_threshold, label_bytes
from training.runners.runner import Runner, Views, average_views, pad_batch, pad_image

Bytes = NDArray[np.uint8]


@contextmanager
def evaluation_mode(trainable: Trainable) -> Iterator[None]:
    """Put a module into evaluation mode without gradients inside the context."""
    trainable.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        trainable.train()


def validate(
    trainable: Trainable,
    engine: Engine,
    info: ModelInfo,
    loader: BatchLoader,
    *,
    on_batch: Callable[[], None] = lambda: None,
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return the metrics of a model over a loader, of all ranks together, and those per scene."""
    scenes, scene_of = _scenes(loader, engine.device)
    metrics, once = metrics_of(info, len(scenes), engine.device), CountedOnce(loader)
    sums: list[Tensor] = []
    target = trainable.prep.target
    with evaluation_mode(trainable):
        batches = iter(loader)
        for _ in range(int(max_over_ranks([len(loader)], torch.device("cpu"))[0])):
            on_batch()
            batch = next(batches, None)
            if batch is None:  # another rank has one more
                continue
            on_device = batch.to(engine.device, non_blocking=True)
            with engine.autocast():
                logits = trainable.logits(on_device.image)
            group, label = scene_of[on_device.index], once(batch.index, on_device.label)
            metrics.update(activated(logits, info.targets), label, group)
            given = logits, target(label), target.valid(label)
            sums.append(_sums(trainable.loss, *given))
        next(batches, None)  # ends the epoch of the loader
    sum_in_place(metrics.counts())
    rows = _rows(loader, scenes, scene_of, metrics)
    return {"val_loss": _loss_of(trainable.loss, sums)} | metrics.compute(), rows


def _sums(loss: nn.Module, logits: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Return the number of labelled pixels of a batch, then sums that its loss follows from."""
    count = valid.sum().float().view(1)
    if isinstance(loss, SummedLoss):
        return torch.cat([count, loss.sums(logits, target, valid)])
    total = count * loss(logits, target, valid).total  # of a user, maybe NaN without a label
    return torch.cat([count, total.where(count > 0, 0)])


def _loss_of(loss: nn.Module, sums: Sequence[Tensor]) -> float:
    """Return the loss over the batches of all ranks from their `_sums`; NaN without a label."""
    # Read only now, so that no batch waits. On the CPU, since some devices have no fp64.
    read = torch.stack([*sums]).cpu().double().sum(0).tolist() if sums else []
    length = int(max_over_ranks([len(read)], torch.device("cpu"))[0])
    labelled, *rest = sum_over_ranks(read or [0.0] * length, torch.device("cpu"))
    if not labelled:
        return math.nan
    if isinstance(loss, SummedLoss):
        return float(loss.of_sums(torch.tensor(rest, dtype=torch.float64)).total)
    return rest[0] / labelled


def examples(
    trainable: Trainable, engine: Engine, info: ModelInfo, loader: BatchLoader, chosen: list[int]
) -> list[Example]:
    """Return tiles of a loader with their labels and predictions."""

    def predicted(image: Tensor) -> Tensor:
        with engine.autocast():
            logits = trainable.logits(image.to(engine.device))
        probabilities = activated(logits, info.targets)
        return decoded_label(probabilities, info, DEFAULT_THRESHOLD)

    with evaluation_mode(trainable):
        return [_example(*loader.tiles.pixels(tile), info, predicted) for tile in chosen]


def _example(
    image: Bytes, label: Bytes, info: ModelInfo, predicted: Callable[[Tensor], Tensor]
) -> Example:
    """Return a tile with the label that is predicted from it, uint8 (1, band, y, x)."""
    padded = predicted(torch.from_numpy(image)[None].permute(0, 3, 1, 2))[0].cpu().numpy()
    prediction = padded[: len(label), : len(label)]
    prediction[label == NODATA] = NODATA
    return Example(image, label, prediction, info.targets != "binary", info.classes)


def decoded_label(probabilities: Tensor, info: ModelInfo, threshold: float) -> Tensor:
    """Return the label, uint8 (n, y, x): classes, or 0 for background and mph from 1."""
    if info.has_classes or info.class_mph:
        return label_bytes(probabilities, info, threshold)
    return (probabilities[:, -1] >= threshold).to(torch.uint8) * ANY_ROAD_MPH


@dataclass(frozen=True, kw_only=True)
class Evaluation(Standing):
    """Metrics of a model: in all, per scene, per threshold k / 256 (of roads).

    ``confusion`` are the pixels of each class in the label (rows) and in the prediction (columns).
    """

    title: str
    level: int
    tiles: int
    threshold: float
    sweep: list[dict[str, float]]
    notes: list[str]
    training_scenes: int = 0
    classes: tuple[str, ...] = ()
    confusion: list[list[int]] = field(default_factory=list)


def evaluate_runner(
    runner: Runner,
    info: ModelInfo,
    stores: Sequence[str | Path | StoreReader],
    split: Split = "val",
    *,
    level: int | None = None,
    threshold: float | None = None,
    tta: Views = "none",
    batch_size: int = 4,
    baseline: bool = False,
    quiet: bool = True,
) -> Evaluation:
    """Return the metrics of a model on a split of one or more stores.

    If the model was trained with folds, ``train`` and ``val`` are the scenes of its fold instead of
    the splits of the stores.
    """
    info = replace(info, level=info.level if level is None else level)
    tiles = tiles_of(info, stores, split, progress=False if quiet else None)
    folds = info.folds if split in ("train", "val") else None
    fold = "" if folds is None else f" of fold {info.fold or 0} of {folds}, as in training"
    title = f"{counted(len(tiles), f'{split} tile')}{fold}, {info.level} x {info.level} pixels"
    notes = differences(info, tiles.stores)
    if split in ("train", "all"):
        which = "these tiles" if split == "train" else "part of these tiles"
        notes.append(f"if its stores are the same, the model was trained on {which}")
    loader = BatchLoader(tiles, batch_size, shuffle=False)
    scenes, scene_of = _scenes(loader, runner.device)
    threshold, device = chosen_threshold(info, threshold), runner.device
    metrics, once = metrics_of(info, len(scenes), device, threshold), CountedOnce(loader)
    simple = Baseline(info, tiles, threshold) if baseline else None
    for batch in loader:
        places = batch_size if runner.fixed_batch else 0
        image = pad_batch(pad_image(batch.image), places)
        probabilities = average_views(runner, image, tta)[: len(batch)].permute(0, 3, 1, 2)
        on_device = batch.to(device)
        label = once(batch.index, on_device.label)
        metrics.update(probabilities, label, scene_of[on_device.index])
        if simple is not None:
            simple.update(probabilities, batch.image, label, batch.index)
    sum_in_place(metrics.counts())
    if lost := int(metrics.lost):
        notes.append(f"the model returned NaN for {counted(lost, 'labelled pixel')}, left out")
    notes += simple.notes if simple else []
    sweep = {} if isinstance(metrics, ClassMetrics) else metrics.sweep()
    steps = zip(*(values.tolist() for values in sweep.values()), strict=True)
    training = training_scenes(info, tiles.stores)
    count, km = sum(map(len, training)), km_to_training(loader, training)
    each = zip(_rows(loader, scenes, scene_of, metrics), km, strict=True)
    figures = metrics.compute()
    if split != "val":  # thresholds are chosen on the split val only
        figures = {n: value for n, value in figures.items() if n not in THRESHOLDS}
    return Evaluation(
        score=info.score,
        split=split,
        title=title,
        level=tiles.side,
        tiles=len(tiles),
        threshold=math.nan if info.has_classes else threshold,
        metrics=figures,
        scenes=[row | {"km_to_training": far} for row, far in each],
        sweep=[dict(zip(sweep, step, strict=True)) for step in steps],
        notes=notes,
        classes=info.class_names,
        confusion=metrics.confusion() if isinstance(metrics, ClassMetrics) else [],
        baseline=simple.compute() if simple else {},
        training_scenes=count,
        rescale=info.rescale,
        model=info.model,
        unlearned=unlearned_classes(info, tiles.stores, training) if info.has_classes else [],
    )


class CountedOnce:
    """Labels of tiles in which a pixel of a scene counts once, though tiles overlap.

    It counts for that of the tiles that hold it whose centre is nearest, of equally near ones for
    the first. In others it becomes nodata.
    """

    def __init__(self, loader: BatchLoader) -> None:
        tiles, table = loader.tiles, loader.tiles.table
        # In halves of a pixel of the finest level, in which centres are whole numbers too.
        self._sides = 2 * np.array(tiles.origin.finest)[table["store"]]
        self._corners = 2 * np.stack([table["row"], table["col"]], axis=1).astype(np.int64)
        keys = np.stack([table["store"], table["scene"]], axis=1)
        self._scene = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
        self._order = np.argsort(self._scene, kind="stable")
        self._starts = np.searchsorted(self._scene[self._order], self._scene)
        self._ends = np.searchsorted(self._scene[self._order], self._scene, side="right")

    def __call__(self, index: Tensor, label: Tensor) -> Tensor:
        """Return the label, uint8 (n, y, x), of whole tiles with these numbers."""
        masks = [self.mask(tile, label.shape[-1]) for tile in index.tolist()]
        if all(mask.all() for mask in masks):
            return label
        return label.masked_fill(~torch.from_numpy(np.stack(masks)).to(label.device), NODATA)

    def mask(self, tile: int, side: int) -> NDArray[np.bool_]:
        """Return which pixels of a tile count for it, bool (y, x) at a level."""
        others = self._order[self._starts[tile] : self._ends[tile]]
        offsets = self._corners[others] - self._corners[tile]
        near = (np.abs(offsets) < self._sides[tile]).all(axis=1) & (others != tile)
        pairs = zip(offsets[near].tolist(), (others[near] < tile).tolist(), strict=True)
        return _nearest(
            side, int(self._sides[tile]), tuple((y, x, before) for (y, x), before in pairs)
        )


@lru_cache(maxsize=256)
def _nearest(
    side: int, length: int, others: tuple[tuple[int, int, bool], ...]
) -> NDArray[np.bool_]:
    """Return the pixels of a tile that count for it, bool (side, side).

    ``others`` are the offsets of tiles that overlap it, and whether they come before it. They and
    its ``length`` are in the same unit.
    """
    centres = (2 * np.arange(side) + 1) * length // (2 * side) - length // 2
    y, x, mask = centres[:, None], centres[None], np.ones((side, side), np.bool_)
    for down, right, before in others:
        inside = (np.abs(y - down) < length / 2) & (np.abs(x - right) < length / 2)
        # Nearer to the other centre where 2 p o > o o.
        nearer = 2 * (y * down + x * right) - down * down - right * right
        mask &= ~(inside & (nearer > -before))
    return mask


def _scenes(loader: BatchLoader, device: torch.device) -> tuple[list[str], Tensor]:
    """Return the ids of all scenes, and the number of the scene of each tile, int64 (tile,)."""
    tiles = loader.tiles
    pairs = np.stack([tiles.table["store"], tiles.table["scene"]], axis=1)
    scenes, scene_of = np.unique(pairs, axis=0, return_inverse=True)
    ids = [str(tiles.stores[store].scenes.id[scene]) for store, scene in scenes.tolist()]
    return ids, torch.from_numpy(scene_of.reshape(-1).astype(np.int64)).to(device)


def _rows(
    loader: BatchLoader, scenes: Sequence[str], scene_of: Tensor, metrics: Metrics
) -> list[dict[str, Any]]:
    """Return id, number of tiles, share of road and metrics of each scene."""
    scene, road = scene_of.cpu().numpy(), loader.tiles.table["road_fraction"]
    tiles = np.bincount(scene)
    share = np.bincount(scene, road) / tiles
    column = loader.tiles.stores[0].meta.share_column
    each = zip(scenes, tiles.tolist(), share.tolist(), metrics.by_group(), strict=True)
    return [
        {"scene": name, "tiles": count, column: roads} | figures
        for name, count, roads, figures in each
    ]
