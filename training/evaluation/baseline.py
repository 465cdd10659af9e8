"""Scores of simple methods on the pixels that a model is evaluated on, for comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoprep.errors import UsageError
from geoprep.speed import NODATA
from geoprep.store.reader import StoreReader
from training.checkpoint import ModelInfo
from training.data import Tiles, count_tiles, tiles_of
from training.engine.distributed import sum_in_place
from training.evaluation.metrics import RoadMetrics, metrics_of

MOST_TILES = 200
"""Tiles of a split that are read; of more, evenly spaced ones."""

LEARNED, JUDGED = 50_000, 400_000
"""Pixels that the random forest learns from, and that all methods are scored on, at most."""

TREES = 50

WINDOWS = (5, 21)
"""Sides of the windows around a pixel, whose mean and deviation the forest sees, in pixels."""

INSTALL = "the random forest needs scikit-learn: pip install 'geoprep[baseline]'"


class Baseline:
    """The most common class (of roads: road everywhere) and a random forest beside a model.

    All are scored on the same sample of pixels: every few tiles, rows and columns. The forest sees
    the values that the images had before the store stretched them, between the limits of a scene.
    """

    def __init__(self, info: ModelInfo, tiles: Tiles, threshold: float) -> None:
        self._info = info if info.has_classes else replace(info, targets="binary")
        self._every = -(-len(tiles) // MOST_TILES)
        self._tiles = -(-len(tiles) // self._every)
        self._step = max(1, math.ceil(math.sqrt(self._tiles * tiles.side**2 / JUDGED)))
        self._source = tiles
        pixels, label = _training_sample(info, tiles.stores)
        self._learned, self._common = len(label), torch.zeros(len(info.class_names) or 2)
        self._common[np.bincount(label).argmax() if info.has_classes else 1] = 1
        self._forest, forest_threshold = _forest(pixels, label, roads=not info.has_classes)
        self.notes = [] if self._forest is not None else [INSTALL]
        self._scores = {
            "model": self._metrics(threshold),
            "most_common": self._metrics(),
            **({} if self._forest is None else {"forest": self._metrics(forest_threshold)}),
        }

    def _metrics(self, threshold: float = 0.5) -> Any:  # noqa: ANN401 - of roads or classes
        return metrics_of(self._info, 1, torch.device("cpu"), threshold)

    def update(self, probabilities: Tensor, image: Tensor, label: Tensor, index: Tensor) -> None:
        """Score the sampled pixels of a batch (n, band, y, x) with predictions and tile numbers."""
        step, (height, width) = self._step, label.shape[-2:]
        for number in (index.cpu() % self._every == 0).nonzero().flatten().tolist():
            truth = label[number, ::step, ::step].cpu()[None]
            predicted = probabilities[number, :, :height:step, :width:step].cpu()[None]
            self._scores["model"].update(predicted, truth)
            common = self._common.view(1, -1, 1, 1).expand(1, -1, *truth.shape[1:])
            self._scores["most_common"].update(common, truth)
            if self._forest is not None:
                values = image[number].permute(1, 2, 0).cpu().numpy()
                surroundings = _surroundings(_unstretched(values, self._source, int(index[number])))
                pixels = surroundings[::step, ::step].reshape(-1, surroundings.shape[2])
                guessed = np.zeros((len(pixels), len(self._common)), np.float32)
                guessed[:, self._forest.classes_] = self._forest.predict_proba(pixels)
                grid = torch.from_numpy(guessed.T.reshape(1, -1, *truth.shape[1:]))
                self._scores["forest"].update(grid, truth)

    def compute(self) -> dict[str, float]:
        """Return the score of each method, and the tiles and pixels of the sample.

        The score is road IoU, or the mean IoU of classes; ``learned`` are the training pixels.
        """
        for metrics in self._scores.values():
            sum_in_place(metrics.counts())
        name = self._info.score
        scores = {method: metrics.compute()[name] for method, metrics in self._scores.items()}
        pixels = int(self._scores["most_common"].counts()[0].sum())
        return scores | {"tiles": self._tiles, "pixels": pixels, "learned": self._learned}


def _unstretched(image: NDArray[np.uint8], tiles: Tiles, tile: int) -> NDArray[np.float32]:
    """Return the source values of a tile's bytes (y, x, band); as they are if not stretched."""
    store, scene = tiles.stores[tiles.table["store"][tile]], tiles.table["scene"][tile]
    bands = [store.meta.bands.index(name) for name in tiles.bands]
    low, high = store.scenes.limits[scene][bands].T
    known = high > low  # NaN: not stretched
    low, high = np.where(known, low, 0), np.where(known, high, 255)
    values: NDArray[np.float32] = (low + image * ((high - low) / 255)).astype(np.float32)
    values[~image.any(axis=2)] = 0  # nodata
    return values


def _surroundings(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return bands (y, x, band) with means and standard deviations of the `WINDOWS` around."""
    from scipy.ndimage import uniform_filter

    parts = [pixels]
    for side in WINDOWS:
        mean = uniform_filter(pixels, (side, side, 1))
        square = uniform_filter(pixels * pixels, (side, side, 1))
        parts += [mean, np.sqrt(np.maximum(square - mean * mean, 0))]
    return np.concatenate(parts, axis=2)


def _training_sample(
    info: ModelInfo, stores: Sequence[StoreReader]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return random labelled pixels of the training tiles, and their class, or 1 for road."""
    if not count_tiles(info, stores, "train"):
        locations = ", ".join(store.location for store in stores)
        raise UsageError(
            "baseline",
            f"learns from training scenes, and {locations} has none: evaluate on the "
            "store that the model was trained on, or leave it out",
        )
    tiles = tiles_of(info, stores, "train", residency="stream", limit="1GiB")
    chosen = range(0, len(tiles), -(-len(tiles) // MOST_TILES))
    random, samples = np.random.default_rng(0), []
    for tile in chosen:
        image, label = tiles.pixels(tile)
        labelled = np.flatnonzero(label != NODATA)
        drawn = random.choice(labelled, min(len(labelled), LEARNED // len(chosen)), replace=False)
        surroundings = _surroundings(_unstretched(image, tiles, tile))
        pixels = surroundings.reshape(-1, surroundings.shape[2])
        samples.append((pixels[drawn], label.ravel()[drawn]))
    pixels, label = (np.concatenate(parts) for parts in zip(*samples, strict=True))
    return pixels, label.astype(np.int64) if info.has_classes else (label > 0).astype(np.int64)


def _forest(
    pixels: NDArray[np.float32], label: NDArray[np.int64], *, roads: bool
) -> tuple[Any, float]:
    """Return a random forest and its best threshold of roads; None without scikit-learn."""
    try:
        from sklearn.ensemble import RandomForestClassifier
    except ImportError:
        return None, 0.5
    forest = RandomForestClassifier(
        n_estimators=TREES,
        min_samples_leaf=3,
        oob_score=roads,
        n_jobs=torch.get_num_threads(),
        random_state=0,
    )
    forest.fit(pixels, label)
    if not roads or len(forest.classes_) < 2:
        return forest, 0.5
    # Judged out of bag: each tree on the training pixels that it has not seen.
    judged = RoadMetrics("binary")
    probability = torch.from_numpy(forest.oob_decision_function_[:, 1])
    judged.update(probability.view(1, 1, 1, -1), torch.from_numpy(label).view(1, 1, -1).byte())
    return forest, judged.compute()["best_threshold"]
