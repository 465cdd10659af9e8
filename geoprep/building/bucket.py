"""Write a store into a bucket: shards at once, tables and the completion mark last.

``zarr.json`` marks the builder and, at the end, the complete store. It is only replaced by the
process that wrote it last, in one conditional request that fails for any other.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from geoprep.building.commit import Histograms, finish
from geoprep.building.journal import REPLACEMENT
from geoprep.building.lease import LOCK, Lease
from geoprep.building.records import ShardRecord
from geoprep.building.target import State, differences, judge
from geoprep.errors import GeoprepError, StoreError
from geoprep.plan import Plan
from geoprep.storage import REQUESTS, Bucket
from geoprep.store import create_store, shard_key

ROOT: Final = "zarr.json"
_REPLACED: Final = "geoprep_replaced"
"""Root attribute of a store while the objects of its replacement are copied over it."""


class BucketJournal:
    """The working folder of one build, ``NAME.zarr.build``, with one object per entry.

    Parameters
    ----------
    store
        Address of the store.

    Raises
    ------
    StoreError
        Another build of the same store is running.
    """

    def __init__(self, store: str) -> None:
        self.folder = store + ".build"
        self._bucket = Bucket(self.folder)
        self.lease = Lease(self._bucket, store)

    def __enter__(self) -> BucketJournal:
        self.lease.take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.lease.stop()
        with suppress(GeoprepError):  # an earlier error is more important
            if self.lease.held:
                self._bucket.delete([LOCK])

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries of earlier runs."""
        names = [name for name in self._own() if name.endswith(".json")]
        with ThreadPoolExecutor(REQUESTS) as pool:
            for found in pool.map(self._bucket.find, names):
                if found is not None:
                    yield json.loads(found[0])

    def write(self, entry: dict[str, Any]) -> None:
        """Write an entry; when this returns, it is in the bucket.

        Raises
        ------
        StoreError
            Another build may own the store by now.
        """
        self.lease.check()
        kind = "shard" if "shard" in entry else "survey"
        number = entry["shard"]["shard"] if kind == "shard" else entry["survey"]["index"]
        self._bucket.put(f"{kind}/{number}.json", json.dumps(entry).encode())

    def restart(self) -> None:
        """Remove the entries of earlier runs."""
        self._bucket.delete(self._own())

    def remove(self) -> None:
        """Remove everything but the lock, which is removed on leaving."""
        self._bucket.delete(name for name in self._bucket.tags() if name != LOCK)

    def _own(self) -> list[str]:
        """Return the names of all objects except the lock and those of a replacement."""
        names = self._bucket.tags()
        return [n for n in names if n != LOCK and not n.startswith(f"{REPLACEMENT}/")]


class BucketTarget:
    """A store in a bucket; see `geoprep.building.target.Target`.

    A bucket has no rename. A replacement is written to the working folder and verified; then the
    old store is marked incomplete, the objects are copied over it on the server, and the working
    folder is removed last. A run that is killed in between is finished by the next one.
    """

    def __init__(self, location: str) -> None:
        self.location = self.folder = location.rstrip("/")
        self.replaces = False
        self._final = self._bucket = Bucket(self.location)
        self._root: tuple[bytes, str] | None = None
        self._clear = False
        self.journal = BucketJournal(self.location)
        self._staging = Bucket(f"{self.journal.folder}/{REPLACEMENT}")

    def prepare(self, plan: Plan, *, overwrite: bool) -> State:
        """Return what an earlier run has left; finish a replacement that was interrupted."""
        self._root = self._final.find(ROOT)
        if self._root is None:
            if self._final.tags():
                raise StoreError(
                    f"{self.location} exists and is not a geoprep store: choose another `out`"
                )
            return "none"
        attrs = _attributes(self._root[0])
        if _is_replaced(self._root[0]) and _is_complete(self._staging.find(ROOT)):
            self._copy_replacement()
            self._root = self._final.find(ROOT)
            attrs = _attributes(self._root[0]) if self._root else None
            if isinstance(attrs, dict) and not differences(attrs, plan.meta):
                return "complete"
        state = judge(self.location, attrs, plan, overwrite=overwrite)
        if state != "replaced":
            return state
        if not attrs.get("complete"):
            self._clear = True
            return "none"
        return self._prepare_replacement(plan)

    def _prepare_replacement(self, plan: Plan) -> State:
        """Write to the working folder from now on; return what an earlier run has left there."""
        self.replaces, self._bucket = True, self._staging
        self.folder = self._staging.location
        self._root = begun = self._staging.find(ROOT)
        if begun is not None:
            attrs = _attributes(begun[0])
            if isinstance(attrs, dict) and not differences(attrs, plan.meta):
                if not attrs.get("complete"):
                    return "incomplete"
                self._copy_replacement()
                return "complete"
        self._staging.delete(self._staging.tags())
        self._root = None
        return "none"

    def kept(self, plan: Plan) -> dict[int, ShardRecord]:
        """Return the records of shards whose objects are still those that were written."""
        tags = self._bucket.tags()
        found = {}
        for entry in self.journal.entries():
            if entry.get("stamp") == plan.fingerprint and "shard" in entry:
                record = ShardRecord.from_json(entry["shard"])
                if _untouched(record, tags):
                    found[record.shard] = record
        return found

    def begin(self, plan: Plan) -> None:
        """Write the metadata of an incomplete store, marked as this build's."""
        with tempfile.TemporaryDirectory() as folder:
            create_store(Path(folder) / "store", plan.meta, plan.tiles)
            root = json.loads((Path(folder) / "store" / ROOT).read_bytes())
        root["attributes"]["geoprep_builder"] = self.journal.lease.token
        body = json.dumps(root).encode()
        tag = self._bucket.put_if(ROOT, body, self._root[1] if self._root else None)
        if tag is None:
            raise self._overtaken()
        self._root = body, tag
        if self._clear:
            self._bucket.delete(name for name in self._bucket.tags() if name != ROOT)

    def finish(self, plan: Plan, records: dict[int, ShardRecord], histograms: Histograms) -> None:
        """Write the tables, mark the store complete and, for a replacement, copy it in place."""
        tags = self._bucket.tags()
        if not all(_untouched(record, tags) for record in records.values()):
            raise self._overtaken()
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            create_store(store, plan.meta, plan.tiles)
            finish(plan, store, records, histograms)
            files = {
                path.relative_to(store).as_posix(): path
                for path in sorted(store.rglob("*"))
                if path.is_file()
            }
            root = files.pop(ROOT).read_bytes()
            self.journal.lease.check()
            if not self._bucket.put_all(files, tags):
                raise self._overtaken()
        assert self._root is not None  # begin has written it
        if self._bucket.put_if(ROOT, root, self._root[1]) is None:
            raise self._overtaken()
        if self.replaces:
            self._copy_replacement()

    def discard(self) -> None:
        """Remove a replacement that cannot be used; the complete store stays."""
        self.journal.remove()

    def _copy_replacement(self) -> None:
        """Copy the complete replacement over the old store, which is incomplete meanwhile."""
        new, old = self._staging.find(ROOT), self._final.find(ROOT)
        if new is None or old is None:
            raise self._overtaken()
        self.journal.lease.check()
        tag: str | None = old[1]
        if not _is_replaced(old[0]):
            tag = self._final.put_if(ROOT, _marked_replaced(old[0]), tag)
        if tag is None:
            raise self._overtaken()
        names = [name for name in self._staging.tags() if name != ROOT]
        self._staging.copy_to(self._final, names)
        there = self._final.tags()
        if not set(names) <= there.keys():
            raise self._overtaken()
        self.journal.lease.check()
        self._final.delete(there.keys() - {*names, ROOT})
        if self._final.put_if(ROOT, new[0], tag) is None:
            raise self._overtaken()

    def _overtaken(self) -> StoreError:
        return StoreError(
            f"{self.location} was changed by another process during this build. Make sure that one "
            "build runs at a time, and run the same command again"
        )


def _attributes(root: bytes) -> Any:  # noqa: ANN401 - anything that JSON can hold
    try:
        return json.loads(root)["attributes"]["geoprep"]
    except (ValueError, KeyError, TypeError):
        return None


def _is_complete(root: tuple[bytes, str] | None) -> bool:
    attrs = _attributes(root[0]) if root is not None else None
    return isinstance(attrs, dict) and bool(attrs.get("complete"))


def _is_replaced(root: bytes) -> bool:
    """Return whether the objects of a replacement were being copied over this store."""
    try:
        return bool(json.loads(root)["attributes"].get(_REPLACED))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _marked_replaced(root: bytes) -> bytes:
    document = json.loads(root)
    document["attributes"]["geoprep"]["complete"] = False
    document["attributes"][_REPLACED] = True
    return json.dumps(document).encode()


def _untouched(record: ShardRecord, tags: dict[str, str]) -> bool:
    return all(
        tags.get(shard_key(name, record.shard)) == record.tags.get(name, "") != ""
        for name in record.files
    )
