"""Scenes of a store as GeoZarr: a Zarr v3 group per scene, and in it a group per level."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyproj
import zarr

from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.specifications import ZARR_CONVENTIONS, ZARR_SCHEMA
from geoprep.storage.output_files import replaced
from geoprep.store.opening import quiet_zarr
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import is_aligned, level_step
from geoprep.views.geotiff import BLOCK, chosen_scenes, exportable_grid
from geoprep.views.scene_dataset import SPATIAL_REF, open_scene


def export_geozarr(store: StoreReader, scenes: str | Sequence[str], out: Path) -> Path:
    """Write images and labels of scenes at all levels to one Zarr hierarchy.

    Levels whose tiles do not line up are left out. Memory is that of a few rows of tiles.
    """
    chosen = chosen_scenes(store, [scenes] if isinstance(scenes, str) else scenes, ["image"])
    if out.exists():
        raise UsageError(f"{out} exists. Remove it, or give another folder")
    with replaced(out) as partial, quiet_zarr():
        root = zarr.create_group(partial)
        for scene in chosen:
            _write_scene(root.create_group(str(store.scenes.id[scene])), store, scene)
        zarr.consolidate_metadata(root.store)
    return out


def _write_scene(group: zarr.Group, store: StoreReader, scene: int) -> None:
    """Write the levels of a scene, and how they follow from the finest one."""
    finest, *coarser = store.meta.levels
    layout: list[dict[str, Any]] = []
    for level in (finest, *(coarse for coarse in coarser if is_aligned(store, scene, coarse))):
        grid = exportable_grid(store, scene, level, ["image"])
        transform, shape = list(grid.transform)[:6], [grid.height, grid.width]
        position = {"spatial:transform": transform, "spatial:shape": shape}
        layout.append({"asset": str(level), **position})
        if level == finest:
            group.attrs.update(_place(grid, "multiscales"))
        else:
            scale = [store.meta.tile / level] * 2
            layout[-1] |= {"derived_from": str(finest), "transform": {"scale": scale}}
        _write_level(group, store, scene, level, {**_place(grid), **position})
    group.attrs["multiscales"] = {"layout": layout}


def _write_level(
    group: zarr.Group, store: StoreReader, scene: int, level: int, place: dict[str, Any]
) -> None:
    """Write coordinates, then the arrays a row of chunks at a time; chunks hold whole tiles."""
    dataset, path = open_scene(store, scene, level), f"{group.path}/{level}"
    dataset.drop_vars(dataset.data_vars).to_zarr(
        group.store, group=path, zarr_format=3, consolidated=False
    )
    step = level_step(store, level)
    side = step * max(1, BLOCK // step)
    for name, array in dataset.data_vars.items():
        target = group.create_array(
            f"{level}/{name}",
            shape=array.shape,
            dtype=array.dtype,
            chunks=(*array.shape[:-2], side, side),
            fill_value=array.attrs["_FillValue"],
            dimension_names=[str(axis) for axis in array.dims],
            # xarray takes the variable for a coordinate where an array names it as such.
            attributes={**array.attrs, **array.encoding, "coordinates": SPATIAL_REF, **place},
        )
        for top in range(0, array.sizes["y"], side):
            target[..., top : top + side, :] = array[..., top : top + side, :].values


def _place(grid: Grid, *conventions: str) -> dict[str, Any]:
    """Return a grid's bounds and CRS, and the conventions that name them, after others."""
    names = [*conventions, "spatial"]
    place: dict[str, Any] = {"spatial:dimensions": ["y", "x"], "spatial:bbox": list(grid.bounds)}
    if grid.georeferenced:
        names.append("proj")
        if grid.crs.startswith("EPSG:"):
            place["proj:code"] = grid.crs
        else:
            place["proj:wkt2"] = pyproj.CRS.from_user_input(grid.crs).to_wkt()
    declared = [
        {"name": name, "uuid": ZARR_CONVENTIONS[name], "schema_url": ZARR_SCHEMA.format(name)}
        for name in names
    ]
    return {"zarr_conventions": declared, **place}
