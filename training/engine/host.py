"""What this machine offers a training run, and an allocator that keeps the memory it has got.

Every step asks for the same gigabytes and gives them back. glibc by default returns large blocks
to the kernel at once and gets them again page by page, zeroed: on two cores that costs fp32 a
third of its rate (measured). Three calls of ``mallopt`` end it; so do tcmalloc and jemalloc.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

from loaders import available_memory, usable_cpus
from training.engine.native import Engine

# Numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_TOP_PAD = 64 << 20
_MADV_HUGEPAGE = 14
_HUGE_PAGE = 2 << 20

_ALLOCATORS = ("tcmalloc", "jemalloc", "mimalloc")

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
"""Instruction sets that decide how fast a convolution is, and their flags in /proc/cpuinfo."""


def keep_memory(reserve: int | None = None, *, one_heap: bool = False) -> str:
    """Let the C library keep freed memory for the next step, in huge pages where it can.

    Call it once, before the first large tensor.

    Parameters
    ----------
    reserve
        Bytes of address space to lay out for huge pages: about what a step uses. Memory is taken
        only as it is touched. None: a quarter of what is available.
    one_heap
        Whether all threads share this heap, which alone keeps its memory: for large tensors made in
        several threads.

    Returns
    -------
    str
        The allocator, for the run's header.
    """
    preloaded = preloaded_allocator()
    if preloaded:
        return f"{preloaded}, preloaded"
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "gnu_get_libc_version"):
        return "the system's, as it is"
    options = [(_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, _TOP_PAD)]
    options += [(_M_ARENA_MAX, 1)] if one_heap else []
    if not all(libc.mallopt(*option) for option in options):
        return "glibc, as it is: it refused mallopt"
    nbytes = available_memory().nbytes // 4 if reserve is None else reserve
    return "glibc, keeps its memory" + (", huge pages" if _advise_huge(libc, nbytes) else "")


def _advise_huge(libc: ctypes.CDLL, nbytes: int) -> bool:
    """Grow the heap by a block, ask for huge pages in it, free it; return whether that worked.

    The block stays with the heap, since that no longer shrinks. What ``glibc.malloc.hugetlb=1``
    does, which has to be in the environment before the process starts.
    """
    if not _huge_pages_on_request() or nbytes < 2 * _HUGE_PAGE:
        return False
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    block = libc.malloc(nbytes)
    if not block:
        return False
    first = -(-block // _HUGE_PAGE) * _HUGE_PAGE
    length = (block + nbytes - first) // _HUGE_PAGE * _HUGE_PAGE
    done: bool = libc.madvise(first, length, _MADV_HUGEPAGE) == 0
    libc.free(block)
    return done


def _huge_pages_on_request() -> bool:
    """Whether the kernel gives huge pages to who asks (``madvise``), and not to all or none."""
    return "[madvise]" in _told("/sys/kernel/mm/transparent_hugepage/enabled")


def _told(path: str) -> str:
    """Return what the kernel tells in a file; nothing where it has no such file."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def preloaded_allocator(environment: str | None = None, maps: str | None = None) -> str | None:
    """Return the name of the allocator that stands in for the C library's, or None.

    Parameters
    ----------
    environment, maps
        ``LD_PRELOAD`` and ``/proc/self/maps``; None reads them. A library that is preloaded but
        not mapped was not found by the loader, which only warns.
    """
    wanted = os.environ.get("LD_PRELOAD", "") if environment is None else environment
    maps = _told("/proc/self/maps") if maps is None else maps
    return next((name for name in _ALLOCATORS if name in wanted and name in maps), None)


def instruction_sets(cpuinfo: str | None = None) -> tuple[str, ...]:
    """Return the instruction sets of this processor that matter here, such as ``AVX512_BF16``.

    Parameters
    ----------
    cpuinfo
        Text of ``/proc/cpuinfo``; None reads it. Empty where there is none.
    """
    cpuinfo = _told("/proc/cpuinfo") if cpuinfo is None else cpuinfo
    lines = (line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features")))
    flags = set(next(lines, "").split(":")[-1].split())
    return tuple(name for name, flag in _ISA if flag in flags)


def describe(engine: Engine) -> list[tuple[str, str]]:
    """Return rows for the header of a run: what computes, with what.

    Parameters
    ----------
    engine
        An engine of `training.engine.native`.
    """
    sets = instruction_sets()
    cpu = ", ".join(sets) or torch.backends.cpu.get_cpu_capability()
    emulated = not {"AVX512_BF16", "AMX_BF16", "BF16"} & set(sets)
    if emulated and engine.dtype == torch.bfloat16 and engine.device.type == "cpu":
        cpu += " (none for bf16, which is emulated: --precision fp32 is faster)"
    return [
        ("engine", engine.reason),
        ("device", _device_name(engine.device)),
        ("instructions", cpu),
        ("threads", f"{torch.get_num_threads()} of {usable_cpus()} processors, {waiting()}"),
    ]


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu"
    return f"{device.type}, {torch.get_device_module(device).get_device_name(device)}"


def waiting() -> str:
    """Return how threads wait for work, which decides what a run loses beside other processes."""
    spins = os.environ.get("GOMP_SPINCOUNT")
    policy = os.environ.get("OMP_WAIT_POLICY", "as OpenMP has it").lower()
    return f"waiting {policy if spins is None else f'with GOMP_SPINCOUNT={spins}'}"
