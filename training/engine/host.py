"""The machine of a run: its description for the header, and settings of its memory allocator.

Every step allocates and frees the same gigabytes. By default glibc returns large blocks to the
kernel at once and gets them back page by page, zeroed, which reduces the rate of fp32 on two cores
by a third (measured). Three calls of ``mallopt`` avoid this; so do tcmalloc and jemalloc.
"""

from __future__ import annotations

import ctypes
import os
import re

import torch

from geoprep.cpus import instruction_sets, usable_cpus
from loaders import available_memory
from training.engine.native import Engine, computes_bf16, read_text

# Numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_TOP_PAD = 64 << 20
_MADV_HUGEPAGE = 14
_HUGE_PAGE = 2 << 20

_ALLOCATORS = ("tcmalloc", "jemalloc", "mimalloc")


def keep_memory(reserve: int | None = None, *, one_heap: bool = False) -> str:
    """Make the C library keep freed memory for the next step, in huge pages if possible.

    Call it once, before the first large tensor is created. ``reserve`` is the address space to
    prepare for huge pages, about the memory of a step. Only one heap keeps its memory: use
    ``one_heap`` if several threads create large tensors.
    """
    preloaded = preloaded_allocator()
    if preloaded:
        return f"{preloaded}, preloaded"
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "gnu_get_libc_version"):
        return "system default"
    options = [(_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, _TOP_PAD)]
    options += [(_M_ARENA_MAX, 1)] if one_heap else []
    if not all(libc.mallopt(*option) for option in options):
        return "glibc, defaults (mallopt failed)"
    nbytes = available_memory().nbytes // 4 if reserve is None else reserve
    return "glibc, keeps freed memory" + (", huge pages" if _advise_huge(libc, nbytes) else "")


def _advise_huge(libc: ctypes.CDLL, nbytes: int) -> bool:
    """Grow the heap by a block, request huge pages for it, free it; return whether that worked.

    The block stays in the heap, which no longer shrinks. ``glibc.malloc.hugetlb=1`` does the same,
    but has to be in the environment before the process starts.
    """
    on_request = "[madvise]" in read_text("/sys/kernel/mm/transparent_hugepage/enabled")
    if not on_request or nbytes < 2 * _HUGE_PAGE:  # others are always given, or never
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


def preloaded_allocator() -> str | None:
    """Return the name of the allocator that replaces the C library's; None if there is none."""
    wanted, maps = os.environ.get("LD_PRELOAD", ""), read_text("/proc/self/maps")
    return next((name for name in _ALLOCATORS if name in wanted and name in maps), None)


def describe(engine: Engine) -> list[tuple[str, str]]:
    """Return rows of a run's header: engine, device, instruction sets and threads."""
    cpu = ", ".join(instruction_sets()) or torch.backends.cpu.get_cpu_capability()
    on_cpu = engine.device.type == "cpu"
    if on_cpu and engine.dtype == torch.bfloat16 and not computes_bf16(engine.device):
        cpu += " (none for bf16, which is emulated: `precision` auto is faster)"
    asleep = ", asleep while they wait" if os.environ.get("GOMP_SPINCOUNT") == "0" else ""
    return [
        ("engine", engine.reason),
        ("device", _device_name(engine.device)),
        ("instructions", cpu),
        ("torch", f"{torch.__version__}, oneDNN {_onednn()}"),
        ("threads", f"{torch.get_num_threads()} of {usable_cpus()} processors{asleep}"),
    ]


def _onednn() -> str:
    found = re.search(r"MKL-DNN v([\d.]+)", torch.__config__.show())
    return found[1] if found else "none"


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu"
    return f"{device.type}, {torch.get_device_module(device).get_device_name(device)}"
