"""Test-time augmentation: the mean of what a network sees in an image from several sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from torch import Tensor

Augmentation = Literal["none", "flips", "d4"]


class View(NamedTuple):
    """A symmetry of the square: flipped along axes, then rows and columns exchanged."""

    flip_y: bool = False
    flip_x: bool = False
    transpose: bool = False

    def of(self, image: Tensor) -> Tensor:
        """Return the view of an image (n, band, y, x)."""
        axes = [axis for axis, flipped in ((2, self.flip_y), (3, self.flip_x)) if flipped]
        seen = image.flip(axes) if axes else image
        return seen.transpose(2, 3) if self.transpose else seen

    def undo(self, result: Tensor) -> Tensor:
        """Return what a network made of the view, (n, y, x, channel), as it lies in the image."""
        seen = result.transpose(1, 2) if self.transpose else result
        axes = [axis for axis, flipped in ((1, self.flip_y), (2, self.flip_x)) if flipped]
        return seen.flip(axes) if axes else seen


_BOTH = (False, True)
VIEWS: dict[str, tuple[View, ...]] = {
    "none": (View(),),
    "flips": tuple(View(y, x) for y in _BOTH for x in _BOTH),
    "d4": tuple(View(y, x, t) for t in _BOTH for y in _BOTH for x in _BOTH),
}
"""The views of each augmentation, every one once; the first is the image itself."""


def mean_of_views(
    predict: Callable[[Tensor], Tensor], image: Tensor, augmentation: Augmentation
) -> Tensor:
    """Return the mean of a network's probabilities over all views.

    Parameters
    ----------
    predict
        Image (n, band, y, x) -> probabilities (n, y, x, channel).
    image
        uint8 (n, band, y, x).
    augmentation
        Which views.
    """
    first, *rest = VIEWS[augmentation]
    total = first.undo(predict(first.of(image)))
    for view in rest:
        total += view.undo(predict(view.of(image)))
    return total.div_(1 + len(rest)) if rest else total
