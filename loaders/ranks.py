"""Ranks of a ``torchrun`` job: who am I, and which of us share a machine.

One rank per machine loads; the others attach to its memory. Only a handle is sent.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from geoprep.errors import UsageError

Shared = TypeVar("Shared")


def is_distributed() -> bool:
    """Return whether this process is one of several ranks that can talk to each other."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def this_rank() -> tuple[int, int]:
    """Return rank and world size: (0, 1) where torch.distributed is not initialised."""
    return (dist.get_rank(), dist.get_world_size()) if is_distributed() else (0, 1)


def _machine() -> tuple[str, int, int]:
    """Return what processes must have in common to attach to each other's memory."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    name = boot.read_text().strip() if boot.exists() else os.uname().nodename
    pids = Path("/proc/self/ns/pid")
    return name, pids.stat().st_ino if pids.exists() else 0, os.getuid()


def exchange(value: Any) -> list[Any]:  # noqa: ANN401 - torch sends any picklable object
    """Return every rank's value."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def load_once(load: Callable[[], Shared]) -> Shared:
    """Run ``load`` in one rank of every machine and return its result in all of them.

    A collective: every rank must call it, and wait no longer than the timeout its process group
    was given. The result must pickle as a handle to shared memory, as `RamTiles` do. A process
    on its own just runs ``load``.

    Raises
    ------
    Exception
        Whatever ``load`` raised, in the rank that loaded; UsageError with its message in the
        ranks of that machine that waited.
    """
    if not is_distributed():
        return load()
    machines = exchange(_machine())
    leader = machines.index(machines[dist.get_rank()])
    loaded: Shared | None = None
    failure: Exception | None = None
    if leader == dist.get_rank():
        try:
            loaded = load()
        except Exception as error:  # the others wait for word, whatever went wrong
            failure = error
    # Pickled here: a handle is only good on its own machine, where alone it is unpickled.
    sent, message = exchange((pickle.dumps(loaded), failure and str(failure)))[leader]
    if message is not None:
        failure = failure or UsageError(
            f"rank {leader}, which loads for this machine, failed: {message}"
        )
    elif loaded is None:
        loaded, failure = _attach(sent)
    exchange(None)  # nobody goes on, and perhaps lets go of the memory, before all have it
    if loaded is None or failure is not None:
        raise failure or UsageError(f"rank {leader} loaded nothing")
    return loaded


def _attach(sent: bytes) -> tuple[Any, Exception | None]:
    """Return what was sent, or why it cannot be attached to."""
    try:
        return pickle.loads(sent), None
    except (UsageError, OSError) as error:
        return None, error
