"""The working folder of a build, ``NAME.zarr.build``, with an entry per finished task.

It is removed when the store is complete. A folder inside the store would make Zarr warn, and
hosts, times and paths must not enter a store whose bytes depend on the inputs only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, TextIO

from geoprep.errors import OutputError, StoreError
from geoprep.storage.failures import errors_named
from geoprep.storage.local_files import LockHeldError, flush, hold_lock, is_at, json_lines
from geoprep.storage.sinks import PARTIAL_SUFFIX, REQUESTS, Bucket

NEW: Final = "new"
"""Name, in the working folder, of the store that is being built."""
OLD: Final = "old"
"""Name, in the working folder, of a store that has been replaced."""
_OF_STORES: Final = re.compile(rf"(.+/)?(zarr\.json|c(/\d+)*|[^/]*{re.escape(PARTIAL_SUFFIX)})")
"""Names of all files that a build may write into a store."""
_OURS: Final = ("journal.jsonl", "*.bits", "lock")


class Journal:
    """The working folder of the build of a store on a disk: a lock, and a line per entry.

    It is locked while open; StoreError if another build has locked it.
    """

    def __init__(self, store: Path) -> None:
        self.folder = store.with_name(store.name + ".build")
        self._lines = self.folder / "journal.jsonl"
        self._open = ExitStack()  # closing a file flushes, which fails again on a full disk
        self._out: TextIO | None = None

    def __enter__(self) -> Journal:
        try:
            with errors_named(self.folder, OutputError):
                lock = hold_lock(self.folder / "lock")
        except LockHeldError as owner:
            raise StoreError(
                f"{self.folder.with_suffix('')} is being built by {owner}. Wait for it, or stop it "
                "and run the same command again to resume"
            ) from owner
        self._open.enter_context(lock)
        self._open.callback(self._remove_unused, lock)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _remove_unused(self, lock: TextIO) -> None:
        """Remove the folder if it has nothing for a next run."""
        resumable = self._lines.exists() or (self.folder / OLD).exists()
        if not resumable and is_at(lock, self.folder / "lock"):
            self.remove()

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries of earlier runs, without a last line that a crash cut short."""
        return json_lines(self._lines)

    def write(self, entry: dict[str, Any]) -> None:
        """Append an entry; when this returns, it is on the disk."""
        if self._out is None:
            # A line cut short by a crash must not merge with the next one.
            self._out = self._open.enter_context(self._lines.open("a", encoding="utf-8"))
            self._out.write("\n")
        self._out.write(json.dumps(entry) + "\n")
        self._out.flush()
        os.fsync(self._out.fileno())

    def restart(self) -> None:
        """Remove the entries of earlier runs."""
        self._lines.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder, once the store is complete. Files of others in it stay."""
        for name in (NEW, OLD):
            remove_store(self.folder / name)
        for pattern in _OURS:
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()
        flush(self.folder.parent)


class BucketJournal:
    """The working folder of one build, ``NAME.zarr.build``, with one object per entry.

    Parameters
    ----------
    folder
        Its address.
    require_owned
        Raises StoreError if another build has taken over the store.
    """

    def __init__(self, folder: str, require_owned: Callable[[], None]) -> None:
        self.folder = folder
        self._bucket = Bucket(folder)
        self._require_owned = require_owned

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries of earlier runs."""
        names = [name for name in self._bucket.tags() if name.endswith(".json")]
        with ThreadPoolExecutor(REQUESTS) as pool:
            for found in pool.map(self._bucket.find, names):
                if found is not None:
                    yield json.loads(found[0])

    def write(self, entry: dict[str, Any]) -> None:
        """Write an entry; when this returns, it is in the bucket."""
        self._require_owned()
        kind = "shard" if "shard" in entry else "survey"
        number = entry["shard"]["shard"] if kind == "shard" else entry["survey"]["index"]
        self._bucket.put(f"{kind}/{number}.json", json.dumps(entry).encode())

    def restart(self) -> None:
        """Remove everything that earlier runs have left."""
        self._bucket.delete(self._bucket.tags())

    remove = restart


def refuse_foreign(out: str, names: Iterable[str]) -> None:
    """Raise StoreError for files that no build wrote, which would go with a replaced store."""
    foreign = sorted(name for name in names if not _OF_STORES.fullmatch(name))
    if foreign:
        others = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise StoreError(
            f"{out} contains {foreign[0]}{others}, which no build wrote: move what you need out "
            "of the store before it is replaced, or choose another `out`"
        )


def remove_store(folder: Path) -> None:
    """Remove the files that a build may have written, and the folders that are empty then."""
    # zarr.json is removed last, so an interrupted removal still leaves a store, not foreign files.
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):
                path.rmdir()
        elif name != "zarr.json" and _OF_STORES.fullmatch(name):
            path.unlink(missing_ok=True)
    (folder / "zarr.json").unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
