"""Spread of a model over scenes, gaps between groups of them, and the next steps that follow."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.store.reader import StoreReader
from geoprep.store.schema import SHARE_COLUMNS
from geoprep.texts import counted
from geoprep.views.footprints import outlines
from loaders import BatchLoader, Split, select
from training.checkpoint import ModelInfo
from training.data import folds_of
from training.model.build import RESNET34_UNET

SCORES = {"road_iou": "road IoU", "mean_iou": "mean IoU", "bin_iou": "bin IoU"}
"""Metrics for comparing scenes and models, if a model has them. One of the first two chooses
the best checkpoint."""

NEW_PLACE_KM = 10.0
"""A scene farther than this from all training scenes is of a new place."""

GAP = 0.1
"""Mean scores of two groups of scenes that differ by more, and by two standard errors."""

COLOURS, EASY = 0.15, 0.9
"""Share of the error of a random forest that a model must leave out to have learned shapes, and
the score of both from which that cannot be said."""

FALLS = {"loss": 0.05, "val_loss": 0.02}
"""Share by which the losses of an undertrained model fall in the last quarter of the epochs."""

LEAST_ROAD = 0.001
"""Share of road, or of classes without background, from which the score of a scene counts."""

NEAR, FAR = "near training scenes", f"more than {NEW_PLACE_KM:g} km from them"
"""Names of the two groups of scenes whose scores are compared."""

EARTH_RADIUS_M = 6378137.0

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Results of a model and of its training, from which facts and next steps follow.

    ``score`` is the metric that scenes are compared by, ``metrics`` are those of all tiles,
    ``scenes`` those of each scene of the ``split``, and ``history`` is metrics.csv. ``unlearned``
    are the classes without a training pixel, ``rescale`` is the rule of the training stores, and
    ``model`` the specification of the model. ``baseline`` see `Baseline.compute`.
    """

    score: str
    metrics: dict[str, float] = field(default_factory=dict)
    scenes: Rows
    split: Split = "val"
    history: Rows = ()
    unlearned: Sequence[str] = ()
    rescale: str = ""
    model: str = ""
    baseline: dict[str, float] = field(default_factory=dict)

    def facts(self) -> list[tuple[str, str]]:
        """Return spread, worst and best scenes, places and threshold, as names and values."""
        title, scores = SCORES[self.score], _scores(self.scenes, self.score)
        if not len(scores):
            return []
        low, middle, high = np.quantile(scores, (0.1, 0.5, 0.9))
        spread = f"median {middle:.3f}, 10 % to 90 %: {low:.3f} to {high:.3f}"
        facts = [(f"{title} of {counted(len(scores), 'scene')}", spread)]
        ranked = sorted(_known(self.scenes, self.score), key=lambda row: float(row[self.score]))
        for name, rows in (("worst", ranked[:3]), ("best", ranked[:2:-1][:3])):
            facts.append((name, ", ".join(f"{r['scene']} {r[self.score]:.3f}" for r in rows)))
        if "best_road_iou" in self.metrics:
            cost = self.metrics["best_road_iou"] - self.metrics["road_iou"]
            best = f"the best of these tiles, {self.metrics['best_threshold']:.3f}"
            facts.append(("cost of the threshold", f"{cost:.3f} of {title} against {best}"))
        if places := self.places():
            easy, hard = places[0].mean(), places[1].mean()
            near, far = (counted(len(scores), "scene") for scores in places)
            facts.append((NEAR, f"mean of {near} {easy:.3f}"))
            facts.append((FAR, f"mean of {far} {hard:.3f} ({hard - easy:+.3f})"))
        return [fact for fact in facts if fact[1]]

    def places(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return the scores of scenes of known places (`NEAR`) and of new ones (`FAR`), if both."""
        placed = [(row.get("km_to_training", math.nan), row) for row in self.scenes]
        near = _scores([row for km, row in placed if km <= NEW_PLACE_KM], self.score)
        far = _scores([row for km, row in placed if km > NEW_PLACE_KM], self.score)
        return (near, far) if len(near) and len(far) else None

    def next_steps(self) -> list[str]:
        """Return the next steps, by what they gain; none unless a rule's evidence is there.

        Only validation scenes give advice: a model that followed that of test scenes would have
        been fitted to them. That a forest is better is said of all.
        """
        if self.split != "val":
            return [*_behind(self)]
        rules = (_behind, _unlearned, _undertrained, _only_colours, _elsewhere)
        return [step for rule in rules for step in rule(self)]


def _unlearned(standing: Standing) -> Iterator[str]:
    if standing.unlearned:
        yield (
            f"no training pixel has the class {', '.join(standing.unlearned)}: add training scenes "
            "that have it"
        )


def _undertrained(standing: Standing) -> Iterator[str]:
    """Yield a step if both losses fall until the end, and the best epoch is one of the last.

    The training loss alone falls with the learning rate, so epochs must have been validated.
    """
    rows = [row for row in standing.history if row["level"] == standing.history[-1]["level"]]
    size = max(1, len(rows) // 4)
    before, last = rows[-2 * size : -size], rows[-size:]
    losses = [(_scores(before, name), _scores(last, name), FALLS[name]) for name in FALLS]
    falls = [len(a) and len(b) and b.mean() < (1 - least) * a.mean() for a, b, least in losses]
    scores = _scores(rows, standing.score)
    late = not len(scores) or scores.argmax() >= len(scores) - size
    if len(rows) > 2 and all(falls) and late:
        yield (
            f"the loss still falls, from {before[-1]['loss']:.3g} to {last[-1]['loss']:.3g} in the "
            f"last quarter of {len(rows)} epochs: train longer, such as `epochs` {2 * len(rows)}, "
            "or twice the `time`"
        )


def _behind(standing: Standing) -> Iterator[str]:
    """Yield both scores and what to do wherever a forest is better than the model."""
    forest, model = (standing.baseline.get(name, math.nan) for name in ("forest", "model"))
    if forest > model:
        small = ["`model` unet-small, which sees more images in equal time"]
        kept = ["a store whose images share their limits (`rescale` none of 8-bit images, or city)"]
        ways = small * (standing.model == RESNET34_UNET) + kept * (standing.rescale == "scene")
        use = f"use {', or '.join(ways)}, " if ways else ""
        scores = f"a random forest has {forest:.3f}, the model {model:.3f}"
        yield f"{scores}: {use}train longer (`epochs` or `time`), or take the forest"


def _only_colours(standing: Standing) -> Iterator[str]:
    """Yield a step if a trained model is hardly better than a forest on pixels and surroundings."""
    forest, model = (standing.baseline.get(name, math.nan) for name in ("forest", "model"))
    little = min(model, forest) < EASY and 0 <= model - forest < COLOURS * (1 - forest)
    if little and not [*_undertrained(standing)]:
        yield (
            f"the model scores {model:.2f}, a random forest {forest:.2f}. It has learned colours, "
            "and little of shapes: show it more context (a larger `crop`, or a coarser `level`), "
            "add training scenes, or start from other weights (`init_from`)"
        )


def _elsewhere(standing: Standing) -> Iterator[str]:
    if (places := standing.places()) is None:
        return
    easy, hard = places
    less, many = easy.mean() - hard.mean(), min(len(easy), len(hard)) > 1
    if many and less > max(GAP, 2 * math.hypot(_error(easy), _error(hard))):
        even = "build the stores with `rescale` scene, which evens out their colours, and "
        yield (
            f"scenes score {less:.2f} less in other places ({NEAR} {easy.mean():.2f}, {FAR} "
            f"{hard.mean():.2f}): {even if standing.rescale == 'none' else ''}add training scenes "
            "of those places, or of similar ones"
        )


def _scores(rows: Rows, name: str) -> NDArray[np.float64]:
    """Return a figure of the rows that have it."""
    return np.array([row[name] for row in _known(rows, name)], np.float64)


def _known(rows: Rows, name: str) -> list[Mapping[str, Any]]:
    """Return the rows that have a figure; without scenes that have hardly a road."""
    shares = SHARE_COLUMNS.values()
    enough = (row for row in rows if min(row.get(share, 1) for share in shares) >= LEAST_ROAD)
    return [row for row in enough if not math.isnan(row.get(name, math.nan))]


def _error(scores: NDArray[np.float64]) -> float:
    """Return the standard error of the mean."""
    return float(scores.std(ddof=1)) / math.sqrt(len(scores))


def read_history(folder: Path) -> Rows:
    """Return the rows of a run's metrics.csv; none without one, or with that of another program."""
    try:
        with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(file, restval=""))
    except (OSError, ValueError, csv.Error):
        return ()
    known = bool(table) and {"level", "loss"} <= table[0].keys()
    return (
        [{name: _value(text) for name, text in row.items() if name} for row in table]
        if known
        else ()
    )


def _value(text: str) -> float | str:
    """Return the number in a cell; NaN if it is empty, and any other text as it is."""
    try:
        return float(text or "nan") if not text.isdecimal() else int(text)
    except ValueError:
        return text


def training_scenes(info: ModelInfo, stores: Sequence[StoreReader]) -> list[NDArray[np.uint32]]:
    """Return the training scenes of each store; none of stores the model was not trained on."""
    names, scenes = {Path(location).name for location in info.stores}, []
    for store in stores:
        tiles = select(store, "train", folds_of(info)).tiles
        tiles = tiles if Path(store.location).name in names else tiles[:0]
        scenes.append(np.unique(store.tiles.scene[tiles]))
    return scenes


def unlearned_classes(
    info: ModelInfo, stores: Sequence[StoreReader], training: Sequence[NDArray[np.uint32]]
) -> list[str]:
    """Return the classes without a pixel in all `training_scenes`; none if there are no scenes."""
    learned: set[str] = set()
    for store, scenes in zip(stores, training, strict=True):
        pixels = store.class_pixels[np.isin(store.tiles.scene, scenes)].any(axis=0)
        learned.update(np.array(store.meta.class_names)[pixels])
    has_scenes = any(map(len, training))
    return [name for name in info.class_names if has_scenes and name not in learned]


def km_to_training(loader: BatchLoader, training: Sequence[NDArray[np.uint32]]) -> list[float]:
    """Return the distance of each scene of a loader to the nearest of `training_scenes` in km.

    It is NaN where the scene, or all training scenes, are not georeferenced.
    """
    stores, table = loader.tiles.stores, loader.tiles.table
    shapes = [outlines(store, "scene", "EPSG:3857")[0] for store in stores]
    trained = [areas[scenes] for areas, scenes in zip(shapes, training, strict=True)]
    pairs = np.unique(np.stack([table["store"], table["scene"]], axis=1), axis=0).tolist()
    areas = np.array([shapes[store][scene] for store, scene in pairs], object)
    tree, km = shapely.STRtree(np.concatenate(trained)), np.full(len(areas), math.nan)
    (placed, _), metres = tree.query_nearest(areas, return_distance=True, all_matches=False)
    # Mercator magnifies by the hyperbolic cosine.
    y = shapely.get_y(shapely.centroid(areas[placed]))
    km[placed] = metres / 1000 / np.cosh(y / EARTH_RADIUS_M)
    result: list[float] = km.tolist()
    return result
