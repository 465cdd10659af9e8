"""Silence one warning of rasterio while images are opened, in any thread."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_users = 0


@contextmanager
def no_georeference_warning() -> Iterator[None]:
    """Ignore rasterio's warning about images without georeference, which errors report."""
    # Not by `catch_warnings`, which would put back filters that other threads have changed
    # meanwhile: the filter is added by the first user, and removed by the last.
    global _users
    from rasterio.errors import NotGeoreferencedWarning

    added = ("ignore", None, NotGeoreferencedWarning, None, 0)
    with _lock:
        owned = _users > 0 or added not in warnings.filters
        _users += owned
        if owned and _users == 1:
            warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)
    try:
        yield
    finally:
        if owned:
            with _lock:
                _users -= 1
                if not _users and added in warnings.filters:
                    warnings.filters.remove(added)  # type: ignore[attr-defined]  # a list
