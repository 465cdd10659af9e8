"""The place where a store is built: beside its final place on a disk, or in place in a bucket.

In a bucket, ``zarr.json`` names the builder and, at the end, marks the complete store. Only the
process that wrote it last replaces it, in one conditional request that fails for any other.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, Literal

from geoprep.building.journal import NEW, OLD, BucketJournal, Journal, refuse_foreign, remove_store
from geoprep.building.options import BuildOptions
from geoprep.building.plan import Plan
from geoprep.building.records import ShardRecord
from geoprep.errors import StoreError
from geoprep.storage.addresses import is_bucket
from geoprep.storage.local_files import flush, local_path
from geoprep.storage.sinks import PARTIAL_SUFFIX, Bucket
from geoprep.store.layout import shard_key
from geoprep.store.schema import StoreMeta
from geoprep.store.shards import digest
from geoprep.store.writer import create_store

ROOT: Final = "zarr.json"
State = Literal["none", "incomplete", "complete"]
"""State in which an earlier run has left the store that a plan makes."""

_COMPARED = ("rescale", "levels", "tile", "overlap", "shard_tiles")
"""Options that decide an attribute of the same name, which is compared instead."""


def open_target(out: str | Path) -> DiskTarget | BucketTarget:
    """Return the place of a local folder or an ``s3://`` address."""
    return BucketTarget(str(out)) if is_bucket(out) else DiskTarget(local_path(out))


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
            attrs = _attributes(_root(self._out))
            if exchanged and attrs and not differences(attrs, plan.meta):
                return "complete"
            if judge(self.location, attrs, plan, overwrite=overwrite) == "complete":
                return "complete"
            files = (path for path in self._out.rglob("*") if not path.is_dir())
            refuse_foreign(self.location, (p.relative_to(self._out).as_posix() for p in files))
            self.replaces = attrs is not None and bool(attrs.get("complete"))
        if self._out.is_dir() and self._out.stat().st_dev != self._journal.folder.stat().st_dev:
            raise StoreError(
                f"{self._out} is on another file system than the folder that it is in, so no store "
                "can be renamed to it: choose a folder inside it as `out`"
            )
        return self._begun(plan, overwrite=overwrite)

    def _begun(self, plan: Plan, *, overwrite: bool) -> State:
        """Return the state of the store in the working folder; put a complete one in its place."""
        attrs = _attributes(_root(self._new))
        if attrs and not differences(attrs, plan.meta):
            if not attrs.get("complete"):
                return "incomplete"
            self._exchange()
            return "complete"
        if attrs and not self.replaces:
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

    def finish(
        self, plan: Plan, records: Mapping[int, ShardRecord], complete: Callable[[Path], None]
    ) -> None:
        """Let ``complete`` write the tables into the folder, and rename it to its place."""
        complete(self._new)
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
            new = _attributes(_root(self._new))
            complete = new is not None and bool(new.get("complete"))
            (self._new if complete else self._old).rename(self._out)
            flush(self._out.parent)
            if not complete:
                return False
        remove_store(self._old)
        return True


class BucketTarget:
    """A store in a bucket, with the methods of `DiskTarget`.

    A bucket has no rename, so a store is built in its place. One that it replaces is marked
    incomplete first. A second build takes over from the first, which ends at its next entry.
    """

    replaces = False

    def __init__(self, location: str) -> None:
        self.location = self.folder = location.rstrip("/")
        self._bucket = Bucket(self.location)
        self._root: tuple[bytes, str] | None = None
        self._journal = BucketJournal(f"{self.location}.build", self._require_owned)

    def locked(self) -> AbstractContextManager[BucketJournal]:
        """Return the journal; nothing is locked."""
        return nullcontext(self._journal)

    def prepare(self, plan: Plan, *, overwrite: bool) -> State:
        """Return what an earlier run has left, or raise StoreError for what is not replaced."""
        self._root = self._bucket.find(ROOT)
        names = self._bucket.tags()
        if self._root is None:
            if names:
                raise StoreError(
                    f"{self.location} exists and is not a geoprep store: choose another `out`"
                )
            return "none"
        state = judge(self.location, _attributes(self._root[0]), plan, overwrite=overwrite)
        if state == "replaced":
            refuse_foreign(self.location, names)
            return "none"
        return state

    def kept(self, plan: Plan) -> dict[int, ShardRecord]:
        """Return the records of shards whose objects are still those that were written."""
        tags = self._bucket.tags()
        return {
            record.shard: record
            for record in recorded_shards(plan, self._journal.entries())
            if _is_untouched(record, tags)
        }

    def begin(self, plan: Plan, kept: Iterable[ShardRecord]) -> None:
        """Mark the store incomplete and as this build's; remove all objects but these shards."""
        with tempfile.TemporaryDirectory() as folder:
            create_store(Path(folder) / "store", plan.meta, plan.tiles)
            root = json.loads((Path(folder) / "store" / ROOT).read_bytes())
        root["attributes"]["geoprep_builder"] = uuid.uuid4().hex
        body, before = json.dumps(root).encode(), self._bucket.tags()
        tag = self._bucket.put_if(ROOT, body, self._root[1] if self._root else None)
        if tag is None:
            raise self._overtaken()
        self._root = body, tag
        needed = {shard_key(name, record.shard) for record in kept for name in record.files}
        # Listed before, so that no object of a build that takes over is among them.
        self._bucket.delete(before.keys() - needed - {ROOT})

    def finish(
        self, plan: Plan, records: Mapping[int, ShardRecord], complete: Callable[[Path], None]
    ) -> None:
        """Write the tables that ``complete`` writes into a folder; mark the store complete."""
        tags = self._bucket.tags()
        if not all(_is_untouched(record, tags) for record in records.values()):
            raise self._overtaken()
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            create_store(store, plan.meta, plan.tiles)
            complete(store)
            files = {
                path.relative_to(store).as_posix(): path
                for path in sorted(store.rglob("*"))
                if path.is_file()
            }
            root = files.pop(ROOT).read_bytes()
            if not self._bucket.put_all(files, tags):
                raise self._overtaken()
        assert self._root is not None  # begin has written it
        if self._bucket.put_if(ROOT, root, self._root[1]) is None:
            raise self._overtaken()

    def discard(self) -> None:
        """Do nothing: a store that is replaced is gone by now."""

    def _require_owned(self) -> None:
        found = self._bucket.find(ROOT)
        if self._root is None or found is None or found[1] != self._root[1]:
            raise self._overtaken()

    def _overtaken(self) -> StoreError:
        return StoreError(
            f"{self.location} was taken over or changed by another process during this build. "
            "Make sure that one build runs at a time, and run the same command again to resume"
        )


def judge(
    out: str,
    attrs: dict[str, Any] | None,
    plan: Plan,
    *,
    overwrite: bool,
) -> Literal["incomplete", "complete", "replaced"]:
    """Return what a store with this root attribute ``geoprep`` means for a plan, or refuse it."""
    if attrs is None:
        raise StoreError(f"{out} exists and is not a geoprep store: choose another `out`")
    changes = differences(attrs, plan.meta)
    if not changes and not (overwrite and attrs.get("complete")):
        return "complete" if attrs.get("complete") else "incomplete"
    if not overwrite:
        raise StoreError(
            f"{out} was built differently: {'; '.join(changes)}. Use `overwrite` to replace it, or "
            "another `out`"
        )
    return "replaced"


def differences(attrs: dict[str, Any], meta: StoreMeta) -> list[str]:
    """Return the differences between a store's attributes and a plan's, as text."""
    planned = meta.to_attrs()
    changes = []
    for key, value in planned.items():
        if key in ("complete", "build", "version", "class_names", "class_colors"):
            continue
        if attrs.get(key) != value:
            changes.append(f"{key} was {attrs.get(key)}, now {value}")
    built = attrs.get("build")
    built = built if isinstance(built, dict) else {}
    before = built.get("options", {})
    options, defaults = planned["build"]["options"], BuildOptions()
    recorded_defaults = defaults.to_attrs()
    for key in dict.fromkeys([*options, *before]):
        # An option that is not recorded, or newer than the store, had its default.
        default = recorded_defaults.get(key, getattr(defaults, key, None))
        was, now = (recorded.get(key, default) for recorded in (before, options))
        if was != (list(now) if isinstance(now, tuple) else now) and key not in _COMPARED:
            changes.append(f"{key} was {was}, now {now}")
    if built and built.get("inputs") != planned["build"]["inputs"]:
        changes.append("the images or labels have changed")
    # An interrupted build records the new ones at its end.
    if attrs.get("complete") and built.get("datetimes") != planned["build"].get("datetimes"):
        changes.append("the times of the STAC items have changed")
    return changes


def recorded_shards(plan: Plan, entries: Iterable[dict[str, Any]]) -> Iterator[ShardRecord]:
    """Yield the records of shards that earlier runs of this plan have noted."""
    for entry in entries:
        if entry.get("stamp") == plan.fingerprint and "shard" in entry:
            yield ShardRecord.from_json(entry["shard"])


def _attributes(root: bytes | None) -> dict[str, Any] | None:
    """Return the attribute ``geoprep`` of a root ``zarr.json``; None without one."""
    try:
        attrs = json.loads(root or b"")["attributes"]["geoprep"]
    except (ValueError, KeyError, TypeError):
        return None
    return attrs if isinstance(attrs, dict) else None


def _root(store: Path) -> bytes | None:
    return (store / ROOT).read_bytes() if (store / ROOT).is_file() else None


def _is_whole(out: Path, array: str, shard: int, expected: str) -> bool:
    path = out / shard_key(array, shard)
    return path.is_file() and digest(path.read_bytes()) == expected


def _is_untouched(record: ShardRecord, tags: dict[str, str]) -> bool:
    return all(
        tags.get(shard_key(name, record.shard)) == record.tags.get(name, "") != ""
        for name in record.files
    )
