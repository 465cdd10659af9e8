"""Where a run is, apart from weights: counters, results so far, and the random generators."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import torch

from training.errors import CheckpointError


@dataclass(slots=True)
class Progress:
    """Counters of a run, which a checkpoint keeps.

    Attributes
    ----------
    epoch
        The epoch that runs, or is next; counted over all stages, from 0.
    step
        Optimizer steps done.
    best, best_epoch
        Best validation road IoU of this stage, and its epoch; not a number and -1 for none.
    sums, samples
        Of loss, main part and dice over the samples of the running epoch.
    seconds
        Wall time of training, over all starts.
    history
        One row per epoch, as in metrics.csv.
    """

    epoch: int = 0
    step: int = 0
    best: float = math.nan
    best_epoch: int = -1
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    samples: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)

    def add(self, rows: Sequence[Sequence[float]], counts: Sequence[int]) -> None:
        """Add loss, main part and dice of batches to the running epoch, batch by batch.

        So the sums are the same to the bit, whenever they were read.
        """
        for count, row in zip(counts, rows, strict=True):
            self.sums = [total + count * part for total, part in zip(self.sums, row, strict=True)]
            self.samples += count

    def close_epoch(self, row: dict[str, float]) -> None:
        """Go on to the next epoch; ``row`` joins the history."""
        self.history.append(row)
        self.epoch += 1
        self.forget_sums()

    def forget_sums(self) -> None:
        """Begin to count anew: an epoch begins, or the first rank has the sums of all."""
        self.sums, self.samples = [0.0] * len(self.sums), 0

    def is_best(self, road_iou: float) -> bool:
        """Take note of a result; return whether it is the best of its stage so far."""
        if not math.isnan(self.best) and not road_iou > self.best:
            return False
        self.best, self.best_epoch = road_iou, self.epoch
        return True

    def forget_best(self) -> None:
        """Begin a stage: figures at another resolution do not compare."""
        self.best, self.best_epoch = math.nan, -1

    def to_plain(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_plain` made plain.

        Raises
        ------
        CheckpointError
            Something is lacking, or unknown: best.pt of a foreign version, for example.
        """
        if "epoch" not in values or "step" not in values:
            raise CheckpointError(
                "this checkpoint does not say where its run is (epoch, step): it is for prediction "
                "only; go on from another one"
            )
        try:
            return cls(**values)
        except TypeError as error:
            raise CheckpointError(
                f"this checkpoint keeps its progress otherwise ({error}): go on with the package "
                "that wrote it"
            ) from error


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of all random generators as plain values and tensors."""
    kind, keys, at, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002 - the one that users' networks may use
    state = {
        "torch": torch.get_rng_state(),
        "python": list(random.getstate()[1]),
        "numpy": [str(kind), np.asarray(keys).tolist(), int(at), int(has_gauss), float(gauss)],
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put all random generators where they were."""
    torch.set_rng_state(state["torch"].cpu())
    random.setstate((3, tuple(state["python"]), None))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))  # noqa: NPY002 - as above
    if "device" in state and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["device"].cpu())
