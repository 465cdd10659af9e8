"""When a run saves itself, and what random generators and machines contribute to its bits."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from geoprep.errors import UsageError

_SECONDS = {"s": 1, "m": 60, "h": 3600}


class SaveClock:
    """Tells when the next checkpoint within an epoch is due.

    Parameters
    ----------
    every
        ``500`` steps, or a time: ``30s``, ``10m``, ``2h``.

    Raises
    ------
    UsageError
        It is neither.
    """

    def __init__(self, every: str) -> None:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(every))
        if not found or float(found[1]) <= 0 or (not found[2] and "." in found[1]):
            raise UsageError(
                f"--save-every {every!r}: write a number of steps such as 500, or a time such as "
                "30s or 10m"
            )
        self._steps = 0 if found[2] else int(found[1])
        self._seconds = float(found[1]) * _SECONDS[found[2]] if found[2] else float("inf")
        self._saved = time.monotonic()

    def due_by_step(self, step: int) -> bool:
        """Return whether a step is one to save after."""
        return self._steps > 0 and step % self._steps == 0

    def due_by_time(self) -> bool:
        """Return whether the last checkpoint is old enough."""
        return time.monotonic() - self._saved >= self._seconds

    def saved(self) -> None:
        """Take note that one was written."""
        self._saved = time.monotonic()


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of all random generators as plain values and tensors."""
    kind, keys, at, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002 - the one that users' networks may use
    state = {
        "torch": torch.get_rng_state(),
        "python": list(random.getstate()[1]),
        "numpy": [str(kind), np.asarray(keys).tolist(), int(at), int(has_gauss), float(gauss)],
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put all random generators where they were."""
    torch.set_rng_state(state["torch"].cpu())
    random.setstate((3, tuple(state["python"]), None))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))  # noqa: NPY002 - as above
    if "device" in state and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["device"].cpu())


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs, a line each: threads was 2, is 1."""
    return [
        f"{name.replace('_', ' ')} was {before.get(name)}, is {value}"
        for name, value in now.items()
        if name in before and before[name] != value
    ]
