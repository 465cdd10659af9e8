"""Several forms of one network on the same tiles: what each costs, and what it gains."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from geoprep.errors import UsageError
from loaders import Split
from training.checkpoint import ModelInfo
from training.inference import Runner, export_files
from training.validation import evaluate_runner

FIGURES = ("road_iou", "bin_iou")
"""What is compared; the second where the network tells speeds."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A network beside others.

    Attributes
    ----------
    name
        Its file.
    how
        Its runner, for people.
    metrics
        See `training.validation.Evaluation`.
    drop
        By how much each of `FIGURES` is less than the first network's.
    mpx_per_second
        Through the runner, all views, first batch left out; None where there was no other.
    nbytes
        Of the file, and of the one with its weights.
    """

    name: str
    how: str
    metrics: dict[str, float]
    drop: dict[str, float]
    mpx_per_second: float | None
    nbytes: int


class Timed(Runner):
    """A runner that notes how long it takes; the first batch, which may compile, is left out."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.precision)
        self._runner = runner
        self.device, self.fixed_batch = runner.device, runner.fixed_batch
        self._pixels, self._seconds, self._shape = 0, 0.0, torch.Size()

    def __call__(self, image: Tensor) -> Tensor:
        """See `Runner`."""
        started = time.perf_counter()
        result = self._runner(image)
        if self.device.type != "cpu":
            torch.accelerator.synchronize()
        if image.shape == self._shape:
            self._seconds += time.perf_counter() - started
            self._pixels += image.shape[0] * image.shape[2] * image.shape[3]
        self._shape = image.shape
        return result

    @property
    def mpx_per_second(self) -> float | None:
        """Pixels through the network per second, in millions."""
        return self._pixels / 1e6 / self._seconds if self._seconds else None


def compare(
    models: Sequence[tuple[Path, Runner, ModelInfo]],
    stores: Sequence[str],
    split: Split,
    *,
    threshold: float | None = None,
    **how: Any,  # noqa: ANN401 - see below
) -> Iterator[Compared]:
    """Yield the figures of one network after the other.

    Parameters
    ----------
    models
        File, runner and info of each; the first is what the others are compared with.
    stores, split, threshold, **how
        As for `training.validation.evaluate_runner`; the threshold is by default the first
        network's, for all.

    Raises
    ------
    UsageError
        The models see other bands, or tell other things.
    StoreError
        A store cannot be used.
    """
    first = models[0][2]
    for path, _, info in models:
        for name in ("bands", "targets", "class_mph", "level", "folds", "fold"):
            if getattr(info, name) != getattr(first, name):
                raise UsageError(
                    f"{path} and {models[0][0]} differ in {name}: compare forms of one network"
                )
    base: dict[str, float] = {}
    for path, opened, info in models:
        runner, _ = opened.for_pixels(0)
        timed = Timed(runner)
        least = first.threshold if threshold is None else threshold
        found = evaluate_runner(timed, info, stores, split, threshold=least, **how)
        base = base or found.metrics
        drop = {name: base[name] - found.metrics[name] for name in FIGURES if name in base}
        nbytes = sum(file.stat().st_size for file in export_files(path))
        form, rate = runner.description, timed.mpx_per_second
        yield Compared(str(path), form, found.metrics, drop, rate, nbytes)
