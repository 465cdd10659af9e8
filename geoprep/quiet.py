"""Silence one warning of rasterio while images are opened, in any thread."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_users = 0
_MESSAGE = "Dataset has no geotransform|The given matrix"
"""Pattern of the filter. Its second alternative sets it apart from filters that programs add."""


@contextmanager
def no_georeference_warning() -> Iterator[None]:
    """Ignore rasterio's warning about images without georeference, which errors report."""
    # Not by `catch_warnings`, which would put back filters that other threads have changed
    # meanwhile: the filter is added by the first user, and removed by the last.
    global _users
    from rasterio.errors import NotGeoreferencedWarning

    own = "ignore", re.compile(_MESSAGE, re.IGNORECASE), NotGeoreferencedWarning, None, 0
    with _lock:
        _users += 1
        if own not in warnings.filters:
            warnings.filterwarnings("ignore", _MESSAGE, NotGeoreferencedWarning)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users and own in warnings.filters:
                warnings.filters.remove(own)  # type: ignore[attr-defined]  # a list
