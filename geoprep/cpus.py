"""The processors that this process may use, and its place among the processes of a run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TOPOLOGY = Path("/sys/devices/system/cpu")


class StartedRank(NamedTuple):
    """Place of a process among those that were started together."""

    rank: int
    ranks: int
    local: int  # number among those of this machine
    here: int  # number of those


def started_rank() -> StartedRank | None:
    """Return the place of this process as ``torchrun`` or an operator sets it; None if alone.

    torch needs these four variables. Without ``LOCAL_RANK``, as in a pod of the Kubeflow
    operator, the process is the only one on its machine.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return None
    return StartedRank(
        int(os.environ["RANK"]),
        int(os.environ["WORLD_SIZE"]),
        int(os.environ.get("LOCAL_RANK", "0")),
        int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    )


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the number of processors that this process may use, by affinity and quota.

    A quota of its control groups is rounded up. ``root`` is the folder of ``proc`` and ``sys``.
    """
    counts = [len(processors())]
    for folder, unified in control_groups("cpu", root):
        with suppress(OSError, ValueError):  # no such group, or a quota of "max"
            names = ("cpu.max",) if unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = " ".join((folder / name).read_text() for name in names).split()
            counts.append(math.ceil(int(quota) / int(period)))
    return min(count for count in counts if count > 0)  # a quota of -1 is none


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's control group and of every group that contains it.

    Each with whether it is of version 2, where one group has all controllers.
    """
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        number, controllers, path = line.split(":", 2)
        unified = number == "0" and not controllers
        if not unified and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("" if unified else controller)
        # In a container the path may be the host's and not exist here; the mount itself is then
        # the container's own group.
        folder = mount / path.strip("/")
        yield from ((f, unified) for f in (folder, *folder.parents) if f.is_relative_to(mount))


def processors() -> list[int]:
    """Return the numbers of the processors that this process may run on."""
    return sorted(os.sched_getaffinity(0))  # containers and `taskset` restrict it


def physical_cores(numbers: Sequence[int]) -> list[list[int]]:
    """Return processors by physical core, which computes no faster if several of its work.

    Each is a core of its own where the system does not tell.
    """
    cores: dict[str, list[int]] = {}
    for number in numbers:
        path = _TOPOLOGY / f"cpu{number}/topology/thread_siblings_list"
        name = path.read_text() if path.exists() else f"{number}\n"
        cores.setdefault(name, []).append(number)
    return [*cores.values()]


_ISA = (
    ("AVX2", "avx2"),
    ("AVX512", "avx512f"),
    ("AVX512_VNNI", "avx512_vnni"),
    ("AVX512_BF16", "avx512_bf16"),
    ("AMX_INT8", "amx_int8"),
    ("AMX_BF16", "amx_bf16"),
    ("SVE", "sve"),
    ("BF16", "bf16"),
)
"""Instruction sets that determine the speed of convolutions, and their flags in /proc/cpuinfo."""


def instruction_sets(cpuinfo: str | None = None) -> tuple[str, ...]:
    """Return the instruction sets of this processor for convolutions, such as ``AVX512_BF16``.

    ``cpuinfo`` is the text of ``/proc/cpuinfo``. Empty where the system does not tell.
    """
    path = Path("/proc/cpuinfo")
    if cpuinfo is None:
        cpuinfo = path.read_text() if path.exists() else ""
    flags = next(
        (line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))), ""
    )
    words = set(flags.split(":")[-1].split())
    return tuple(name for name, flag in _ISA if flag in words)
