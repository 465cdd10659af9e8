"""The processors that this process may use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def usable_cpus() -> int:
    """Return the number of processors that this process may run on."""
    return len(processors())


def processors() -> list[int]:
    """Return the numbers of the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # Linux: containers and `taskset` restrict it
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


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
