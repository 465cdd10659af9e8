"""Offset between the labels and the predictions of a scene, by masked cross-correlation."""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from geoprep.plan import is_certain
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

_QUARTERS = 4
"""Parts of every tile that are measured apart too, to see how far they agree."""

_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182}
"""Student's t of the two-sided 95 % interval of a mean, by number of parts."""

_SIDE = 2 * REACH + 1
"""Offsets along each axis."""


class LabelOffset(NamedTuple):
    """Pixels by which labels lie right of, and below, the predictions; NaN below `LEAST`.

    ``unmoved`` is the correlation without an offset; ``interval`` the radius in pixels around the
    offset that holds the true one at 95 % confidence, NaN where that is not known.
    """

    x: float
    y: float
    correlation: float
    unmoved: float
    interval: float = math.nan

    @property
    def far(self) -> bool:
        """Whether the offset is larger than `FAR`."""
        return math.hypot(self.x, self.y) > FAR

    def move(self, gsd: tuple[float, float]) -> dict[str, float | str]:
        """Return how the label must move, in metres to the right and down, as a build reads it."""
        dx, dy, interval = -self.x * gsd[0], -self.y * gsd[1], self.interval * max(gsd)
        certain = "yes" if is_certain(dx, dy, interval) else "no"
        return {"dx": dx, "dy": dy, "interval": interval, "unit": "metres", "certain": certain}


class OffsetSums:
    """Sums over the tiles of each group, such as a scene, that give its offset.

    Only pixels with a label in the one and a prediction in the other are compared, so borders and
    nodata have no influence (masked normalised cross-correlation, Padfield 2012).
    """

    def __init__(self, groups: int, classes: int = 0, device: torch.device | str = "cpu") -> None:
        self._classes = classes
        shape = (groups, _QUARTERS, max(1, classes), _SUMS, _SIDE, _SIDE)
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
        around = functional.pad(mask, (REACH,) * 4)  # so that offsets do not wrap
        ys, xs = ([slice(0, n // 2), slice(n // 2, n)] for n in mask.shape[-2:])
        for channel in range(probabilities.shape[1]):
            p = probabilities[:, channel].nan_to_num() * mask
            t = functional.pad(truth[:, channel] * mask, (REACH,) * 4)
            for quarter, (y, x) in enumerate(product(ys, xs)):
                outer = np.s_[:, y.start : y.stop + 2 * REACH, x.start : x.stop + 2 * REACH]
                found = _correlated(p[:, y, x], mask[:, y, x], t[outer], around[outer])
                self.sums[:, quarter, channel].index_add_(0, group, found)

    def compute(self) -> list[LabelOffset]:
        """Return the offset of every group."""
        whole, parts = (_scores(sums).cpu().numpy() for sums in (self.sums.sum(dim=1), self.sums))
        return [_measured(*scores) for scores in zip(whole, parts, strict=True)]


def _correlated(p: Tensor, mask: Tensor, t: Tensor, around: Tensor) -> Tensor:
    """Return the sums at every offset, float64 (n, sum, offset y, offset x), of some tiles.

    ``t`` and its mask ``around`` are `REACH` pixels larger on each side than ``p`` and ``mask``.
    """
    size = t.shape[-2:]
    one = torch.fft.rfft2(torch.stack([mask, p, p * p], dim=1), s=size).conj()
    other = torch.fft.rfft2(torch.stack([around, t, t * t], dim=1))
    products = one[:, [0, 1, 0, 2, 0, 1]] * other[:, [0, 0, 1, 0, 2, 1]]  # as `_SUMS` lists them
    found: Tensor = torch.fft.irfft2(products, s=size)
    return found[..., :_SIDE, :_SIDE].double()


def _scores(sums: Tensor) -> Tensor:
    """Return the correlation at every offset from sums (..., class, sum, offset y, offset x)."""
    count, p, t, pp, tt, pt = sums.unbind(dim=-3)
    count = count.clamp(min=1)
    both = (pt - p * t / count).sum(dim=-3)
    spread = (pp - p * p / count).clamp(min=0).sum(dim=-3)
    spread = (spread * (tt - t * t / count).clamp(min=0).sum(dim=-3)).sqrt()
    # Rounding of the transforms is about 1e-6 of a pixel per pixel.
    told = spread > 1e-3 + 1e-6 * count[..., 0, :, :]
    return torch.where(told, both / spread.clamp(min=1e-9), math.nan)


def _measured(score: NDArray[np.float64], quarters: NDArray[np.float64]) -> LabelOffset:
    """Return an offset with its interval, from how far the quarters lie from the whole."""
    whole, parts = _peak(score), map(_peak, quarters)
    apart = [math.hypot(one.x - whole.x, one.y - whole.y) for one in parts]
    apart = [distance for distance in apart if not math.isnan(distance)]
    if len(apart) < 2:
        return whole
    error = math.sqrt(sum(far**2 for far in apart) / (len(apart) - 1) / len(apart))
    return whole._replace(interval=_STUDENT[len(apart)] * error)


def _peak(score: NDArray[np.float64]) -> LabelOffset:
    """Return the offset of the best correlation of (offset y, offset x), between pixels too.

    Along a straight road all offsets are equally good: the shortest of them is taken.
    """
    unmoved = float(score[REACH, REACH])
    best = float(np.fmax.reduce(score, axis=None))  # NaN if there are no others
    if not best >= LEAST:
        return LabelOffset(math.nan, math.nan, best, unmoved)
    score = np.nan_to_num(score, nan=-1.0)
    y, x = np.unravel_index(int(score.argmax()), score.shape)
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
