"""Values that the tasks of one process share, each of which is computed once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class _Slot(Generic[V]):
    """A value, once it is computed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: V | None = None


class Shared(Generic[V]):
    """Values in memory, of which the least recently used go.

    Parameters
    ----------
    most
        Largest sum of the sizes of all values, or one value.
    size
        Size of a value; by default 1, so that ``most`` is a number of values.
    """

    def __init__(self, most: int, size: Callable[[V], int] = lambda _: 1) -> None:
        self._most, self._size = most, size
        self._lock = threading.Lock()
        self._slots: dict[object, _Slot[V]] = {}  # the most recently used last

    def get(self, key: object, compute: Callable[[], V]) -> V:
        """Return the value of a key; the first call computes it, others wait for it."""
        with self._lock:
            slot = self._slots[key] = self._slots.pop(key) if key in self._slots else _Slot()
        with slot.lock:
            if slot.value is None:
                slot.value = compute()
            value = slot.value
        with self._lock:
            left = self._held() - self._most
            for other, old in [*self._slots.items()]:
                if left > 0 and old.value is not None and old is not slot:
                    left -= self._size(old.value)
                    del self._slots[other]
        return value

    def keep(self, key: object, value: V) -> None:
        """Keep a value if there is space, without a loss of others."""
        with self._lock:
            if self._held() + self._size(value) <= self._most:
                self._slots.setdefault(key, _Slot()).value = value

    def clear(self) -> None:
        """Release all values."""
        with self._lock:
            self._slots.clear()

    def _held(self) -> int:
        values = [slot.value for slot in self._slots.values()]
        return sum(self._size(value) for value in values if value is not None)
