"""What an earlier run left: nothing, a part that is carried on with, or the whole store."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import zarr

from geoprep.building.records import ShardRecord
from geoprep.errors import StoreError
from geoprep.plan import BuildOptions, Plan
from geoprep.store import PARTIAL_SUFFIX, UNREADABLE, StoreMeta, digest, shard_path

State = Literal["none", "incomplete", "complete"]

_TOLD = ("rescale", "levels", "tile", "overlap", "shard_tiles")
"""Options that decide an attribute of the same name, which is compared in their place."""


def existing(out: Path, plan: Plan, *, overwrite: bool) -> State:
    """Say what is at ``out``; refuse what is not ours to touch, remove what may be overwritten.

    Raises
    ------
    StoreError
        Something else is there, or a store that was built otherwise.
    """
    if out.is_dir():
        for half in out.glob(f"zarr.*{PARTIAL_SUFFIX}"):  # killed while it wrote its first file
            half.unlink(missing_ok=True)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return "none"
    attrs: Any = None
    if (out / "zarr.json").is_file():
        try:
            attrs = zarr.open_group(out, mode="r").attrs.get("geoprep")
        except (*UNREADABLE, FileNotFoundError):  # the latter for what is no group
            attrs = None
    state = judge(out, attrs, plan, overwrite=overwrite)
    if state == "replaced":
        _remove_store(out)
        return "none"
    return state


def judge(
    out: Path | str,
    attrs: Any,  # noqa: ANN401 - whatever somebody wrote there
    plan: Plan,
    *,
    overwrite: bool,
) -> Literal["incomplete", "complete", "replaced"]:
    """Say what the root attribute of something makes of it, and whether it is to be replaced.

    Raises
    ------
    StoreError
        It is no store's, or that of a store that was built otherwise.
    """
    if not isinstance(attrs, dict):
        raise StoreError(f"{out} exists and is not a geoprep store: choose another --out")
    differences = _differences(attrs, plan.meta)
    if not differences and not (overwrite and attrs.get("complete")):
        return "complete" if attrs.get("complete") else "incomplete"
    if not overwrite:
        raise StoreError(
            f"{out} was built differently: {'; '.join(differences)}. Use --overwrite to replace "
            "it, or another --out"
        )
    return "replaced"


def _remove_store(out: Path) -> None:
    """Remove a store so that a crash on the way leaves something that is still seen as one."""
    for entry in sorted(out.iterdir()):
        if entry.name != "zarr.json":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.rmtree(out)


def _differences(attrs: dict[str, Any], meta: StoreMeta) -> list[str]:
    """Return what differs between a store's attributes and a plan's, for people to read."""
    mine, theirs = meta.to_attrs(), attrs
    found = []
    for key, value in mine.items():
        if key in ("complete", "build", "version"):
            continue
        if theirs.get(key) != value:
            found.append(f"{key} {theirs.get(key)} there, {value} now")
    built = theirs.get("build") if isinstance(theirs.get("build"), dict) else {}
    before = built.get("options", {}) if isinstance(built, dict) else {}
    options, defaults = mine["build"]["options"], BuildOptions()
    for key in dict.fromkeys([*options, *before]):
        # An option that is not written down, or younger than the store, had its default.
        default = getattr(defaults, key, None)
        there, value = (one.get(key, default) for one in (before, options))
        if there != (list(value) if isinstance(value, tuple) else value) and key not in _TOLD:
            found.append(f"{key} {there} there, {value} now")
    if isinstance(built, dict) and built.get("inputs") != mine["build"]["inputs"]:
        found.append("the images or labels have changed")
    return found


def kept_records(
    out: Path, plan: Plan, entries: Iterable[dict[str, Any]]
) -> dict[int, ShardRecord]:
    """Return the records of shards that earlier runs finished and that are still whole."""
    for partial in out.rglob(f"*{PARTIAL_SUFFIX}"):
        partial.unlink(missing_ok=True)
    records: dict[int, ShardRecord] = {}
    for entry in entries:
        if entry.get("stamp") != plan.stamp or "shard" not in entry:
            continue
        record = ShardRecord.from_json(entry["shard"])
        if all(_whole(out, name, record.shard, d) for name, (d, _) in record.files.items()):
            records[record.shard] = record
    return records


def _whole(out: Path, array: str, shard: int, expected: str) -> bool:
    path = shard_path(out, array, shard)
    return path.is_file() and digest(path.read_bytes()) == expected
