"""Where a build puts its store, and what it keeps beside it: on a disk, or in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from geoprep.building.bucket import BucketJournal, BucketTarget
from geoprep.building.commit import Histograms, finish
from geoprep.building.journal import Journal
from geoprep.building.records import ShardRecord
from geoprep.building.resume import State, existing, kept_records
from geoprep.plan import Plan
from geoprep.storage import is_bucket, local_path
from geoprep.store import create_store


class Target(Protocol):
    """A store that is being built.

    Attributes
    ----------
    location
        Path or address.
    journal
        Entered before anything else is done: it holds the store against other builds.
    """

    location: str
    journal: Journal | BucketJournal

    def existing(self, plan: Plan, *, overwrite: bool) -> State:
        """Say what is there; refuse what is not ours to touch."""
        ...

    def kept(self, plan: Plan) -> dict[int, ShardRecord]:
        """Return the records of shards that earlier runs finished and that are still whole."""
        ...

    def begin(self, plan: Plan) -> None:
        """Write the metadata of an incomplete store, where there are none."""
        ...

    def finish(self, plan: Plan, records: dict[int, ShardRecord], histograms: Histograms) -> None:
        """Write the tables from all records, and mark the store complete."""
        ...


def target_of(out: str | Path) -> Target:
    """Return where a store is built.

    Raises
    ------
    UsageError
        It is neither a folder of this machine nor an ``s3://`` address.
    """
    return BucketTarget(str(out)) if is_bucket(out) else DiskTarget(local_path(out))


class DiskTarget:
    """A folder of this machine."""

    def __init__(self, out: Path) -> None:
        self.location = str(out)
        self.journal: Journal | BucketJournal = Journal(out)
        self._out = out

    def existing(self, plan: Plan, *, overwrite: bool) -> State:
        """Say what is there; refuse what is not ours to touch, remove what may be overwritten."""
        return existing(self._out, plan, overwrite=overwrite)

    def kept(self, plan: Plan) -> dict[int, ShardRecord]:
        """Return the records of shards whose bytes have the digest that was noted."""
        return kept_records(self._out, plan, self.journal.entries())

    def begin(self, plan: Plan) -> None:
        """Write the metadata of an incomplete store, where there are none."""
        create_store(self._out, plan.meta, plan.tiles)

    def finish(self, plan: Plan, records: dict[int, ShardRecord], histograms: Histograms) -> None:
        """Write the tables, and mark the store complete in one rename."""
        finish(plan, self._out, records, histograms)
