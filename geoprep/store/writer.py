"""Create a store's metadata, and write its tables when the build commits."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from geoprep.storage.local_files import flush, flush_all
from geoprep.storage.sinks import DiskFile
from geoprep.store.layout import pixel_layouts
from geoprep.store.opening import quiet_zarr
from geoprep.store.reader import seal
from geoprep.store.schema import (
    FILL_VALUES,
    SCENE_COLUMNS,
    TILE_COLUMNS,
    SceneTable,
    StoreMeta,
    TileTable,
    table_arrays,
)
from geoprep.store.shards import digest


def create_store(path: Path, meta: StoreMeta, tiles: int) -> None:
    """Write the metadata of a store of some tiles; arrays of the same unfinished store are kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    root = zarr.open_group(path, mode="a", attributes={"geoprep": meta.to_attrs()})
    for name, layout in pixel_layouts(meta).items():
        header = path / name / "zarr.json"
        if not header.exists():
            root.require_group(name.split("/")[0])
            file = DiskFile(header)
            file.write(json.dumps(layout.header(tiles), indent=2).encode())
            file.close()


def write_table_array(
    group: zarr.Group, name: str, values: NDArray[Any], dtype: str, dims: tuple[str, ...]
) -> None:
    """Write one small array as a single chunk with a checksum, replacing an existing one."""
    array = group.create_array(
        name,
        shape=values.shape,
        chunks=tuple(max(1, n) for n in values.shape),
        dtype=dtype,
        compressors=(ZstdCodec(level=3, checksum=False), Crc32cCodec()),
        dimension_names=list(dims),
        config={"write_empty_chunks": True},
        overwrite=True,
    )
    array[...] = values


def finish_store(
    path: Path,
    meta: StoreMeta,
    tiles: TileTable,
    scenes: SceneTable,
    others: Mapping[str, NDArray[Any]],
) -> None:
    """Write the tables, then mark the store complete in one rename of its root metadata.

    ``others`` are arrays by their path in the store: ``histogram/band``, ``ledger/650/image`` (the
    XXH3-128 of every shard, uint8 (shard, 16)), and so on.
    """
    # A build that was killed right before its commit has left consolidated metadata.
    root = zarr.open_group(path, mode="r+", use_consolidated=False)
    columns = table_arrays(meta)
    tables = {
        **{name: getattr(tiles, name) for name in TILE_COLUMNS},
        **{f"scenes/{name}": getattr(scenes, name) for name in SCENE_COLUMNS},
        **others,
    }
    for name, values in tables.items():
        write_table_array(root, name, values, *columns[name])
    _commit(path, meta)
    flush(path / "zarr.json")
    flush(path)


def _commit(path: Path, meta: StoreMeta) -> None:
    done = replace(meta, complete=True).to_attrs()
    root = zarr.open_group(path, mode="r+", use_consolidated=False)
    ledger = root.require_group("ledger")
    # The digest of the root attribute is stored in the ledger, which consolidation covers. The
    # digests of shards are in the ledger's arrays; two files are written afterwards.
    names = {file.relative_to(path).as_posix(): file for file in _without_shards(path)[0]}
    listed = sorted(names.keys() - {"zarr.json", "ledger/zarr.json"})
    digests = {name: digest(names[name].read_bytes()) for name in listed}
    ledger.update_attributes({"meta": seal(done), "files": digests})
    # Consolidation rewrites zarr.json, and so does setting an attribute. The completion mark must
    # be the last change, so metadata is consolidated while the store is marked incomplete.
    with quiet_zarr():
        zarr.consolidate_metadata(path)
        root = zarr.open_group(path, mode="r+", use_consolidated=True)
    files, folders = _without_shards(path)
    flush_all([*files, *folders])
    root.update_attributes({"geoprep": done})


def _without_shards(store: Path) -> tuple[list[Path], list[Path]]:
    """Return all files and folders of a store except shards, which the build has flushed."""
    files: list[Path] = []
    folders: list[Path] = []
    for folder, inner, names in os.walk(store):
        here = Path(folder)
        level = here.parent.parent == store and here.parent.name.isdigit()
        if (
            level and here.name in FILL_VALUES and "c" in inner
        ):  # shards of a store in a bucket are not here
            inner.remove("c")
        folders.append(here)
        files += [here / name for name in names]
    return files, folders
