"""Checks of the metadata: every ``zarr.json``, their copies in the root's, and the files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import zarr

from geoprep.errors import StoreError
from geoprep.storage import StoreFiles
from geoprep.store import (
    CLASS_PIXELS,
    FILL_VALUES,
    SCENE_COLUMNS,
    TILE_COLUMNS,
    StoreMeta,
    StoreReader,
    digest,
    pixel_layouts,
)


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
GROUP = {"zarr_format": 3, "node_type": "group"}
# Keys that consolidation adds; the copy of a nested group has an empty one.
CONSOLIDATED = {"kind": "inline", "must_understand": False}


def table_arrays(meta: StoreMeta) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the dtype and dimension names of every array that holds no pixels."""
    ledger = ("uint8", ("shard", "byte"))
    return {
        **TILE_COLUMNS,
        **{f"scenes/{name}": column for name, column in SCENE_COLUMNS.items()},
        "histogram/band": ("uint64", ("band", "value")),
        f"histogram/{meta.label_array}": ("uint64", ("value",)),
        **({"class_pixels": CLASS_PIXELS} if meta.has_classes else {}),
        **{f"ledger/{name}": ledger for name in meta.pixel_arrays()},
    }


def check_digests(store: StoreReader, files: StoreFiles) -> Iterator[Problem]:
    """Check every file without pixels against its digest. Older stores have no digests."""
    ledger = store.root.get("ledger")
    digests = ledger.attrs.get("files", {}) if isinstance(ledger, zarr.Group) else {}
    if not isinstance(digests, dict):
        yield Problem.of("ledger", "the digests of files are not a mapping")
        return
    for name in sorted(digests.keys() & files.sizes.keys()):
        try:
            if digest(files.read(name)) != digests[name]:
                yield Problem(
                    *place_of(name),
                    None,
                    None,
                    f"the file {name} differs from the one that the build wrote",
                )
        except StoreError as error:
            yield Problem(*place_of(name), None, None, str(error))


def check_documents(files: StoreFiles) -> Iterator[Problem]:
    """Check that every ``zarr.json`` can be read and equals its copy in the root's."""
    names = [name for name in files.sizes if name.rpartition("/")[2] == DOCUMENT]
    documents: dict[str, Any] = {}
    for name in names:
        node = name.removesuffix(DOCUMENT).rstrip("/")
        try:
            documents[node] = json.loads(files.read(name))
        except (StoreError, ValueError) as error:
            yield Problem.of(node or ".", f"{DOCUMENT} is damaged: {error}")
    root = documents.pop("", None)
    if root is None:
        return
    try:
        copies = dict(root["consolidated_metadata"]["metadata"])
        around = {k: v for k, v in root["consolidated_metadata"].items() if k != "metadata"}
    except (KeyError, TypeError, ValueError, AttributeError):
        yield Problem.of(".", f"{DOCUMENT} has no consolidated metadata of the arrays")
        return
    rest = {k: v for k, v in root.items() if k not in ("attributes", "consolidated_metadata")}
    if not _same(around, CONSOLIDATED) or not _same(rest, GROUP):
        yield Problem.of(".", f"{DOCUMENT} has unexpected keys or values")
    for node in sorted(documents.keys() | copies.keys()):
        if f"{node}/{DOCUMENT}" not in files.sizes:
            yield Problem.of(node, f"the file {node}/{DOCUMENT} is missing")
        elif node in documents and not _same(documents[node], _own(copies.get(node))):
            yield Problem.of(node, f"{DOCUMENT} differs from its copy in the root's metadata")


def _own(copy: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a node's copy without the empty consolidated metadata in copies of groups."""
    if isinstance(copy, dict) and _same(
        copy.get("consolidated_metadata"), {**CONSOLIDATED, "metadata": {}}
    ):
        return {k: v for k, v in copy.items() if k != "consolidated_metadata"}
    return copy


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - any JSON
    # Compared as text, since 1, 1.0 and True are equal in Python.
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def check_meta(store: StoreReader) -> Iterator[Problem]:
    """Check the root attribute against its digest in the ledger, and its keys."""
    meta = store.meta
    attrs = dict(store.root.attrs)["geoprep"]
    ledger = store.root.get("ledger")
    sealed = ledger.attrs.get("meta") if isinstance(ledger, zarr.Group) else None
    if sealed is not None and sealed != digest(json.dumps(attrs, sort_keys=True).encode()):
        yield Problem.of(".", "the geoprep attribute differs from the one that the build wrote")
    if not _same(attrs, meta.to_attrs()):
        yield Problem.of(".", "the geoprep attribute has unknown or missing keys")


def check_arrays(store: StoreReader, tiles: int) -> Iterator[Problem]:
    """Check shape, chunks, dtype, fill value and codecs of every array against the attribute.

    Parameters
    ----------
    tiles
        Number of rows of the tile table.
    """
    meta = store.meta
    for name, layout in pixel_layouts(meta).items():
        yield from _compare(store, name, layout.describe(tiles))
    for name, (dtype, dims) in table_arrays(meta).items():
        expected = {"dtype": dtype, "dimension_names": dims}
        yield from _compare(store, name, expected)


def _compare(store: StoreReader, name: str, expected: dict[str, Any]) -> Iterator[Problem]:
    array = store.root.get(name)
    if not isinstance(array, zarr.Array):
        yield Problem.of(name, "the array is missing")
        return
    found = {
        "shape": array.shape,
        "chunks": array.chunks,
        "shards": array.shards,
        "dtype": "str" if array.dtype.kind in "OT" else array.dtype.name,
        "fill_value": array.fill_value,
        "compressors": array.compressors,
        "dimension_names": getattr(array.metadata, "dimension_names", None),
    }
    for what, value in expected.items():
        if found[what] != value:
            yield Problem.of(name, f"{what.replace('_', ' ')} is {found[what]}, not {value}")


def check_names(
    store: StoreReader, files: StoreFiles, expected_shards: Iterable[str]
) -> Iterator[Problem]:
    """Check that every file of the store exists, and no other.

    Parameters
    ----------
    expected_shards
        Paths of all shards, relative to the store.
    """
    meta = store.meta
    arrays = table_arrays(meta)
    groups = {"/".join(name.split("/")[:i]) for name in arrays for i in range(name.count("/") + 1)}
    groups |= {str(level) for level in meta.levels}
    nodes = groups | set(arrays) | set(meta.pixel_arrays())
    expected = {f"{node}/{DOCUMENT}".lstrip("/") for node in nodes}
    expected |= {chunk_of(name, len(dims)) for name, (_, dims) in arrays.items()}
    expected |= set(expected_shards)
    for name in sorted(expected - files.sizes.keys()):
        yield Problem(*place_of(name), None, None, f"the file {name} is missing")
    for name in sorted(files.sizes.keys() - expected):
        what = (
            "left over from an interrupted build" if ".partial" in name else "not part of the store"
        )
        yield Problem(*place_of(name), None, None, f"the file {name} is {what}: delete it")


def chunk_of(array: str, axes: int) -> str:
    """Return the path of the only chunk of a table array."""
    return "/".join([array, "c", *["0"] * axes])


def place_of(name: str) -> tuple[str, int | None]:
    """Return the array and the shard of a file; None for files other than shards."""
    array, chunk, rest = name.rpartition("/c/") if "/c/" in name else (name, "", "")
    array = array.removesuffix(DOCUMENT).rstrip("/") if not chunk else array
    first = rest.split("/")[0]
    pixels = array.rpartition("/")[2] in FILL_VALUES and array.split("/")[0].isdigit()
    return array or ".", int(first) if pixels and first.isdigit() else None
