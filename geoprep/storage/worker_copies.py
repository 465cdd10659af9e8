"""Copies of remote files on the disk of a Dask worker, which reads every file more than once."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path, PurePosixPath

from geoprep.errors import OutputError, UsageError
from geoprep.storage.places import remote_file
from geoprep.storage.transfer import download

_KEPT_FREE = 2**30
"""Bytes of the disk that copies leave free."""


def worker_copy(address: str) -> Path | None:
    """Return the local copy of a remote file, downloaded where missing; None outside of a worker.

    Copies are in the worker's own folder, which Dask deletes with the worker. They are checked
    against the remote file at every use. None also if the disk is too small or cannot be written.
    """
    folder = _worker_folder()
    if folder is None:
        return None
    remote = remote_file(address)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError:
        return None
    name = hashlib.sha256(address.encode()).hexdigest()[:32]
    path = folder / f"{name}{PurePosixPath(address).suffix[:20]}"
    if not path.exists() and free - remote.size < _KEPT_FREE:
        return None
    try:
        download(remote, path)
    except (OutputError, UsageError):
        return None
    return path


def _worker_folder() -> Path | None:
    """Return the folder of copies if this thread runs a task of a Dask worker."""
    if "distributed" not in sys.modules:
        return None
    from distributed import get_worker

    try:
        return Path(get_worker().local_directory) / "geoprep"
    except ValueError:
        return None
