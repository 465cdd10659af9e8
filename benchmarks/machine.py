"""What figures depend on, processor to libraries; what this process has used."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from geoprep.cpus import usable_cpus

LIBRARIES = (
    *("geoprep", "numpy", "numba", "zarr", "zarrs", "numcodecs", "rasterio", "shapely", "torch"),
)
ISA = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve")
"""Instruction sets that change what image code and training cost, as /proc/cpuinfo spells them."""


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, memory, load, Python, libraries."""
    import psutil

    model, flags = _processor()
    return {
        "processor": model,
        "cores": usable_cpus(),
        "isa": [name for name in ISA if name in flags],
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES if find_spec(name)},
    }


def _processor() -> tuple[str, list[str]]:
    lines: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        lines.setdefault(name.strip().lower(), value.strip())
    flags = lines.get("flags") or lines.get("features") or ""
    return lines.get("model name") or platform.processor() or "unknown", flags.split()


def resident(name: str = "VmHWM") -> int:
    """Return bytes of this process that the kernel counts: ``VmRSS`` now, ``VmHWM`` at most so far.

    Not ``ru_maxrss``: that one begins with the size of the process that started it.

    Raises
    ------
    RuntimeError
        The kernel does not tell.
    """
    for row in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if row.startswith(f"{name}:"):
            return int(row.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}: the kernel does not tell it")
