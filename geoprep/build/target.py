"""The place where a store is built: beside its final place on a disk, or in place in a bucket."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from geoprep.build.commit import Histograms, finish
from geoprep.build.journal import NEW, OLD, Journal, refuse_foreign, remove_store
from geoprep.build.options import BuildOptions
from geoprep.build.plan import Plan
from geoprep.build.records import ShardRecord
from geoprep.errors import StoreError
from geoprep.storage import PARTIAL_SUFFIX, flush
from geoprep.store import StoreMeta, create_store, digest, shard_key

State = Literal["none", "incomplete", "complete"]
"""State of what an earlier run has left of the store that a plan makes."""

_COMPARED = ("rescale", "levels", "tile", "overlap", "shard_tiles")
"""Options that decide an attribute of the same name, which is compared instead."""


class DiskTarget:
    """A store in a local folder.

    It is built in the working folder and renamed to its place when it is complete. A store that
    it replaces is renamed into the working folder first. The next run finishes what was killed in
    between. ``folder`` is where files are written, and ``replaces`` whether a complete store stays
    at ``location`` until the new one is complete.
    """

    def __init__(self, out: Path) -> None:
        self.location = str(out)
        # A rename needs both on one file system, so the folder is beside the target of a link.
        self._out = out.resolve() if out.is_symlink() else out
        self._journal = Journal(self._out)
        self._new = self._journal.folder / NEW
        self._old = self._journal.folder / OLD
        self.folder = str(self._new)
        self.replaces = False

    def locked(self) -> AbstractContextManager[Journal]:
        """Return the journal, which locks the store inside the block."""
        return self._journal

    def prepare(self, plan: Plan, *, overwrite: bool) -> State:
        """Return what an earlier run has left, or raise StoreError for what is not replaced."""
        exchanged = self._finish_exchange()
        if self._out.exists() and not (self._out.is_dir() and not any(self._out.iterdir())):
            attrs = _attributes(self._out)
            if exchanged and not differences(attrs, plan.meta):
                return "complete"
            state = judge(self.location, attrs, plan, overwrite=overwrite)
            if state == "complete":
                return state
            files = (path for path in self._out.rglob("*") if not path.is_dir())
            refuse_foreign(self.location, (p.relative_to(self._out).as_posix() for p in files))
            self.replaces = bool(attrs.get("complete"))
        if self._out.is_dir() and self._out.stat().st_dev != self._journal.folder.stat().st_dev:
            raise StoreError(
                f"{self._out} is on another file system than the folder that it is in, so no store "
                "can be renamed to it: choose a folder inside it as `out`"
            )
        return self._begun(plan, overwrite=overwrite)

    def _begun(self, plan: Plan, *, overwrite: bool) -> State:
        """Return the state of the store in the working folder; put a complete one in its place."""
        attrs = _attributes(self._new)
        if isinstance(attrs, dict) and not differences(attrs, plan.meta):
            if not attrs.get("complete"):
                return "incomplete"
            self._exchange()
            return "complete"
        if isinstance(attrs, dict) and not self.replaces:
            judge(self.location, attrs, plan, overwrite=overwrite)
        remove_store(self._new)
        return "none"

    def kept(self, plan: Plan) -> dict[int, ShardRecord]:
        """Return the records of shards whose bytes have the recorded digest."""
        for partial in self._new.rglob(f"*{PARTIAL_SUFFIX}"):
            partial.unlink(missing_ok=True)
        return {
            record.shard: record
            for record in recorded_shards(plan, self._journal.entries())
            if all(
                _is_whole(self._new, name, record.shard, expected)
                for name, (expected, _) in record.files.items()
            )
        }

    def begin(self, plan: Plan, kept: Iterable[ShardRecord]) -> None:
        """Write the metadata of an incomplete store if they do not exist."""
        create_store(self._new, plan.meta, plan.tiles)

    def finish(self, plan: Plan, records: dict[int, ShardRecord], histograms: Histograms) -> None:
        """Write the tables, mark the store complete, and rename it to its place."""
        finish(plan, self._new, records, histograms)
        self._exchange()

    def discard(self) -> None:
        """Remove a replacement that cannot be used; the complete store stays."""
        remove_store(self._new)
        self._journal.restart()

    def _exchange(self) -> None:
        """Put the new store in its place; an old one goes to the working folder until the end."""
        if self._out.exists():
            remove_store(self._old)
            self._out.rename(self._old)
            flush(self._old.parent)
        self._new.rename(self._out)
        flush(self._out.parent)

    def _finish_exchange(self) -> bool:
        """Finish an exchange that was interrupted; return whether the new store is in place."""
        if not self._old.exists():
            return False
        if not self._out.exists():
            new = _attributes(self._new)
            complete = isinstance(new, dict) and bool(new.get("complete"))
            (self._new if complete else self._old).rename(self._out)
            flush(self._out.parent)
            if not complete:
                return False
        remove_store(self._old)
        return True


def judge(
    out: str,
    attrs: Any,  # noqa: ANN401 - anything that JSON can hold
    plan: Plan,
    *,
    overwrite: bool,
) -> Literal["incomplete", "complete", "replaced"]:
    """Return what a store with this root attribute ``geoprep`` means for a plan, or refuse it."""
    if not isinstance(attrs, dict):
        raise StoreError(f"{out} exists and is not a geoprep store: choose another `out`")
    found = differences(attrs, plan.meta)
    if not found and not (overwrite and attrs.get("complete")):
        return "complete" if attrs.get("complete") else "incomplete"
    if not overwrite:
        raise StoreError(
            f"{out} was built differently: {'; '.join(found)}. Use `overwrite` to replace it, or "
            "another `out`"
        )
    return "replaced"


def differences(attrs: dict[str, Any], meta: StoreMeta) -> list[str]:
    """Return the differences between a store's attributes and a plan's, as text."""
    planned = meta.to_attrs()
    found = []
    for key, value in planned.items():
        if key in ("complete", "build", "version"):
            continue
        if attrs.get(key) != value:
            found.append(f"{key} was {attrs.get(key)}, now {value}")
    built = attrs.get("build") if isinstance(attrs.get("build"), dict) else {}
    before = built.get("options", {}) if isinstance(built, dict) else {}
    options, defaults = planned["build"]["options"], BuildOptions()
    for key in dict.fromkeys([*options, *before]):
        # An option that is not recorded, or newer than the store, had its default.
        default = getattr(defaults, key, None)
        was, now = (one.get(key, default) for one in (before, options))
        if was != (list(now) if isinstance(now, tuple) else now) and key not in _COMPARED:
            found.append(f"{key} was {was}, now {now}")
    if isinstance(built, dict) and built.get("inputs") != planned["build"]["inputs"]:
        found.append("the images or labels have changed")
    return found


def recorded_shards(plan: Plan, entries: Iterable[dict[str, Any]]) -> Iterator[ShardRecord]:
    """Yield the records of shards that earlier runs of this plan have noted."""
    for entry in entries:
        if entry.get("stamp") == plan.fingerprint and "shard" in entry:
            yield ShardRecord.from_json(entry["shard"])


def attribute(root: bytes) -> Any:  # noqa: ANN401 - anything of JSON
    """Return the attribute ``geoprep`` of a root ``zarr.json``; None without one."""
    try:
        return json.loads(root)["attributes"].get("geoprep")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _attributes(store: Path) -> Any:  # noqa: ANN401 - anything of JSON
    root = store / "zarr.json"
    return attribute(root.read_bytes()) if root.is_file() else None


def _is_whole(out: Path, array: str, shard: int, expected: str) -> bool:
    path = out / shard_key(array, shard)
    return path.is_file() and digest(path.read_bytes()) == expected
