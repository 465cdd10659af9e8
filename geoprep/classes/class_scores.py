"""Score rasters of classes against ground truth, per scene and over all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion, distance_transform_edt

from geoprep.classes.class_rasters import NODATA, class_names, raster_files, read_classes
from geoprep.errors import UsageError
from geoprep.labels.raster_rules import ClassRaster
from geoprep.sources.label_matching import named_like


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """Pixels of a scene, which add up over scenes."""

    # (class, class + 1): by class in the ground truth, and in the proposal or without one.
    confusion: NDArray[np.int64]
    # (class, 4): boundary pixels of the ground truth near one of the proposal, and all of them;
    # then the same of the proposal.
    boundary: NDArray[np.int64]

    def __add__(self, other: ClassCounts) -> ClassCounts:
        return ClassCounts(self.confusion + other.confusion, self.boundary + other.boundary)

    def figures(self, names: Sequence[str]) -> dict[str, float]:
        """Return IoU per class, and means over the classes in the ground truth; NaN: no pixels."""
        table = self.confusion.astype(np.float64)
        hit, truth = np.diagonal(table), table.sum(axis=1)
        proposed = table.sum(axis=0)[: len(names)]
        there = truth > 0
        near_truth, all_truth, near_found, all_found = self.boundary.T.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            iou = hit / (truth + proposed - hit)
            f1 = 2 * hit / (truth + proposed)
            recall, precision = near_truth / all_truth, near_found / np.maximum(all_found, 1)
            edges = np.nan_to_num(2 * recall * precision / (recall + precision))
        edged = there & (all_truth > 0)
        values = {
            "mean_iou": _mean(iou[there]),
            "mean_f1": _mean(f1[there]),
            "accuracy": hit.sum() / truth.sum() if truth.sum() else math.nan,
            "boundary_f1": _mean(edges[edged]),
        }
        values |= {f"iou_{name}": value for name, value in zip(names, iou, strict=True)}
        return {name: float(value) for name, value in values.items()}


def count_classes(
    truth: NDArray[np.uint8], proposal: NDArray[np.uint8], classes: int, boundary: float
) -> ClassCounts:
    """Return the counts of one scene from uint8 (y, x) numbers of classes; 255 without.

    Pixels without ground truth do not count. ``boundary`` is the largest distance in pixels between
    boundaries that match.
    """
    known = truth < classes
    cell = truth[known].astype(np.int64) * (classes + 1) + np.minimum(proposal[known], classes)
    size = classes * (classes + 1)
    confusion = np.bincount(cell, minlength=size).reshape(classes, classes + 1)
    edges = np.zeros((classes, 4), np.int64)
    for number in range(classes):
        true_edge, proposed_edge = (_edge(label == number) & known for label in (truth, proposal))
        edges[number] = (
            *_near(true_edge, proposed_edge, boundary),
            *_near(proposed_edge, true_edge, boundary),
        )
    return ClassCounts(confusion.astype(np.int64), edges)


def _edge(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the pixels of a mask next to a pixel outside it; not those at the image's border."""
    inside: NDArray[np.bool_] = mask & ~binary_erosion(mask, border_value=1)
    return inside


def _near(pixels: NDArray[np.bool_], others: NDArray[np.bool_], distance: float) -> tuple[int, int]:
    """Return how many pixels are near one of the others, and how many there are."""
    count = int(pixels.sum())
    if not count or not others.any():
        return 0, count
    return int((distance_transform_edt(~others)[pixels] <= distance).sum()), count


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else math.nan


def score_rasters(
    truth: Path,
    proposal: Path,
    rule: ClassRaster | None = None,
    *,
    boundary: float = 2.0,
    scene_key: Callable[[str], str] = str,
    only: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return the scores of rasters of classes, files or folders of one per scene, as plain values.

    A scene without a proposal is missed: its pixels count as without a class. Each proposal is read
    on the grid of its ground truth. Without a ``rule`` the values of the ground truth are the
    numbers of the proposal's classes. ``boundary`` is the largest distance in pixels between
    boundaries that match; ``scene_key`` returns the name of a scene from that of its file, and
    ``only`` are those that count, None: all.
    """
    pairs = _pairs(raster_files(truth), raster_files(proposal), scene_key)
    pairs = [pair for pair in pairs if only is None or scene_key(pair[0]) in only]
    if not any(found for _, _, found in pairs):
        raise UsageError(f"{proposal} has no scene of the split that {truth} has")
    first = next(found for _, _, found in pairs if found is not None)
    names = class_names(first)
    names = names or (rule.names if rule else ())
    if not names:
        raise UsageError(
            f"{first} has no class names, as predictions of geoprep predict have: name the "
            "values with `classes`"
        )
    if unknown := set(rule.names if rule else ()) - set(names):
        raise UsageError(
            "classes", f"names {', '.join(sorted(unknown))}; the proposal has {', '.join(names)}"
        )
    scenes, empty, total = [], list[str](), None
    left_out = Counter[str]()
    for scene, true_file, found_file in pairs:
        label = read_classes(true_file, names, rule)
        if found_file is None:
            proposed = np.full_like(label.label, NODATA)
        else:
            proposed = read_classes(found_file, names, rule, like=label).label
        left_out[scene] = int((label.label == NODATA).sum())
        if left_out[scene] == label.label.size:
            empty.append(scene)
            continue
        counts = count_classes(label.label, proposed, len(names), boundary)
        total = counts if total is None else total + counts
        note = "" if found_file else "no proposal"
        row = {"scene": scene, **counts.figures(names), "left_out": left_out[scene]}
        scenes.append({**row, "left_out_share": left_out[scene] / label.label.size, "note": note})
    if total is None:
        raise UsageError(f"{truth}: no pixel has one of the classes {', '.join(names)}")
    return {
        "classes": list(names),
        "pooled": total.figures(names),
        "confusion": total.confusion.tolist(),
        "scenes": scenes,
        "without_truth": empty,  # scenes of which no pixel has a class
        "left_out": left_out.total(),  # pixels without a class in the ground truth
        "settings": {"boundary": boundary},
    }


def _pairs(
    truths: Sequence[Path], proposals: Sequence[Path], scene_key: Callable[[str], str]
) -> list[tuple[str, Path, Path | None]]:
    """Return scene, ground truth and proposal, if there is one, of every scene."""
    if len(truths) == len(proposals) == 1:
        return [(truths[0].stem, truths[0], proposals[0])]
    true_files, found_files = _by_scene(truths, scene_key), _by_scene(proposals, scene_key)
    true_files = named_like(true_files, found_files)  # as a build pairs masks and images
    if not true_files.keys() & found_files.keys():
        raise UsageError(
            f"{truths[0].parent} and {proposals[0].parent} have no scene in common: name the files "
            "alike"
        )
    return [(scene, file, found_files.get(scene)) for scene, file in true_files.items()]


def _by_scene(files: Sequence[Path], scene_key: Callable[[str], str]) -> dict[str, Path]:
    """Return files by the name of their scene; raise UsageError if two have the same."""
    found: dict[str, Path] = {}
    for file in files:
        first = found.setdefault(scene_key(file.stem), file)
        if first != file:
            raise UsageError(f"{first} and {file} are of one scene: keep one of them")
    return found
