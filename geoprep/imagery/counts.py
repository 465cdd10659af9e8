"""Count pixels: histograms of a scene, histograms and fractions of a store's tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.imagery import kernels
from geoprep.imagery.decoding import ImageWindow
from geoprep.imagery.rescale import SIZES
from geoprep.imagery.wide import BINS, count_wide, is_held_wide
from geoprep.speed import BACKGROUND, NODATA


def count_source(pixels: ImageWindow) -> NDArray[np.int64]:
    """Return the number of valid pixels per value, int64 (band, value); of wide dtypes per bin."""
    if is_held_wide(pixels.values):
        return count_wide(pixels.values, pixels.valid)
    return _counted(pixels.values, pixels.valid, SIZES[pixels.values.dtype.name])


def _counted(values: NDArray[Any], valid: NDArray[np.uint8] | None, size: int) -> NDArray[np.int64]:
    counts = np.zeros((values.shape[2], size), np.int64)
    kernels.count_values(values, kernels.mask_of(valid), kernels.bands_of(values), counts)
    return counts


def add_black(counts: NDArray[np.int64], pixels: int) -> None:
    """Add a number of pixels that are 0 in all bands to counts of :func:`count_source`."""
    counts[:, BINS // 2 if counts.shape[1] == BINS else 0] += pixels


def road_share(per_label: NDArray[np.int64], *, background: bool = True) -> float:
    """Return the share of road, or of all but background, among labelled pixels.

    Without a background it is the share of labelled pixels.
    """
    labelled = int(per_label.sum() - per_label[NODATA])
    if not background:
        return labelled / int(per_label.sum())
    return (labelled - int(per_label[BACKGROUND])) / labelled if labelled else 0.0


class TileCounts:
    """Histograms of the tiles of the finest level, filled tile by tile."""

    def __init__(self, bands: int) -> None:
        self.label = np.zeros(256, np.int64)  # pixels per label byte
        self.band = np.zeros((bands, 256), np.int64)  # valid pixels per value
        self.values = self.ends = 0  # valid values of all tiles, and those of them at 1 or 255

    def add(
        self, image: NDArray[np.uint8], label: NDArray[np.uint8], *, counted: bool
    ) -> tuple[NDArray[np.int64], float, int]:
        """Return a tile's pixels per label byte, valid fraction, and number of values of a band.

        Add it to the histograms.
        """
        per_label, per_band = _counted(label[..., None], None, 256)[0], _counted(image, None, 256)
        nodata = int(per_band[0, 0])
        per_band[:, 0] = 0
        self.values += int(per_band.sum())
        self.ends += int(per_band[:, 1].sum() + per_band[:, 255].sum())
        if counted:
            self.label += per_label
            self.band += per_band
        shades = int(np.count_nonzero(per_band, axis=1).max())
        return per_label, 1 - nodata / label.size, shades
