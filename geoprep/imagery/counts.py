"""Count pixels: histograms of a scene, histograms and fractions of a store's tiles."""

from __future__ import annotations

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
    size = SIZES[pixels.values.dtype.name]
    counts = np.zeros((2, pixels.values.shape[2], size), np.int64)
    bands = kernels.bands_of(pixels.values)
    kernels.count_values(pixels.values, kernels.mask_of(pixels.valid), bands, counts)
    total: NDArray[np.int64] = counts.sum(axis=0)
    return total


def add_black(counts: NDArray[np.int64], pixels: int) -> None:
    """Add a number of pixels that are 0 in all bands to counts of :func:`count_source`."""
    counts[:, BINS // 2 if counts.shape[1] == BINS else 0] += pixels


def count_mask(label: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the number of pixels per byte of a C-contiguous label, int64 (256)."""
    counts = np.zeros((4, 256), np.int64)
    flat = label.reshape(-1)
    whole = flat.size // 8 * 8
    kernels.count_bytes(flat[:whole].view(np.uint64), flat[whole:], counts)
    total: NDArray[np.int64] = counts.sum(axis=0)
    return total


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
        self._band = np.zeros((2, bands, 256), np.int64)

    @property
    def band(self) -> NDArray[np.int64]:
        """Valid pixels per value of the counted tiles, int64 (band, 256)."""
        totals: NDArray[np.int64] = self._band.sum(axis=0)
        totals[:, 0] = 0  # 0 is nodata
        return totals

    def add(
        self, image: NDArray[np.uint8], label: NDArray[np.uint8], *, counted: bool
    ) -> tuple[NDArray[np.int64], float]:
        """Return a tile's pixels per label byte and valid fraction; add it to the histograms."""
        per_label = count_mask(label)
        per_band = np.zeros_like(self._band)
        kernels.count_values(image, kernels.mask_of(None), kernels.bands_of(image), per_band)
        if counted:
            self.label += per_label
            self._band += per_band
        nodata = int(per_band[:, 0, 0].sum())
        return per_label, 1 - nodata / label.size
