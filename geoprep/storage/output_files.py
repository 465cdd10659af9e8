"""The files that a command writes: stated and checked before, each replaced whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import xxhash

from geoprep.errors import GeoprepWarning, OutputError, UsageError
from geoprep.storage.failures import errors_named
from geoprep.storage.local_files import StrPath, flush_all, json_lines

LIST: Final = ".geoprep-outputs"
"""File, in the folder of outputs, with a line per file that a command has written: its digest."""

_ABANDONED_S: Final = 24 * 3600
"""Seconds without a write after which a temporary file counts as left by a killed process."""
_COUNTERS: Final = 100
"""Bytes of the header of SQLite, which even viewers of a GeoPackage change."""
_RASTERS: Final = (".tif", ".tiff", ".png", ".jpg", ".jpeg")

_stated: set[Path] = set()


def outputs(*files: Path, inputs: Iterable[StrPath] = (), marked: Collection[Path] = ()) -> None:
    """State all files that a command will write, before it writes any.

    An existing file is ours, and may be replaced, if an earlier command has listed its digest in
    `LIST`. Files that GDAL keeps beside a raster, such as statistics, go with it and are named.

    Parameters
    ----------
    files
        Main files and their companions. Their writers use `replaced` or `put`.
    inputs
        Files that the command reads.
    marked
        Existing files of ``files`` that the caller knows as ours by a mark in them.

    Raises
    ------
    UsageError
        A file is an input, is stated twice, exists and is not ours, or has no folder.

    Examples
    --------
    >>> from pathlib import Path
    >>> outputs(Path("roads.csv"))
    >>> with replaced(Path("roads.csv")) as partial:
    ...     _ = partial.write_text("scene,apls")
    >>> is_ours(Path("roads.csv"))
    True
    """
    read = {_identity(Path(path)) for path in inputs} - {None}
    own, stated = {_place(path) for path in marked}, set[Path]()
    for file in files:
        require_folder(file)
        if _place(file) in stated:
            raise UsageError(f"{file} would be written twice: give each output a name of its own")
        if _identity(file) in read:
            raise UsageError(f"{file} would replace an input: write to another file or folder")
        exists, aside = os.path.lexists(file), "move it, or write to another file or folder"
        if exists and not (_place(file) in own or is_ours(file)):
            raise UsageError(f"{file} exists and is no output of geoprep, or was edited: {aside}")
        for beside in _companions(file):
            if os.path.lexists(beside) and not is_ours(beside):
                if not exists:
                    raise UsageError(f"{beside} exists and would describe {file.name}: {aside}")
                text = f"{beside} describes the file before and is removed with it"
                warnings.warn(text, GeoprepWarning, stacklevel=3)
        for log in (file.with_name(f"{file.name}-{kind}") for kind in ("wal", "journal")):
            if file.suffix.lower() == ".gpkg" and log.is_file() and log.stat().st_size:
                raise UsageError(f"{log} has changes of another program: close {file.name} there")
        stated.add(_place(file))
    _stated.update(stated, *(map(_place, _companions(file)) for file in files))


def is_ours(path: Path) -> bool:
    """Return whether a file has the content with which a command has listed it."""
    if not path.is_file():
        return False
    digest, entries = _digest(path), json_lines(path.with_name(LIST))  # listed before it was there
    return any((entry.get("file"), entry.get("digest")) == (path.name, digest) for entry in entries)


def put(new: Path, path: Path) -> None:
    """Rename a finished file to its place, list it, and remove companions of the previous file."""
    if _place(path) in _stated and new.is_file():
        with path.with_name(LIST).open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps({'file': path.name, 'digest': _digest(new)})}\n")
        for beside in _companions(path):
            beside.unlink(missing_ok=True)
    new.replace(path)


def _place(path: Path) -> Path:
    """Return a path that is equal for equal files, also if a file is a link."""
    return path.parent.resolve() / path.name


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file, which its links share; None where there is none."""
    with suppress(OSError, ValueError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _companions(path: Path) -> list[Path]:
    """Return the files in which GDAL keeps more about a raster."""
    suffixes = (".aux.xml", ".ovr", ".msk") if path.suffix.lower() in _RASTERS else ()
    return [path.with_name(path.name + suffix) for suffix in suffixes]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(_COUNTERS if path.suffix.lower() == ".gpkg" else 0)
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which is renamed to ``path`` on success.

    A file or a folder may be written there; a folder replaces nothing but an empty one.

    An incomplete file never has the final name, and a failure leaves the previous file untouched.
    Any number of threads and processes may write to one folder. Temporary files of killed processes
    are removed after a day.
    """
    require_folder(path)
    name = f".{path.stem}.{uuid.uuid4().hex[:16]}.partial{path.suffix}"
    partial = path.with_name(name)
    with errors_named(path, OutputError):
        try:
            _sweep(path.parent.absolute())
            partial.touch()  # refused at once, not after an hour of work
            partial.unlink()
            yield partial
            flush_all([*partial.rglob("*"), partial])
            put(partial, path)
        finally:
            _remove(partial)


@lru_cache(maxsize=1024)
def _sweep(folder: Path) -> None:
    """Remove temporary files of killed processes; once per process and folder."""
    for path in folder.glob(f".*.{'[0-9a-f]' * 16}.partial*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                _remove(path)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with its files, where that is possible."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
    for _ in range(10):
        if not os.path.isdir(path):  # noqa: PTH112 - raises no error
            return
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(0.02)  # after an error, zarr's other threads may write to a folder for a moment


def require_suffix(path: Path, *suffixes: str) -> None:
    """Raise UsageError if the name of a file has none of some suffixes, in any case."""
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"{path}: use a name that ends in {', '.join(suffixes)}")


def require_folder(path: Path) -> None:
    """Raise UsageError if the folder of a file to be written does not exist."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist: create it first")
