"""Write a store into a bucket: shards at once, tables and the completion mark last.

``zarr.json`` names the builder and, at the end, marks the complete store. Only the process that
wrote it last replaces it, in one conditional request that fails for any other.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from geoprep.build.commit import Histograms, finish
from geoprep.build.journal import refuse_foreign
from geoprep.build.plan import Plan
from geoprep.build.records import ShardRecord
from geoprep.build.target import State, attribute, judge, recorded_shards
from geoprep.errors import StoreError
from geoprep.storage import REQUESTS, Bucket
from geoprep.store import create_store, shard_key

ROOT: Final = "zarr.json"


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


class BucketTarget:
    """A store in a bucket, with the methods of `geoprep.build.target.DiskTarget`.

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
        state = judge(self.location, attribute(self._root[0]), plan, overwrite=overwrite)
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

    def finish(self, plan: Plan, records: dict[int, ShardRecord], histograms: Histograms) -> None:
        """Write the tables and mark the store complete."""
        tags = self._bucket.tags()
        if not all(_is_untouched(record, tags) for record in records.values()):
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


def _is_untouched(record: ShardRecord, tags: dict[str, str]) -> bool:
    return all(
        tags.get(shard_key(name, record.shard)) == record.tags.get(name, "") != ""
        for name in record.files
    )
