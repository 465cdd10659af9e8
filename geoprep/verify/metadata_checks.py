"""The metadata of a store: every ``zarr.json``, their copies in the root's, the list of files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import zarr

from geoprep.errors import StoreError
from geoprep.storage import StoreFiles
from geoprep.store import (
    PIXEL_ARRAYS,
    SCENE_COLUMNS,
    TILE_COLUMNS,
    Store,
    StoreMeta,
    digest,
    pixel_layouts,
)
from geoprep.verify.metadata_checks import Problem

DOCUMENT = "zarr.json"
GROUP = {"zarr_format": 3, "node_type": "group"}
# What consolidation writes around the copies; a nested group's copy carries an empty one.
CONSOLIDATED = {"kind": "inline", "must_understand": False}


def table_arrays(meta: StoreMeta) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the dtype and dimension names of every array that holds no pixels."""
    ledger = ("uint8", ("shard", "byte"))
    return {
        **TILE_COLUMNS,
        **{f"scenes/{name}": column for name, column in SCENE_COLUMNS.items()},
        "histogram/band": ("uint64", ("band", "value")),
        "histogram/speed": ("uint64", ("value",)),
        **{f"ledger/{name}": ledger for name in meta.pixel_arrays()},
    }


def check_digests(store: Store, files: StoreFiles) -> Iterator[Problem]:
    """Check every file that holds no pixels against its digest; older stores have none."""
    ledger = store.root.get("ledger")
    digests = ledger.attrs.get("files", {}) if isinstance(ledger, zarr.Group) else {}
    if not isinstance(digests, dict):
        yield Problem.of("ledger", "the digests of files are none")
        return
    for name in sorted(digests.keys() & files.sizes.keys()):
        try:
            if digest(files.read(name)) != digests[name]:
                yield Problem(*place_of(name), None, None, f"the file {name} is not the one built")
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
        yield Problem.of(".", f"{DOCUMENT} has keys or values that no store has")
    for node in sorted(documents.keys() | copies.keys()):
        if f"{node}/{DOCUMENT}" not in files.sizes:
            yield Problem.of(node, f"the file {node}/{DOCUMENT} is missing")
        elif node in documents and not _same(documents[node], _own(copies.get(node))):
            yield Problem.of(node, f"{DOCUMENT} differs from its copy in the root's metadata")


def _own(copy: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a node's copy without the empty consolidated metadata that copies of groups carry."""
    if isinstance(copy, dict) and _same(
        copy.get("consolidated_metadata"), {**CONSOLIDATED, "metadata": {}}
    ):
        return {k: v for k, v in copy.items() if k != "consolidated_metadata"}
    return copy


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - any JSON
    # Compared as text: to Python, 1, 1.0 and True are equal.
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def check_meta(store: Store) -> Iterator[Problem]:
    """Check the root attribute: against its digest in the ledger, and in itself."""
    meta = store.meta
    attrs = dict(store.root.attrs)["geoprep"]
    ledger = store.root.get("ledger")
    sealed = ledger.attrs.get("meta") if isinstance(ledger, zarr.Group) else None
    if sealed is not None and sealed != digest(json.dumps(attrs, sort_keys=True).encode()):
        yield Problem.of(".", "the geoprep attribute is not the one that the build wrote")
    if not _same(attrs, meta.to_attrs()):
        yield Problem.of(".", "the geoprep attribute has unknown or missing keys")


def check_arrays(store: Store, tiles: int) -> Iterator[Problem]:
    """Check shape, chunks, dtype, fill value and codecs of every array against the attribute.

    Parameters
    ----------
    tiles
        How many rows the tile table has.
    """
    meta = store.meta
    for name, layout in pixel_layouts(meta).items():
        yield from _compare(store, name, layout.describe(tiles))
    for name, (dtype, dims) in table_arrays(meta).items():
        expected = {"dtype": dtype, "dimension_names": dims}
        yield from _compare(store, name, expected)


def _compare(store: Store, name: str, expected: dict[str, Any]) -> Iterator[Problem]:
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
    store: Store, files: StoreFiles, expected_shards: Iterable[str]
) -> Iterator[Problem]:
    """Check that every file of the store is there and that no other is.

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
        what = "left over from an interrupted build" if ".partial" in name else "not of this store"
        yield Problem(*place_of(name), None, None, f"the file {name} is {what}: delete it")


def chunk_of(array: str, axes: int) -> str:
    """Return the one chunk file of a table array."""
    return "/".join([array, "c", *["0"] * axes])


def place_of(name: str) -> tuple[str, int | None]:
    """Return the array and the shard that a file belongs to."""
    array, chunk, rest = name.rpartition("/c/") if "/c/" in name else (name, "", "")
    array = array.removesuffix(DOCUMENT).rstrip("/") if not chunk else array
    first = rest.split("/")[0]
    pixels = array.rpartition("/")[2] in PIXEL_ARRAYS and array.split("/")[0].isdigit()
    return array or ".", int(first) if pixels and first.isdigit() else None
