"""A build into a bucket: shards go there at once, tables are made here and follow, whole.

``zarr.json`` is the mark of who builds and, in the end, of what is complete: it is only ever
replaced by whoever wrote it last, in one request that fails for anybody else.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from geoprep.building.commit import Histograms, finish
from geoprep.building.journal import Journal
from geoprep.building.lease import LOCK, Lease
from geoprep.building.records import ShardRecord
from geoprep.building.resume import State, judge
from geoprep.errors import GeoprepError, StoreError
from geoprep.plan import Plan
from geoprep.storage import REQUESTS, Bucket
from geoprep.store import create_store, shard_key

ROOT = "zarr.json"


class BucketJournal:
    """The working folder of one build, ``NAME.zarr.build`` beside the store: an object per entry.

    Parameters
    ----------
    store
        Address of the store that is being built.

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
        with suppress(GeoprepError):  # what went wrong before counts
            if self.lease.held:
                self._bucket.delete([LOCK])

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield what earlier runs wrote."""
        with ThreadPoolExecutor(REQUESTS) as pool:
            for found in pool.map(self._bucket.read, self._names()):
                if found is not None:
                    yield json.loads(found[0])

    def write(self, entry: dict[str, Any]) -> None:
        """Keep an entry; when this returns it is in the bucket.

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
        """Forget earlier runs."""
        self._bucket.delete(name for name in self._bucket.tags() if name != LOCK)

    def remove(self) -> None:
        """Take the folder away but for the lock, which goes on leaving: the store is complete."""
        self.restart()

    def _names(self) -> list[str]:
        return [name for name in self._bucket.tags() if name.endswith(".json")]


class BucketTarget:
    """A store in a bucket, as a build sees it: see `geoprep.building.target.DiskTarget`."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        self._bucket = Bucket(self.location)
        self._root: tuple[bytes, str] | None = None
        self._replaced = False
        self.journal: Journal | BucketJournal
        self.journal = self._journal = BucketJournal(self.location)

    def existing(self, plan: Plan, *, overwrite: bool) -> State:
        """Say what is there; raises as `geoprep.building.resume.existing`."""
        self._root = self._bucket.read(ROOT)
        if self._root is None:
            if self._bucket.tags():
                raise StoreError(
                    f"{self.location} exists and is not a geoprep store: choose another --out"
                )
            return "none"
        state = judge(self.location, _attributes(self._root[0]), plan, overwrite=overwrite)
        if state == "replaced":
            self._replaced = True
            return "none"
        return state

    def kept(self, plan: Plan) -> dict[int, ShardRecord]:
        """Return the records of shards whose objects still are the ones that were written."""
        tags = self._bucket.tags()
        found = {}
        for entry in self.journal.entries():
            if entry.get("stamp") == plan.stamp and "shard" in entry:
                record = ShardRecord.from_json(entry["shard"])
                if _untouched(record, tags):
                    found[record.shard] = record
        return found

    def begin(self, plan: Plan) -> None:
        """Write the metadata of an incomplete store that is this build's, and no other's."""
        with tempfile.TemporaryDirectory() as folder:
            create_store(Path(folder) / "store", plan.meta, plan.tiles)
            root = json.loads((Path(folder) / "store" / ROOT).read_bytes())
        root["attributes"]["geoprep_builder"] = self._journal.lease.token
        body = json.dumps(root).encode()
        tag = self._bucket.put_if(ROOT, body, self._root[1] if self._root else None)
        if tag is None:
            raise self._overtaken()
        self._root = body, tag
        if self._replaced:
            self._bucket.delete(name for name in self._bucket.tags() if name != ROOT)

    def finish(self, plan: Plan, records: dict[int, ShardRecord], histograms: Histograms) -> None:
        """Write the tables, and mark the store complete in one request."""
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
            self._journal.lease.check()
            if not self._bucket.put_all(files, tags):
                raise self._overtaken()
        assert self._root is not None  # begin has written it
        if self._bucket.put_if(ROOT, root, self._root[1]) is None:
            raise self._overtaken()

    def _overtaken(self) -> StoreError:
        return StoreError(
            f"{self.location} was changed by another while it was built: see that one build runs "
            "at a time, and run the same command again"
        )


def _attributes(root: bytes) -> Any:  # noqa: ANN401 - whatever somebody wrote there
    try:
        return json.loads(root)["attributes"]["geoprep"]
    except (ValueError, KeyError, TypeError):
        return None


def _untouched(record: ShardRecord, tags: dict[str, str]) -> bool:
    return all(
        tags.get(shard_key(name, record.shard)) == record.tags.get(name, "") != ""
        for name in record.files
    )
