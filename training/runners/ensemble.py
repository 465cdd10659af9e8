"""Several models as one: the mean of their probabilities, and how far these lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from geoprep.errors import UsageError
from training.checkpoint import BEST, ModelInfo
from training.runners.model_files import SUFFIXES, model_file, open_model
from training.runners.model_options import ModelOptions
from training.runners.runner import Compile, Runner

_SHARED = (
    *("targets", "bands", "channels", "class_names"),
    *("rescale", "limits", "limits_of", "nodata"),
)
"""Fields of `ModelInfo` in which models must agree; and a pixel size to within 1 %."""


class EnsembleRunner(Runner):
    """Runs several models on the same windows.

    If it gives their ``spread``, that is one more channel: the standard deviation of the
    probability of a road over the models, or of the class on which they differ most.
    """

    def __init__(self, runners: Sequence[Runner], *, spread: bool, exclusive: bool) -> None:
        super().__init__(", ".join(sorted({runner.precision for runner in runners})))
        self.runners, self.spread, self.exclusive = runners, spread, exclusive
        self.device, self.form = runners[0].device, runners[0].form
        self.compiled = any(runner.compiled for runner in runners)
        self.fixed_batch = any(runner.fixed_batch for runner in runners)
        self.at_once = min(runner.at_once for runner in runners)

    @property
    def description(self) -> str:
        """See `Runner`."""
        return f"mean of {len(self.runners)} models, {super().description}"

    def for_pixels(self, pixels: int) -> tuple[Runner, str]:
        """See `Runner`."""
        chosen, notes = zip(*(runner.for_pixels(pixels) for runner in self.runners), strict=True)
        return EnsembleRunner(chosen, spread=self.spread, exclusive=self.exclusive), notes[0]

    def __call__(self, image: Tensor) -> Tensor:
        """See `Runner`."""
        probabilities = torch.stack([runner(image) for runner in self.runners])
        mean = probabilities.mean(dim=0)
        if not self.spread:
            return mean
        apart = probabilities.std(dim=0, correction=0)
        last = apart.amax(dim=-1, keepdim=True) if self.exclusive else apart[..., -1:]
        return torch.cat([mean, last], dim=-1)


def split_models(first: Path, words: Sequence[str]) -> tuple[list[Path], tuple[str, ...]]:
    """Return all models, some of them named by the first words, and the other words."""
    models, rest = [first], list(words)
    while rest and (Path(rest[0]).suffix in (".pt", *SUFFIXES) or (Path(rest[0]) / BEST).is_file()):
        models.append(Path(rest.pop(0)))
    return [model_file(model) for model in models], tuple(rest)


def open_models(
    options: ModelOptions, files: Sequence[Path], compile_mode: Compile, *, spread: bool = False
) -> tuple[Runner, ModelInfo]:
    """Return the runner of one or several models, and their `ModelInfo`; see `open_model`.

    The threshold of several is the mean of theirs, and so are the speeds of bins.

    Raises
    ------
    UsageError
        The models differ in bands, classes, pixel size, rescaling or nodata.
    """
    runners, infos = zip(
        *(open_model(replace(options, checkpoint=file), compile_mode) for file in files),
        strict=True,
    )
    first = infos[0]
    if len(files) == 1:
        return runners[0], first
    for file, info in zip(files, infos, strict=True):
        apart = [name for name in _SHARED if getattr(info, name) != getattr(first, name)]
        apart += ["gsd_m"] * (not np.allclose(info.gsd_m, first.gsd_m, rtol=0.01))
        if apart:
            raise UsageError(
                f"{file} and {files[0]} differ in {', '.join(apart)}: only models for the same "
                "task can be averaged"
            )
    known = [info.threshold for info in infos if info.threshold is not None]
    threshold = sum(known) / len(known) if known else None
    runner = EnsembleRunner(runners, spread=spread, exclusive=first.has_classes)
    mph = np.mean([info.class_mph for info in infos], axis=0).tolist()
    return runner, replace(first, threshold=threshold, class_mph=tuple(mph))
