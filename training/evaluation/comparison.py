"""Compare the accuracy, speed and size of several forms of one model on the tiles of a store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from geoprep.errors import UsageError
from training.checkpoint import ModelInfo
from training.engine.native import wait_for
from training.evaluation.standing import SCORES
from training.evaluation.validation import evaluate_runner
from training.runners.model_files import export_files
from training.runners.runner import Runner


@dataclass(frozen=True, slots=True)
class FormFigures:
    """Accuracy, speed and size of a form of a model, and its loss of accuracy against the first."""

    name: str
    how: str
    metrics: dict[str, float]
    drop: dict[str, float]
    mpx_per_second: float | None
    nbytes: int
    notes: list[str]


class TimedRunner(Runner):
    """A runner that measures its speed, without the first batch of a shape, which may compile."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.precision)
        self._runner = runner
        self.device, self.fixed_batch = runner.device, runner.fixed_batch
        self._pixels, self._seconds, self._shape = 0, 0.0, torch.Size()

    def __call__(self, image: Tensor) -> Tensor:
        """See `Runner`."""
        started = time.perf_counter()
        result = self._runner(image)
        wait_for(self.device)
        if image.shape == self._shape:
            self._seconds += time.perf_counter() - started
            self._pixels += image.shape[0] * image.shape[2] * image.shape[3]
        self._shape = image.shape
        return result

    @property
    def mpx_per_second(self) -> float | None:
        """Megapixels per second; None before the second batch of a shape."""
        return self._pixels / 1e6 / self._seconds if self._seconds else None


def compare(
    models: Sequence[tuple[Path, Runner, ModelInfo]],
    store: str,
    *,
    threshold: float | None = None,
    **options: Any,  # noqa: ANN401 - of `evaluate_runner`
) -> list[FormFigures]:
    """Return the figures of each form of a model on a store.

    Parameters
    ----------
    models
        File, runner and record of each form. The others are compared with the first.
    store
        Path or address of the store.
    threshold
        Minimum probability of a road. None: that of the first form.
    options
        Further keywords of `evaluate_runner`.

    Raises
    ------
    UsageError
        Two files are no forms of one model.
    """
    first = models[0][2]
    for path, _, info in models:
        for name in ("bands", "targets", "class_mph", "class_names", "level", "folds", "fold"):
            if getattr(info, name) != getattr(first, name):
                raise UsageError(
                    f"{path} and {models[0][0]} differ in {name}: compare forms of one model"
                )
    figures: list[FormFigures] = []
    for path, opened, info in models:
        runner, _ = opened.for_pixels(0)
        timed = TimedRunner(runner)
        least = first.threshold if threshold is None else threshold  # None for classes
        evaluation = evaluate_runner(timed, info, [store], threshold=least, **options)
        metrics = evaluation.metrics
        base = figures[0].metrics if figures else metrics
        drop = {name: base[name] - metrics[name] for name in SCORES if name in base}
        nbytes = sum(file.stat().st_size for file in export_files(path))
        form, rate = runner.description, timed.mpx_per_second
        measured = metrics, drop, rate, nbytes
        figures.append(FormFigures(str(path), form, *measured, evaluation.notes))
    return figures
