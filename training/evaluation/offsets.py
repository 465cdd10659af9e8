"""Offset between the labels and the predictions of a scene, by masked cross-correlation."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoprep.speed import NODATA
from training.evaluation.metrics import road_probability

REACH = 16
"""Largest offset that is searched, in pixels."""

FAR = 2.0
"""Offsets of more pixels than this are reported."""

LEAST = 0.1
"""Correlation below which an offset is not known."""

_TIE = 0.01
"""Offsets whose correlations differ less are equally good; the shortest one counts."""

_SUMS = 6
"""Sums at every offset: pixels, p, t, p p, t t, p t."""


class LabelOffset(NamedTuple):
    """Pixels by which labels lie right of, and below, the predictions; NaN below `LEAST`.

    ``unmoved`` is the correlation without an offset.
    """

    x: float
    y: float
    correlation: float
    unmoved: float

    @property
    def far(self) -> bool:
        """Whether the offset is larger than `FAR`."""
        return math.hypot(self.x, self.y) > FAR


class OffsetSums:
    """Sums over the tiles of each group, such as a scene, that give its offset.

    Only pixels with a label in the one and a prediction in the other are compared, so borders and
    nodata have no influence (masked normalised cross-correlation, Padfield 2012).
    """

    def __init__(self, groups: int, classes: int = 0, device: torch.device | str = "cpu") -> None:
        side, self._classes = 2 * REACH + 1, classes
        shape = (groups, max(1, classes), _SUMS, side, side)
        self.sums = torch.zeros(shape, dtype=torch.float64, device=device)

    def update(self, probabilities: Tensor, label: Tensor, group: Tensor) -> None:
        """Add predictions (n, channel, y, x), possibly padded, and labels (n, y, x)."""
        probabilities = probabilities[..., : label.shape[-2], : label.shape[-1]].float()
        if self._classes:
            numbers = torch.arange(self._classes, device=label.device).view(1, -1, 1, 1)
            valid, truth = label < self._classes, label[:, None] == numbers
        else:
            probabilities = road_probability(probabilities)[:, None]
            valid = label != NODATA
            truth = ((label > 0) & valid)[:, None]
        mask = (valid & probabilities.sum(dim=1).isfinite()).float()
        rows, columns = (side + REACH for side in mask.shape[-2:])  # so that offsets do not wrap
        at = torch.arange(-REACH, REACH + 1, device=mask.device)
        of_mask = torch.fft.rfft2(mask, s=(rows, columns))
        for channel in range(probabilities.shape[1]):
            p, t = probabilities[:, channel].nan_to_num() * mask, truth[:, channel] * mask
            of_p, of_t, of_pp, of_tt = (
                torch.fft.rfft2(part, s=(rows, columns)) for part in (p, t, p * p, t * t)
            )
            pairs = (
                *((of_mask, of_mask), (of_p, of_mask), (of_mask, of_t)),
                *((of_pp, of_mask), (of_mask, of_tt), (of_p, of_t)),
            )
            for place, (one, other) in enumerate(pairs):
                found = torch.fft.irfft2(one.conj() * other, s=(rows, columns))
                found = found.index_select(1, at % rows).index_select(2, at % columns)
                self.sums[:, channel, place].index_add_(0, group, found.double())

    def compute(self) -> list[LabelOffset]:
        """Return the offset of every group."""
        count, p, t, pp, tt, pt = self.sums.unbind(dim=2)
        count = count.clamp(min=1)
        both = (pt - p * t / count).sum(dim=1)
        spread = (pp - p * p / count).clamp(min=0).sum(dim=1)
        spread = (spread * (tt - t * t / count).clamp(min=0).sum(dim=1)).sqrt()
        # Rounding of the transforms is about 1e-6 of a pixel per pixel.
        told = spread > 1e-3 + 1e-6 * count[:, 0]
        score = torch.where(told, both / spread.clamp(min=1e-9), math.nan)
        return [_peak(one) for one in score.cpu().numpy()]


def _peak(score: NDArray[np.float64]) -> LabelOffset:
    """Return the offset of the best correlation of (offset y, offset x), between pixels too.

    Along a straight road all offsets are equally good: the shortest of them is taken.
    """
    unmoved = float(score[REACH, REACH])
    if not np.isfinite(score).any():
        return LabelOffset(math.nan, math.nan, math.nan, unmoved)
    score = np.nan_to_num(score, nan=-1.0)
    y, x = np.unravel_index(int(score.argmax()), score.shape)
    best = float(score[y, x])
    if best < LEAST:
        return LabelOffset(math.nan, math.nan, best, unmoved)
    at = np.arange(-REACH, REACH + 1)
    length = np.hypot(at[:, None], at)
    short = np.where(score >= best - _TIE, length, np.inf)
    near = np.unravel_index(int(short.argmin()), score.shape)
    if math.hypot(near[0] - y, near[1] - x) > 1.5:
        y, x = near
    down, right = (
        int(place) - REACH + _vertex(values, int(place))
        for place, values in ((y, score[:, x]), (x, score[y]))
    )
    return LabelOffset(right, down, best, unmoved)


def _vertex(values: NDArray[np.float64], at: int) -> float:
    """Return the top of the parabola through a value and its neighbours, relative to it."""
    if not 0 < at < len(values) - 1:
        return 0.0
    before, here, after = values[at - 1 : at + 2].tolist()
    bend = before - 2 * here + after
    top = 0.5 * (before - after) / bend if bend < 0 else 0.0
    return min(max(top, -0.5), 0.5)
