"""Facts about the machine that figures depend on."""

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
"""Instruction sets that affect the speed of image code and training, as in /proc/cpuinfo."""


def machine() -> dict[str, Any]:
    """Return processor, memory, load, Python and library versions of this machine."""
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
