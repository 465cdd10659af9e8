"""Ranks under ``torchrun``: joining them, agreeing, adding up. All of it does nothing alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from geoprep.errors import GeoprepError
from loaders import is_distributed, this_rank, usable_cpus
from training.engine.native import DeviceName, choose_device

T = TypeVar("T")

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}
"""Beside an accelerator's there is one for the CPU: a run that goes on may have been made there."""

TIMEOUT = timedelta(hours=1)
"""For the slowest thing that only one rank does: loading a split, writing a checkpoint."""


@contextmanager
def joined(device: DeviceName) -> Iterator[None]:
    """Join the ranks that ``torchrun`` started; alone, do nothing.

    Parameters
    ----------
    device
        ``auto`` is the accelerator where there is one.

    Raises
    ------
    UsageError
        There is no such device.
    """
    if "LOCAL_RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        yield
        return
    kind = choose_device(device).type
    if kind != "cpu":
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(BACKENDS[kind], timeout=TIMEOUT)
    try:
        yield
    finally:
        dist.destroy_process_group()


def is_first() -> bool:
    """Return whether this rank is the one that writes."""
    return this_rank()[0] == 0


def set_threads(wanted: int | None) -> None:
    """Set the threads that compute.

    Parameters
    ----------
    wanted
        None: under ``torchrun``, which would give every rank a single one, the processors divided
        by the ranks of this machine; alone, what torch or OMP_NUM_THREADS says.
    """
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if wanted is None and here > 1 and os.environ.get("OMP_NUM_THREADS", "1") == "1":
        wanted = max(1, usable_cpus() // here)
    if wanted is not None and wanted != torch.get_num_threads():
        torch.set_num_threads(wanted)


def parallel(module: nn.Module, device: torch.device) -> nn.Module:
    """Return the module with gradients averaged over ranks; itself alone."""
    if not is_distributed():
        return module
    # The device is named so that scalars come back from where they were computed.
    ids = None if device.type == "cpu" else [torch.accelerator.current_device_index()]
    return DistributedDataParallel(module, device_ids=ids, gradient_as_bucket_view=True)


def add_up(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the sums over ranks; alone, the values themselves."""
    return _reduced(values, device, dist.ReduceOp.SUM)


def add_up_in_place(counts: Iterable[Tensor]) -> None:
    """Give every rank the sums over ranks; alone, they are what they are."""
    if is_distributed():
        for count in counts:
            dist.all_reduce(count)


def largest(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the largest of each value over ranks; alone, the values themselves."""
    return _reduced(values, device, dist.ReduceOp.MAX)


def _reduced(
    values: Sequence[float], device: torch.device, how: dist.ReduceOp.RedOpType
) -> list[float]:
    found = torch.tensor(values, dtype=torch.float64, device=device)
    if is_distributed():
        dist.all_reduce(found, how)
    return cast(list[float], found.tolist())


def of_first(make: Callable[[], T]) -> T:
    """Return to all ranks what the first one makes; only its disk is asked.

    Raises
    ------
    GeoprepError
        Of the first rank, in all of them.
    """
    if not is_distributed():
        return make()
    found: list[Any] = [None]
    if is_first():
        try:
            found = [make()]
        except GeoprepError as error:
            found = [error]
    dist.broadcast_object_list(found, device=torch.device("cpu"))
    if isinstance(found[0], GeoprepError):
        raise found[0]
    return cast(T, found[0])


def share_buffers(network: nn.Module) -> None:
    """Give every rank the running statistics of the first, as DDP does before each step."""
    if is_distributed():
        for buffer in network.buffers():
            dist.broadcast(buffer, 0)
