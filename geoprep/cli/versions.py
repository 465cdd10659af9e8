"""Output of ``geoprep --version --verbose``: the versions and the machine that a report needs."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from geoprep import __version__
from geoprep.cpus import instruction_sets, physical_cores, processors

PACKAGES = (
    *("numpy", "numba", "zarr", "numcodecs", "rasterio", "pyogrio", "geopandas", "shapely"),
    *("pyproj", "scikit-image", "scipy", "xarray", "dask", "onnxruntime", "openvino"),
)
# Without the current folder on the path, which may hold a folder of that name.
TORCH = ("-P", "-m", "training.engine.versions")


def version_text() -> str:
    """Return the versions of all that matters, the processor and the accelerators, as lines."""
    import pyogrio
    import pyproj
    import rasterio
    import shapely

    cores = physical_cores(processors())
    rows = {
        "geoprep": __version__,
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "GDAL": f"{rasterio.__gdal_version__} (rasterio), "
        f"{'.'.join(map(str, pyogrio.__gdal_version__))} (pyogrio)",
        "PROJ": f"{rasterio.__proj_version__} (rasterio), {pyproj.proj_version_str} (pyproj)",
        "GEOS": shapely.geos_version_string,
        "torch": _torch(),
        "processor": f"{len(cores)} cores, {', '.join(instruction_sets()) or platform.machine()}",
        **{name: _installed(name) for name in PACKAGES},
    }
    return "\n".join(f"{name:13} {value}" for name, value in rows.items())


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _torch() -> str:
    if _installed("torch") == "not installed":
        return "not installed"
    done = subprocess.run([sys.executable, *TORCH], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout.strip()
    reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return f"{_installed('torch')}, which cannot be imported: {reason}"
