"""Export scenes of a store as Cloud Optimised GeoTIFF, on the pixel grid of the source image."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO, Literal, cast
from xml.sax.saxutils import escape

import numpy as np
import pyproj
from numpy.typing import NDArray

from geoprep import __version__
from geoprep.cog.halving import halve_by_average, halve_by_mode
from geoprep.cog.spool import Shape
from geoprep.cog.tiff import described
from geoprep.cog.writer import CogWriter, Halve
from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.outputs import check_outputs, require_suffix
from geoprep.quiet import no_georeference_warning
from geoprep.speed import NODATA
from geoprep.storage.local_files import make_folder
from geoprep.storage.output_files import replaced
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import (
    find_scene,
    is_aligned,
    level_grid,
    level_step,
    read_image,
    read_label,
    scenes_in_split,
    split_names,
)
from geoprep.texts import printable
from geoprep.views.display import label_colours

if TYPE_CHECKING:
    from rasterio.io import DatasetWriter

What = Literal["both", "image", "label"]

SUFFIXES = (".tif", ".tiff")
ALL = "all"
COLOURS = ("red", "green", "blue")


def export_scenes(
    store: StoreReader,
    scenes: str | Sequence[str],
    out: str | Path,
    *,
    level: int | None = None,
    what: What = "both",
    split: str | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write images and labels of one scene, of several, or of all, and return the files.

    Tiles are joined without their overlap and padding, a few rows of tiles at a time.
    """
    names, out, meta = [scenes] if isinstance(scenes, str) else list(scenes), Path(out), store.meta
    level = store.check_level(level)
    arrays = {"both": ["image", meta.label_array], "image": ["image"]}.get(what, [meta.label_array])
    if names and split is not None:
        raise UsageError("`scenes` and `split` both choose scenes: give one of them")
    if split is not None:
        names = scenes_in_split(store, split)
    if len(names) > 1 or ALL in names or split is not None:
        if out.suffix.lower() in SUFFIXES:
            raise UsageError(f"{out} is a file. Give a folder for several scenes")
        make_folder(out)
    chosen = chosen_scenes(store, names, arrays)
    planned: list[tuple[int, Grid, dict[str, Path]]] = []
    for scene in chosen:
        grid = exportable_grid(store, scene, level, arrays)
        targets = _targets(out, str(store.scenes.id[scene]), arrays)
        if store.scenes.status[scene] == "unlabelled":
            targets.pop(meta.label_array, None)
        planned.append((scene, grid, targets))
    written = [path for *_, targets in planned for path in targets.values()]
    check_outputs(*written, inputs=[store.location], overwrite=overwrite)
    for scene, grid, targets in planned:
        for array, path in targets.items():
            _write(path, array, store, scene, level, grid)
    return written


def chosen_scenes(store: StoreReader, names: Sequence[str], arrays: list[str]) -> list[int]:
    """Return the scenes with these names; if ``all`` is among them, all with such pixels."""
    if ALL not in names:
        return [find_scene(store, name) for name in names]
    wanted = ("ok", "unlabelled") if "image" in arrays else ("ok",)
    scenes = [i for i, status in enumerate(store.scenes.status) if status in wanted]
    if not scenes:
        raise UsageError(f"{store.location}: no scene has pixels")
    return scenes


def require_pixels(store: StoreReader, index: int) -> None:
    """Raise UsageError if a store has no pixels of a scene."""
    name, status = store.scenes.id[index], store.scenes.status[index]
    if status in ("skipped", "failed"):
        raise UsageError(
            f"{store.location} has no pixels of {name}: the scene was {status} by the build "
            f"({store.scenes.reason[index]})"
        )


def exportable_grid(store: StoreReader, index: int, level: int, arrays: list[str]) -> Grid:
    """Return the scene's grid. Raise UsageError if its raster would be empty or inexact."""
    require_pixels(store, index)
    name, status = store.scenes.id[index], store.scenes.status[index]
    if status == "unlabelled" and "image" not in arrays:
        raise UsageError(f"{name} is unlabelled. Export its image")
    if not is_aligned(store, index, level):
        finest = store.meta.levels[0]
        raise UsageError(
            f"{name}: at level {level}, its tiles are offset from each other by half a pixel, "
            f"since a tile was shifted to end at the scene's edge. Export level {finest}"
        )
    grid = level_grid(store, index, level)
    assert grid is not None  # of a scene with pixels
    return grid


def _targets(out: Path, scene: str, arrays: list[str]) -> dict[str, Path]:
    """Return the file of each array to write."""
    if out.is_dir():
        out = out / f"{scene}.tif"
    require_suffix(out, *SUFFIXES)
    others = {array: out.with_name(f"{out.stem}_{array}{out.suffix}") for array in arrays[1:]}
    return {arrays[0]: out, **others}


def _write(path: Path, array: str, store: StoreReader, scene: int, level: int, grid: Grid) -> None:
    """Write the image or the label of a scene, a row of tiles at a time."""
    meta = store.meta
    is_image, is_classes = array == "image", array != "image" and meta.has_classes
    nodata = 0 if is_image else NODATA
    shape = Shape(
        *(1, grid.height, grid.width),
        samples=len(meta.bands) if is_image else 1,
        fill=nodata,
        differences=is_image,
    )

    def describe(file: DatasetWriter) -> None:
        file.update_tags(
            SCENE=store.scenes.id[scene],
            SPLIT=split_names(store, scene),
            LEVEL=level,
            TIFFTAG_SOFTWARE=f"geoprep {__version__}",
        )
        if is_image:
            _describe_image(file, meta.bands)
        else:
            _describe_label(file, store)

    def halve(fine: NDArray[np.uint8], coarse: NDArray[np.uint8], _: bool) -> None:
        if is_image:
            halve_by_average(fine, coarse, 0)
        elif is_classes:
            halve_by_mode(fine, coarse)
        else:  # speeds have no mean
            coarse[...] = fine[: 2 * len(coarse) : 2, : 2 * coarse.shape[1] : 2]

    step = level_step(store, level)
    with _created(path, grid, shape, nodata, halve, describe) as writer:
        for top in range(0, grid.height, step):
            rows = range(top, min(top + step, grid.height))
            read = read_image if is_image else read_label
            writer.put(read(store, scene, level, rows))
    write_sidecar(path, grid.crs, store.classes.names if is_classes else ())


def _describe_image(file: DatasetWriter, bands: Sequence[str]) -> None:
    from rasterio.enums import ColorInterp

    names = [band.lower() for band in bands]
    file.colorinterp = [
        ColorInterp[name] if name in COLOURS else ColorInterp.gray for name in names
    ]
    file.descriptions = bands


def _describe_label(file: DatasetWriter, store: StoreReader) -> None:
    """Give a label its colours and its unit, or the names of its classes."""
    meta = store.meta
    if meta.has_classes:
        file.update_tags(CLASS_NAMES=json.dumps(list(store.classes.names)))
        file.descriptions = ["class"]
    else:
        file.update_tags(SPEED_CODING="mph")
        file.descriptions = ["speed, mph" if meta.has_speeds else "road"]
        file.units = ["mph" if meta.has_speeds else ""]
    colours = label_colours(store).tolist()
    file.write_colormap(1, {i: (*rgb, 255) for i, rgb in enumerate(colours)})


def write_sidecar(path: Path, crs: str | None, classes: Sequence[str] = ()) -> None:
    """Write what a GeoTIFF has not to ``NAME.tif.aux.xml``, where GDAL keeps it.

    That is its CRS, where the keys of GeoTIFF cannot hold it, and the names of classes.
    """
    import rasterio

    stated = ""
    if crs:
        with rasterio.Env(GDAL_PAM_ENABLED="NO"), rasterio.open(path) as file:
            held = file.crs
        right = pyproj.CRS.from_user_input(crs)
        if held is None or pyproj.CRS.from_wkt(held.to_wkt(version="WKT2_2019")) != right:
            stated = f"<SRS>{escape(right.to_wkt())}</SRS>"
    if classes:
        rows = "".join(f"<Category>{escape(printable(name))}</Category>" for name in classes)
        names = f"<CategoryNames>{rows}</CategoryNames>"
        stated += f'<PAMRasterBand band="1">{names}</PAMRasterBand>'
    if stated:
        with replaced(path.with_name(f"{path.name}.aux.xml")) as partial:
            partial.write_text(f"<PAMDataset>{stated}</PAMDataset>\n", encoding="utf-8")


@contextmanager
def _created(
    path: Path,
    grid: Grid,
    shape: Shape,
    nodata: int,
    halve: Halve,
    describe: Callable[[DatasetWriter], None],
) -> Iterator[CogWriter]:
    """Yield what takes the rows of a file, which is complete when the block succeeds.

    Until then its tiles are in files without a name, so that nothing is left of a killed process.
    """
    import rasterio

    place = {"crs": grid.crs, "transform": grid.transform} if grid.georeferenced else {}
    with (
        replaced(path) as partial,
        rasterio.Env(GDAL_PAM_ENABLED="NO"),
        no_georeference_warning(),
        CogWriter(
            *(shape, "zstd", (), halve),
            open_file=lambda _: cast(BinaryIO, TemporaryFile(dir=path.parent)),
        ) as writer,
    ):
        yield writer
        tags = described(shape, "zstd", describe, nodata=nodata, **place)
        writer.finish(partial, tags)
