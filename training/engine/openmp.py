"""How the idle threads of GNU OpenMP wait, which its environment says."""

from __future__ import annotations

import os

SPINS = "10000"
"""Rounds for which idle threads of GNU OpenMP spin before they sleep, some tens of microseconds."""


def limit_spinning() -> None:
    """Let idle threads spin for a moment, then sleep, unless the environment says how they wait.

    Threads that sleep at once are woken hundreds of times in a step. Threads that spin on take
    processor time from other processes, so on a machine with twice as many of those as processors
    they sleep at once. Call this before torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        crowded = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
        os.environ.setdefault("GOMP_SPINCOUNT", "0" if crowded else SPINS)
