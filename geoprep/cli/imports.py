"""Import libraries without the optional libraries that they look for and commands do not use."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Final, Literal

_OF_PYOGRIO: Final = ("pyarrow", "pandas", "geopandas")
"""Libraries of which pyogrio asks the version when it is imported; it uses them in functions."""


_ABSENT: Final = {"rasterio": "boto3", "zarr": "fsspec"}
"""Libraries that are imported as if another one were not installed."""


def import_quickly(*libraries: Literal["pyogrio", "rasterio", "zarr"]) -> None:
    """Import libraries in less time than a plain import takes; call it before threads start."""
    for name in libraries:
        if name not in sys.modules:
            absent = _ABSENT.get(name)
            with _replaced(dict(_named_versions()) if absent is None else {absent: None}):
                import_module(name)


def _named_versions() -> Iterator[tuple[str, ModuleType]]:
    """Yield empty modules that have the versions of the installed ones."""
    from importlib.metadata import PackageNotFoundError, version  # takes long itself

    for name in _OF_PYOGRIO:
        module = ModuleType(name)
        try:
            module.__dict__["__version__"] = version(name)
        except PackageNotFoundError:
            continue
        yield name, module


@contextmanager
def _replaced(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Replace modules that are not loaded yet; None makes their import fail."""
    absent = [name for name in modules if name not in sys.modules]
    sys.modules.update({name: modules[name] for name in absent})  # type: ignore[misc]  # None is allowed
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
