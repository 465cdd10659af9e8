"""The folder of a run: its name, its lock, and the files in it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TextIO

from geoprep.errors import UsageError
from geoprep.outputs import check_outputs
from geoprep.storage.local_files import LockHeldError, hold_lock
from training.checkpoint import BEST, LAST
from training.setting_texts import are_settings, write_settings
from training.settings import OF_ONE_START, SECTIONS, Config

_FILES = (
    *("log.txt", "metrics.csv", "curves.png", "config.yaml", BEST, LAST),
    *("pictures/epoch_*.png", "tensorboard/events.out.tfevents.*"),
)


def folder_of(config: Config) -> Path:
    """Return the folder of the run."""
    if config.resume is not None or config.out is not None:
        return Path(config.resume or config.out or "")
    if not config.stores:
        raise UsageError(
            "give at least one store, such as `geoprep fit moscow.zarr`, or a run to "
            "resume: --resume runs/moscow"
        )
    return Path("runs") / Path(config.stores[0].rstrip("/")).stem


def holds_run(folder: Path) -> bool:
    """Return whether a folder holds a checkpoint of a run."""
    return (folder / LAST).exists() or (folder / BEST).exists()


def _files_of(folder: Path) -> list[Path]:
    """Return the files in a folder that have the names of those of a run."""
    return [path for pattern in _FILES for path in folder.glob(pattern)]


def refuse_others(folder: Path, *, locked: bool = False) -> None:
    """Raise UsageError if the folder holds files with the names of those of a run, but no run.

    A run is known by its settings, beside a checkpoint, or a log if it was killed before the first;
    or it is ``locked``.
    """
    began = locked or holds_run(folder) or (folder / "log.txt").exists()
    if not (began and are_settings(folder / "config.yaml")):
        for path in _files_of(folder):
            raise UsageError(
                f"{path} exists and is not of a run of geoprep fit: move it, or choose another "
                "folder (`out`)"
            )


def check_free(config: Config, lock: RunLock) -> None:
    """Raise UsageError if the folder holds another run, one in training, or files of others."""
    folder = lock.folder
    if (folder / "zarr.json").exists():
        raise UsageError(f"{folder} is a store: choose another folder (`out`)")
    refuse_others(folder, locked=lock.check())
    if config.resume is not None:
        return
    if holds_run(folder) and not config.overwrite:
        raise UsageError(
            f"{folder} holds a run: resume it (`resume` {folder}), choose another folder (`out`), "
            "or replace it (`overwrite`)"
        )
    if config.overwrite:
        weights = (config.init_from, config.encoder_weights)
        inputs = [path for name in weights if name for path in (Path(name), Path(name) / BEST)]
        check_outputs(*_files_of(folder), inputs=inputs, overwrite=True)


def claim(config: Config, lock: RunLock) -> None:
    """Create and lock the folder of a run, and remove a run that is to be overwritten."""
    folder = lock.folder
    lock.take()
    check_free(config, lock)  # again: another run may have finished in it meanwhile
    if config.overwrite and config.resume is None:
        for path in _files_of(folder):
            path.unlink()
            with suppress(OSError):  # files of others stay
                path.parent.rmdir()
    flat = {name: value for name, value in config.flat().items() if name not in OF_ONE_START}
    write_settings(folder / "config.yaml", SECTIONS, flat)


class RunLock:
    """Lock of a run's folder, released when the context ends or the process dies."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._path = folder, folder / ".lock"
        self._file: TextIO | None = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()

    def take(self) -> None:
        """Lock the folder; raise UsageError if another process trains in it."""
        try:
            self._file = self._file or hold_lock(self._path)
        except LockHeldError as owner:
            raise UsageError(
                f"{self.folder}: {owner} is training in this folder: wait for it, or choose "
                "another `out`"
            ) from owner

    def check(self) -> bool:
        """Return whether there is a lock, now of this process; UsageError if another has it."""
        if self._path.exists():
            self.take()
        return self._file is not None
