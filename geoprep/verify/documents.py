"""Checks of names, digests and ``zarr.json`` files of a store."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import zarr

from geoprep.errors import StoreError
from geoprep.storage.places import Files
from geoprep.store.reader import StoreReader
from geoprep.store.schema import FILL_VALUES, StoreMeta, table_arrays
from geoprep.store.shards import digest


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a store and its location.

    Attributes
    ----------
    array
        Path in the store, such as ``650/image`` or ``scenes/id``; ``.`` is the store itself.
    shard
        Number of the shard of a pixel array; None for other arrays.
    chunk
        Row of the tile in the tile table; None for a whole shard or array.
    scene
        Id of the tile's scene; None if unknown.
    message
        What is wrong, without the location.
    """

    array: str
    shard: int | None
    chunk: int | None
    scene: str | None
    message: str

    @classmethod
    def of(cls, array: str, message: str) -> Problem:
        """Return a problem of a whole array or table."""
        return cls(array, None, None, None, message)

    @classmethod
    def of_file(cls, name: str, message: str) -> Problem:
        """Return a problem of a file, located by its array and, for pixels, its shard."""
        array, _, chunk = name.partition("/c/")
        array = array.removesuffix(DOCUMENT).rstrip("/") or "."
        first = chunk.split("/")[0]
        pixels = array.rpartition("/")[2] in FILL_VALUES and array.split("/")[0].isdigit()
        shard = int(first) if pixels and first.isdigit() else None
        return cls(array, shard, None, None, message)

    def __str__(self) -> str:
        place = [self.array]
        if self.shard is not None:
            place.append(f"shard {self.shard}")
        if self.chunk is not None:
            place.append(f"tile {self.chunk}")
        if self.scene is not None:
            place.append(f"scene {self.scene}")
        return f"{', '.join(place)}: {self.message}"


DOCUMENT = "zarr.json"
UNLISTED = (DOCUMENT, f"ledger/{DOCUMENT}")
"""Files without a digest: these two contain the digests of all others, and of each other."""
# Keys that consolidation adds; the copy of a nested group has an empty one.
CONSOLIDATED = {"kind": "inline", "must_understand": False}
GROUP = {"zarr_format": 3, "node_type": "group"}


def chunk_of(array: str, axes: int) -> str:
    """Return the path of the only chunk of a table array."""
    return "/".join([array, "c", *["0"] * axes])


def check_documents(files: Files) -> Iterator[Problem]:
    """Check that every ``zarr.json`` can be read and equals its copy in the root's."""
    documents: dict[str, Any] = {}
    for name in files.sizes:
        if name.rpartition("/")[2] == DOCUMENT:
            try:
                documents[name.removesuffix(DOCUMENT).rstrip("/")] = json.loads(files.read(name))
            except (StoreError, ValueError) as error:
                yield Problem.of_file(name, f"{DOCUMENT} is damaged: {error}")
    root = documents.pop("", None)
    if root is None:
        return
    try:
        copies = root["consolidated_metadata"].pop("metadata")
        for copy in copies.values():
            if _same(copy.get("consolidated_metadata"), {**CONSOLIDATED, "metadata": {}}):
                del copy["consolidated_metadata"]
    except (KeyError, TypeError, AttributeError):
        yield Problem.of(".", f"{DOCUMENT} has no consolidated metadata of the arrays")
        return
    expected = {**GROUP, "consolidated_metadata": CONSOLIDATED}
    if not _same(root, {**expected, "attributes": root.get("attributes")}):
        yield Problem.of(".", f"{DOCUMENT} has unexpected keys or values")
    for node in sorted(documents.keys() | copies.keys()):
        if not _same(documents.get(node), copies.get(node)):
            yield Problem.of(node, f"{DOCUMENT} differs from its copy in the root's metadata")


def _same(document: Any, other: Any) -> bool:  # noqa: ANN401 - any JSON
    # Compared as text, since 1, 1.0 and True are equal in Python.
    return json.dumps(document, sort_keys=True) == json.dumps(other, sort_keys=True)


def expected_files(meta: StoreMeta) -> set[str]:
    """Return the names of all files of a store but its shards."""
    arrays = table_arrays(meta)
    groups = {"/".join(name.split("/")[:i]) for name in arrays for i in range(name.count("/") + 1)}
    groups |= {str(level) for level in meta.levels}
    nodes = groups | set(arrays) | set(meta.pixel_arrays())
    chunks = {chunk_of(name, len(dims)) for name, (_, dims) in arrays.items()}
    return chunks | {f"{node}/{DOCUMENT}".lstrip("/") for node in nodes}


def check_names(files: Files, expected: Collection[str]) -> Iterator[Problem]:
    """Check that every file of the store exists, and no other."""
    for name in sorted(set(expected) - files.sizes.keys()):
        yield Problem.of_file(name, f"the file {name} is missing")
    for name in sorted(files.sizes.keys() - set(expected)):
        what = (
            "left over from an interrupted build" if ".partial" in name else "not part of the store"
        )
        yield Problem.of_file(name, f"the file {name} is {what}: delete it")


def check_digests(store: StoreReader, files: Files, expected: Iterable[str]) -> Iterator[Problem]:
    """Check every file without pixels against its digest."""
    ledger = store.root.get("ledger")
    digests = ledger.attrs.get("files") if isinstance(ledger, zarr.Group) else None
    if not isinstance(digests, dict):
        yield Problem.of("ledger", "it has no digests of files")
        return
    for name in sorted(files.sizes.keys() & set(expected) - set(UNLISTED)):
        if name not in digests:
            yield Problem.of_file(name, f"the ledger has no digest of the file {name}")
            continue
        try:
            if digest(files.read(name)) != digests[name]:
                yield Problem.of_file(
                    name, f"the file {name} differs from the one that the build wrote"
                )
        except StoreError as error:
            yield Problem.of_file(name, str(error))
