"""Which black pixels of an untagged image are nodata, by SciPy's labelling."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage


def black_nodata(black: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return those of a group, joined by sides or corners, that reaches an edge."""
    groups, count = ndimage.label(black, structure=np.ones((3, 3)))
    edge = np.concatenate([groups[0], groups[-1], groups[:, 0], groups[:, -1]])
    return black & np.isin(np.arange(count + 1), edge)[groups]
