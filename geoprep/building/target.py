"""Write a store to a disk: a new store, or one that replaces a complete store."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Protocol

import zarr

from geoprep.building.commit import Histograms, finish
from geoprep.building.journal import REPLACED, REPLACEMENT, Journal
from geoprep.building.records import ShardRecord
from geoprep.errors import StoreError
from geoprep.plan import BuildOptions, Plan
from geoprep.storage import flush
from geoprep.store import (
    PARTIAL_SUFFIX,
    UNREADABLE,
    StoreMeta,
    create_store,
    digest,
    shard_key,
)

State = Literal["none", "incomplete", "complete"]
"""State of what an earlier run has left of the store that a plan makes."""

_COMPARED = ("rescale", "levels", "tile", "overlap", "shard_tiles")
"""Options that decide an attribute of the same name, which is compared instead."""


class Target(Protocol):
    """A store that is being built.

    Attributes
    ----------
    location
        Path or address of the store.
    folder
        Path or address where files are written: the location, or a folder for a replacement.
    journal
        Opened before anything else; it locks the store against other builds.
    replaces
        Whether a complete store stays at the location until the new one is complete.
    """

    location: str
    folder: str
    replaces: bool

    @property
    def journal(self) -> Any:  # noqa: ANN401 - a Journal or a BucketJournal
        """The working folder of the build."""
        ...

    def prepare(self, plan: Plan, *, overwrite: bool) -> State:
        """Return what an earlier run has left; finish a replacement that was interrupted.

        Raises
        ------
        StoreError
            The location holds something else, or a store that was built differently.
        """
        ...

    def kept(self, plan: Plan) -> dict[int, ShardRecord]:
        """Return the records of intact shards that earlier runs finished."""
        ...

    def begin(self, plan: Plan) -> None:
        """Write the metadata of an incomplete store if they do not exist."""
        ...

    def finish(self, plan: Plan, records: dict[int, ShardRecord], histograms: Histograms) -> None:
        """Write the tables, mark the store complete and, for a replacement, exchange the stores."""
        ...

    def discard(self) -> None:
        """Remove a replacement that cannot be used; the complete store stays."""
        ...


class DiskTarget:
    """A store in a local folder.

    A replacement is built in the working folder. At the end the old store is renamed into the
    working folder and the new one to the location. A run that is killed in between is finished by
    the next one.
    """

    def __init__(self, out: Path) -> None:
        self.location = self.folder = str(out)
        self.journal = Journal(out)
        self.replaces = False
        self._out = out.resolve() if out.is_symlink() else out
        self._new = self.journal.folder / REPLACEMENT
        self._old = self.journal.folder / REPLACED

    def prepare(self, plan: Plan, *, overwrite: bool) -> State:
        """Return what an earlier run has left; see `Target`."""
        exchanged = self._finish_exchange()
        if self._out.is_dir():
            for partial in self._out.glob(f"zarr.*{PARTIAL_SUFFIX}"):  # killed at its first file
                partial.unlink(missing_ok=True)
        if not self._out.exists() or (self._out.is_dir() and not any(self._out.iterdir())):
            return "none"
        attrs = _attributes(self._out)
        if exchanged and not differences(attrs, plan.meta):
            return "complete"
        state = judge(self.location, attrs, plan, overwrite=overwrite)
        if state != "replaced":
            return state
        if not attrs.get("complete"):
            _remove_store(self._out)
            return "none"
        self.replaces, self.folder = True, str(self._new)
        begun = _attributes(self._new)
        if begun is not None and not differences(begun, plan.meta):
            if not begun.get("complete"):
                return "incomplete"
            self._exchange()
            return "complete"
        if self._new.exists():
            shutil.rmtree(self._new)
        return "none"

    def kept(self, plan: Plan) -> dict[int, ShardRecord]:
        """Return the records of shards whose bytes have the recorded digest."""
        return _kept_records(Path(self.folder), plan, self.journal.entries())

    def begin(self, plan: Plan) -> None:
        """Write the metadata of an incomplete store if they do not exist."""
        create_store(Path(self.folder), plan.meta, plan.tiles)

    def finish(self, plan: Plan, records: dict[int, ShardRecord], histograms: Histograms) -> None:
        """Write the tables, mark the store complete in one rename, and exchange the stores."""
        finish(plan, Path(self.folder), records, histograms)
        if self.replaces:
            self._exchange()

    def discard(self) -> None:
        """Remove a replacement that cannot be used; the complete store stays."""
        shutil.rmtree(self._new, ignore_errors=True)
        self.journal.restart()

    def _exchange(self) -> None:
        """Put the new store in the place of the old one, which goes to the working folder."""
        if self._old.exists():
            shutil.rmtree(self._old)
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
            complete = new is not None and bool(new.get("complete"))
            (self._new if complete else self._old).rename(self._out)
            flush(self._out.parent)
            if not complete:
                return False
        shutil.rmtree(self._old)
        return True


def judge(
    out: str,
    attrs: Any,  # noqa: ANN401 - anything that JSON can hold
    plan: Plan,
    *,
    overwrite: bool,
) -> Literal["incomplete", "complete", "replaced"]:
    """Return what a store at the location means for a plan.

    Parameters
    ----------
    out
        Location, for messages.
    attrs
        Root attribute ``geoprep``; anything but a dict is no store.
    plan
        Plan of the build.
    overwrite
        Whether a complete or different store is replaced.

    Raises
    ------
    StoreError
        It is no store, or a store that was built differently.
    """
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


def _attributes(store: Path) -> Any:  # noqa: ANN401 - anything that JSON can hold
    """Return the root attribute ``geoprep`` of a folder; None if it is no store."""
    if not (store / "zarr.json").is_file():
        return None
    try:
        return zarr.open_group(store, mode="r").attrs.get("geoprep")
    except (*UNREADABLE, FileNotFoundError):  # the latter for what is no group
        return None


def _remove_store(out: Path) -> None:
    """Remove an incomplete store; ``zarr.json`` last, so that a rest is recognised as one."""
    for entry in sorted(out.iterdir()):
        if entry.name != "zarr.json":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.rmtree(out)


def _kept_records(
    out: Path, plan: Plan, entries: Iterable[dict[str, Any]]
) -> dict[int, ShardRecord]:
    for partial in out.rglob(f"*{PARTIAL_SUFFIX}"):
        partial.unlink(missing_ok=True)
    records: dict[int, ShardRecord] = {}
    for entry in entries:
        if entry.get("stamp") != plan.fingerprint or "shard" not in entry:
            continue
        record = ShardRecord.from_json(entry["shard"])
        if all(_whole(out, name, record.shard, d) for name, (d, _) in record.files.items()):
            records[record.shard] = record
    return records


def _whole(out: Path, array: str, shard: int, expected: str) -> bool:
    path = out / shard_key(array, shard)
    return path.is_file() and digest(path.read_bytes()) == expected
