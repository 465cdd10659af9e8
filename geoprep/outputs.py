"""All files that a command will write, checked with all its inputs before it writes any."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

from geoprep.errors import UsageError

_BESIDE_RASTERS: Final = (".aux.xml", ".ovr", ".msk")
"""What GDAL keeps beside a raster, after its whole name."""
_RASTERS: Final = (".tif", ".tiff", ".png", ".jpg", ".jpeg")
_OF_ONE_STEM: Final = {
    ".shp": (".shx", ".dbf", ".prj", ".cpg", ".qix", ".sbn", ".sbx"),
    ".tab": (".dat", ".map", ".id", ".ind"),
    ".mif": (".mid",),
    ".xml": (".bin",),
}
"""Formats of several files, which share a stem."""

_Identity = tuple[int, int]


def check_outputs(
    *files: str | os.PathLike[str], inputs: Iterable[object] = (), overwrite: bool = False
) -> None:
    """Check all files that a command will write, once, before it writes any.

    What GDAL keeps beside a raster that is replaced, such as statistics, goes with it.

    Parameters
    ----------
    files
        Files to write. Their writers use `storage.output_files.replaced`.
    inputs
        Files and stores that the command reads: paths, or addresses, which are no files. Of a
        folder, the files that it reads. Others, such as a road network or None, are left out.
    overwrite
        Whether existing files may be replaced.

    Raises
    ------
    UsageError
        A file is an input or lies in a store that is one, is given twice, is a folder, has no
        folder, exists and is not to be overwritten, or is open in another program.

    Examples
    --------
    >>> check_outputs("roads.gpkg", inputs=["a.tif", "b.tif"])
    >>> check_outputs("roads.gpkg", inputs=["roads.gpkg"])
    >>> _ = Path("roads.gpkg").write_bytes(b"")
    >>> check_outputs("roads.gpkg", inputs=["roads.gpkg"], overwrite=True)
    Traceback (most recent call last):
    geoprep.errors.UsageError: roads.gpkg would replace an input: write to another file or folder
    """
    folder_of = cache(Path.resolve)
    named, paths = set[Path](), [Path(file) for file in files]
    given = [Path(item) for item in inputs if isinstance(item, str | os.PathLike)]
    stores = [path.resolve() for path in given if _is_file(path / "zarr.json")]
    for file in paths:
        require_folder(file)
        place = folder_of(file.parent) / file.name
        if place in named:
            raise UsageError(f"{file} would be written twice: give each output a name of its own")
        if any(place.is_relative_to(store) for store in stores):
            raise UsageError(f"{file} is in a store that is an input: write to another folder")
        named.add(place)
    existing = {
        path: file for file in paths for path in (file, *beside(file)) if os.path.lexists(path)
    }
    read = {_identity(path) for path in chain.from_iterable(map(_files_of, given)) if existing}
    for path in existing:
        if _identity(path) in read - {None}:
            raise UsageError(f"{path} would replace an input: write to another file or folder")
        if path.is_dir():
            raise UsageError(f"{path} is a folder: write to another file")
    for path, file in existing.items():
        if not overwrite:
            what = "exists" if path == file else f"exists and would describe {file.name}"
            aside = "use `overwrite` to replace it, or write to another file or folder"
            raise UsageError(f"{path} {what}: {aside}")
        for log in (path.with_name(f"{path.name}-{kind}") for kind in ("wal", "journal")):
            if path.suffix.lower() == ".gpkg" and _is_file(log) and log.stat().st_size:
                raise UsageError(f"{log} has changes of another program: close {path.name} there")


def beside(path: Path) -> list[Path]:
    """Return the files in which GDAL keeps more about a raster."""
    suffixes = _BESIDE_RASTERS if path.suffix.lower() in _RASTERS else ()
    return [path.with_name(path.name + suffix) for suffix in suffixes]


def require_suffix(path: Path, *suffixes: str) -> None:
    """Raise UsageError if the name of a file has none of some suffixes, in any case."""
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"{path}: use a name that ends in {', '.join(suffixes)}")


def require_folder(path: Path) -> None:
    """Raise UsageError if the folder of a file to be written does not exist."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist: create it first")


def _files_of(path: Path) -> Iterator[Path]:
    """Yield a file and what belongs to it."""
    yield path
    if not path.name:
        return
    yield from (path.with_name(path.name + suffix) for suffix in _BESIDE_RASTERS)
    yield from (path.with_suffix(suffix) for suffix in _OF_ONE_STEM.get(path.suffix.lower(), ()))


def _identity(path: Path) -> _Identity | None:
    """Return device and inode of a file, which its links share; None where there is none."""
    with suppress(OSError, ValueError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _is_file(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return path.is_file()
    return False
