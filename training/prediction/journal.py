"""Unfinished predictions: a folder with the tiles of every level, and a journal to resume from.

The journal records the sizes of a row of tiles once its bytes are on the disk; the rest is cut off
by a resume.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from geoprep.errors import UsageError
from geoprep.storage.local_files import LockHeldError, flush, hold_lock, json_lines
from geoprep.storage.output_files import put

FORMAT = 1


class BusyError(UsageError):
    """Another process writes the same file."""


class WriteJournal:
    """A hidden folder next to an unfinished file, with its journal and its tiles.

    Work with another ``identity`` is discarded. ``settled`` has decisions of the first run that
    later runs keep, ``rows`` the sizes of the tiles in every row of tiles that is on the disk.
    """

    def __init__(self, target: Path, identity: dict[str, Any]) -> None:
        self.folder, self._target = folder_of(target), target
        self.settled: dict[str, Any] = {}
        self.rows: list[list[int]] = []
        self.discarded = False  # whether there was work with another identity
        self._identity = {"format": FORMAT, **identity}
        self._path = self.folder / "journal.jsonl"

    def __enter__(self) -> WriteJournal:
        self._lock = locked(self.folder)
        self._resume()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._lock.close()

    @property
    def continued(self) -> bool:
        """Whether this run resumes an earlier one."""
        return bool(self.settled)

    def settle(self, **decisions: Any) -> None:  # noqa: ANN401 - plain JSON values
        """Record decisions that later runs keep."""
        self.settled = decisions
        self._write({**self._identity, "settled": decisions})

    def add_row(self, sizes: list[int]) -> None:
        """Record that a row of tiles is on the disk."""
        self.rows.append(sizes)
        self._write({"row": sizes})

    def open_tiles(self, level: int) -> BinaryIO:
        """Open the file with the tiles of a level; it may have those of an earlier run."""
        path = self.folder / f"level{level}.tiles"
        return path.open("r+b" if path.exists() else "w+b")

    @property
    def whole(self) -> Path:
        """Return where the file is written before it is complete."""
        return self.folder / "whole.tif"

    def deliver(self) -> None:
        """Rename the complete file to its name."""
        put(self.whole, self._target)
        flush(self._target.parent)

    def remove(self) -> None:
        """Delete the folder, when the file is complete or cannot be written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, *entries: dict[str, Any]) -> None:
        self._file.writelines(json.dumps(entry) + "\n" for entry in entries)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _resume(self) -> None:
        """Read the journal of an earlier run; discard it if its identity differs."""
        head, *rest = [*json_lines(self._path)] or [{}]
        settled = head.pop("settled", {})
        if head == self._identity:
            self.settled, self.rows = settled, [entry["row"] for entry in rest]
        self.discarded = bool(settled) and not self.settled
        # Rewritten, since a crash may have cut off the last line.
        self._file: TextIO = self._path.open("w")
        if self.settled:
            self._write({**head, "settled": settled}, *rest)


def remove_leftover(target: Path) -> None:
    """Delete the folder of a complete file, left by a run that was killed while it deleted it."""
    folder = folder_of(target)
    if folder.is_dir():
        with suppress(BusyError), locked(folder):
            shutil.rmtree(folder, ignore_errors=True)


def locked(folder: Path) -> TextIO:
    """Make a folder and return its lock, held until closed; BusyError if another holds it."""
    try:
        return hold_lock(folder / "lock")
    except LockHeldError as owner:
        raise BusyError(
            f"{folder}: {owner} predicts this image. Wait for it, or choose another folder as `out`"
        ) from owner


def folder_of(target: Path) -> Path:
    """Return the folder of the journal and the tiles of a file."""
    return target.with_name(f".{target.name}.partial")
