"""What is done of one image, on disk beside its output, so that a killed run goes on."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from geoprep.errors import UsageError

FORMAT = 1


class BusyError(UsageError):
    """Another process is at work on an output."""


class WriteJournal:
    """The folder of a half-done output: its journal, and room for its tiles.

    Parameters
    ----------
    target
        The output that will be; the folder lies beside it.
    identity
        What the work depends on, as plain JSON: another one begins anew.

    Attributes
    ----------
    folder
        For the files of the work.
    settled
        What was decided at the beginning and is kept when the work is taken up again.
    rows
        Sizes of the tiles of every row of tiles that is safe on the disk.

    Raises
    ------
    BusyError
        Another process is at work on it.
    """

    def __init__(self, target: Path, identity: dict[str, Any]) -> None:
        self.folder = folder_of(target)
        self.settled: dict[str, Any] = {}
        self.rows: list[list[int]] = []
        self._identity = {"format": FORMAT, **identity}
        self._path = self.folder / "journal.jsonl"

    def __enter__(self) -> WriteJournal:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.folder)
        self._take_up()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._lock.close()

    @property
    def continued(self) -> bool:
        """Whether work was taken up that another run began."""
        return bool(self.settled)

    def settle(self, **decisions: Any) -> None:  # noqa: ANN401 - plain JSON values
        """Note what was decided at the beginning."""
        self.settled = decisions
        self._write({**self._identity, "settled": decisions})

    def add_row(self, sizes: list[int]) -> None:
        """Note that a row of tiles is on the disk."""
        self.rows.append(sizes)
        self._write({"row": sizes})

    def remove(self) -> None:
        """Delete the folder: the output is complete, or cannot be."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, *entries: dict[str, Any]) -> None:
        self._file.writelines(json.dumps(entry) + "\n" for entry in entries)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _take_up(self) -> None:
        """Read what another run left; forget it where it was other work, or never got started."""
        head, *rest = _entries(self._path) or [{}]
        settled = head.pop("settled", {})
        if head == self._identity:
            self.settled, self.rows = settled, [entry["row"] for entry in rest]
        # Written anew: a line that a crash cut off must not run into the next one.
        self._file: TextIO = self._path.open("w")
        if self.settled:
            self._write({**head, "settled": settled}, *rest)


def remove_leftover(target: Path) -> None:
    """Delete what a run left beside a complete output that was killed while it deleted it."""
    folder = folder_of(target)
    # Nothing is there, or somebody is at work in it.
    with suppress(OSError, BusyError), _locked(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path) -> TextIO:
    """Return the lock of a folder, held until it is closed.

    Raises
    ------
    BusyError
        Somebody else has it.
    """
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise BusyError(
            f"{folder}: another prediction is writing this image: wait for it, or choose "
            "another --out"
        ) from error
    return lock


def folder_of(target: Path) -> Path:
    """Return where the work on an output is kept until it is complete."""
    return target.with_name(f".{target.name}.partial")


def _entries(path: Path) -> list[dict[str, Any]]:
    """Return all whole lines of a journal."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_text().splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
    return entries
