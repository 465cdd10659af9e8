"""Ranks under ``torchrun``: process group, agreement and sums. Without ranks these do nothing."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from geoprep.cpus import physical_cores, processors, started_rank, usable_cpus
from geoprep.errors import GeoprepError
from loaders import is_distributed, this_rank
from training.engine.native import DeviceName, choose_device
from training.setting_texts import TIMEOUT_MINUTES

T = TypeVar("T")

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}
"""Accelerators have a backend for the CPU as well: a resumed run may have been started there."""


@contextmanager
def process_group(device: DeviceName, timeout: float = TIMEOUT_MINUTES) -> Iterator[None]:
    """Join the process group that the process was started for, see `started_rank`, if any."""
    started = started_rank()
    if started is None:
        yield
        return
    kind = choose_device(device).type
    if kind != "cpu":
        torch.accelerator.set_device_index(started.local)
    dist.init_process_group(BACKENDS[kind], timeout=timedelta(minutes=timeout))
    try:
        yield
    finally:
        dist.destroy_process_group()


def is_rank_zero() -> bool:
    """Return whether this rank writes and prints; True without ranks."""
    return this_rank()[0] == 0


def set_threads(wanted: int | None) -> None:
    """Set the number of threads for computation."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if wanted is None and ranks_here() > 1 and given in ("", "1"):
        wanted = max(1, min(len(physical_cores(processors())), usable_cpus()) // _sharing())
    elif wanted is None and not given:
        wanted = min(torch.get_num_threads(), usable_cpus())
    if wanted is not None and wanted != torch.get_num_threads():
        torch.set_num_threads(wanted)


def ranks_here() -> int:
    """Return the number of ranks on this machine."""
    started = started_rank()
    return 1 if started is None else started.here


def _sharing() -> int:
    """Return the number of ranks whose processors are also those of this one: 1 if pinned apart."""
    if not is_distributed():
        return ranks_here()
    mine = socket.gethostname(), {*processors()}
    found: list[Any] = [None] * this_rank()[1]
    dist.all_gather_object(found, mine)
    return sum(host == mine[0] and bool(cores & mine[1]) for host, cores in found)


def data_parallel(
    module: nn.Module, device: torch.device, *, find_unused: bool = False
) -> nn.Module:
    """Return the module with gradients averaged over ranks; without ranks the module itself."""
    if not is_distributed():
        return module
    # With the device named, scalars come back from where they were computed.
    ids = None if device.type == "cpu" else [torch.accelerator.current_device_index()]
    with warnings.catch_warnings():
        # torch 2.13 deprecates this keyword for one that copies the buffers of rank 0 at the start.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            module,
            device_ids=ids,
            broadcast_buffers=False,
            find_unused_parameters=find_unused,
            gradient_as_bucket_view=True,
        )


def sum_over_ranks(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the sum of each value over all ranks."""
    return _reduced(values, device, dist.ReduceOp.SUM)


def sum_in_place(counts: Iterable[Tensor]) -> None:
    """Replace tensors by their sums over all ranks."""
    if is_distributed():
        for count in counts:
            dist.all_reduce(count)


def max_over_ranks(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the maximum of each value over all ranks."""
    return _reduced(values, device, dist.ReduceOp.MAX)


def _reduced(
    values: Sequence[float], device: torch.device, operation: dist.ReduceOp.RedOpType
) -> list[float]:
    if not is_distributed():
        return [*map(float, values)]
    reduced = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(reduced, operation)
    return cast(list[float], reduced.tolist())


def on_rank_zero(make: Callable[[], T]) -> T:
    """Call a function on rank 0 and return its result on all ranks."""
    if not is_distributed():
        return make()
    result: list[Any] = [None]
    if is_rank_zero():
        try:
            result = [make()]
        except GeoprepError as error:
            result = [error]
    dist.broadcast_object_list(result, device=torch.device("cpu"))
    if isinstance(result[0], GeoprepError):
        raise result[0]
    return cast(T, result[0])


def gather_on_rank_zero(value: T) -> list[T]:
    """Return the values of all ranks, in the order of ranks, on rank 0; an empty list on others."""
    if not is_distributed():
        return [value]
    values: list[T | None] | None = [None] * this_rank()[1] if is_rank_zero() else None
    dist.gather_object(value, values)
    return cast(list[T], values or [])


def average_in_place(tensors: Iterable[Tensor]) -> None:
    """Replace float tensors by their means over all ranks, in one message.

    The sums are fp64, so that a tensor that is the same on all ranks keeps its bytes.
    """
    values = list(tensors)
    if not is_distributed() or not values:
        return
    together = torch.cat([value.flatten().double() for value in values])
    dist.all_reduce(together)
    together /= this_rank()[1]
    means = torch.split(together, [value.numel() for value in values])
    for value, mean in zip(values, means, strict=True):
        value.copy_(mean.view_as(value))
