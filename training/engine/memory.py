"""Errors that say that no memory is left."""

from __future__ import annotations

import re

_MESSAGES = re.compile(r"out[ _]of[ _](\w+_)?memory|alloc_failed|can't allocate memory", re.I)
"""Messages of the backends of torch that have no memory left."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a device or the host has no memory left."""
    if type(error).__name__ in ("MemoryError", "OutOfMemoryError"):  # the latter is torch's
        return True
    return isinstance(error, RuntimeError) and _MESSAGES.search(str(error)) is not None
