"""Write a scene as Cloud Optimised GeoTIFF or PNG, a few rows of tiles at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import OutputError, UsageError
from geoprep.grid import Grid
from geoprep.quiet import no_georeference_warning
from geoprep.speed import BINNED_TABLE, CONTINUOUS_TABLE, NODATA
from geoprep.storage import replaced
from geoprep.store import ClassTable, StoreReader, read_image, read_label
from geoprep.views.display import label_colours

if TYPE_CHECKING:
    from rasterio.io import DatasetWriter

Coding = Literal["mph", "continuous", "binned"]

BLOCK = 512
COLOURS = ("red", "green", "blue")
MOST_IN_MEMORY = 64 << 20
"""Largest raster, in bytes, that is assembled in memory rather than in a temporary file."""
_CACHE_MB = 64
_MOST_PNG_BANDS = 4


@dataclass(frozen=True, slots=True)
class SceneRaster:
    """A scene at a level, its grid there, and the tags of the file."""

    store: StoreReader
    scene: int
    level: int
    grid: Grid
    tags: Mapping[str, str]

    def strips(self) -> Iterator[range]:
        """Yield the pixel rows of each row of tiles."""
        step = self.level - self.store.meta.overlap * self.level // self.store.meta.tile
        for top in range(0, self.grid.height, step):
            yield range(top, min(top + step, self.grid.height))


def write_image(path: Path, raster: SceneRaster) -> None:
    """Write uint8 bands with nodata 0 and averaged overviews."""
    from rasterio.enums import ColorInterp

    bands = raster.store.meta.bands
    if path.suffix.lower() == ".png" and len(bands) > _MOST_PNG_BANDS:
        raise UsageError(f"{path}: a PNG cannot hold {len(bands)} bands. Name the file NAME.tif")
    names = [band.lower() for band in bands]
    with _created(path, raster.grid, len(bands), 0, "average") as file:
        file.colorinterp = [
            ColorInterp[name] if name in COLOURS else ColorInterp.gray for name in names
        ]
        file.update_tags(**raster.tags)
        file.descriptions = bands
        for rows in raster.strips():
            image = read_image(raster.store, raster.scene, raster.level, rows)
            _put(file, rows, np.moveaxis(image, 2, 0))


def write_label(path: Path, raster: SceneRaster, coding: Coding) -> None:
    """Write speeds in a coding, or the numbers of classes; both with their colours.

    GDAL keeps names of categories outside a GeoTIFF, so those of classes are in
    ``NAME.tif.aux.xml``, and in the tag ``CLASSES`` of the file itself.
    """
    store, classes = raster.store, raster.store.meta.has_classes
    table = {"continuous": CONTINUOUS_TABLE, "binned": BINNED_TABLE}.get(coding)
    # Speeds have no mean, so overviews take the nearest pixel.
    nodata, overviews = (NODATA if table is None else None), "mode" if classes else "nearest"
    with _created(path, raster.grid, 1, nodata, overviews) as file:
        if classes:
            file.update_tags(**raster.tags, CLASSES=json.dumps(list(store.classes.names)))
            file.descriptions = ["class"]
        else:
            file.update_tags(**raster.tags, SPEED_CODING=coding)
            file.descriptions = [f"speed, {coding}" if store.meta.has_speeds else "road"]
            file.units = ["mph" if store.meta.has_speeds and table is None else ""]
        if table is None:
            colours = label_colours(store).tolist()
            file.write_colormap(1, {i: (*rgb, 255) for i, rgb in enumerate(colours)})
        for rows in raster.strips():
            label = read_label(store, raster.scene, raster.level, rows)
            _put(file, rows, (label if table is None else table[label])[None])
    if classes:
        with replaced(Path(f"{path}.aux.xml")) as partial:
            partial.write_text(category_names(store.classes), encoding="utf-8")


def category_names(classes: ClassTable) -> str:
    """Return the contents of GDAL's ``.aux.xml`` with the names and colours of classes."""
    names = "".join(f"<Category>{escape(name)}</Category>" for name in classes.names)
    columns = (("value", 0, 5), ("class", 2, 2), ("red", 0, 6), ("green", 0, 7), ("blue", 0, 8))
    fields = "".join(
        f'<FieldDefn index="{i}"><Name>{name}</Name><Type>{kind}</Type><Usage>{usage}</Usage>'
        "</FieldDefn>"
        for i, (name, kind, usage) in enumerate(columns)
    )
    rows = "".join(
        f'<Row index="{i}"><F>{i}</F><F>{escape(name)}</F>'
        + "".join(f"<F>{part}</F>" for part in rgb)
        + "</Row>"
        for i, (name, rgb) in enumerate(zip(classes.names, classes.rgb.tolist(), strict=True))
    )
    return (
        f'<PAMDataset><PAMRasterBand band="1"><CategoryNames>{names}</CategoryNames>'
        f'<GDALRasterAttributeTable tableType="thematic">{fields}{rows}'
        "</GDALRasterAttributeTable></PAMRasterBand></PAMDataset>\n"
    )


def _put(file: DatasetWriter, rows: range, values: NDArray[np.uint8]) -> None:
    from rasterio.windows import Window

    file.write(values, window=Window(0, rows.start, values.shape[2], len(rows)))


@contextmanager
def _created(
    path: Path, grid: Grid, bands: int, nodata: int | None, overviews: str
) -> Iterator[DatasetWriter]:
    """Open a raster for writing; it is converted and moved to ``path`` when the block succeeds."""
    # Small ones in memory, since GDAL reports a full disk on the terminal only.
    import rasterio
    from rasterio.shutil import copy

    place = {"crs": grid.crs, "transform": grid.transform} if grid.georeferenced else {}
    profile: dict[str, Any] = {
        **{"driver": "GTiff", "dtype": "uint8", "height": grid.height, "width": grid.width},
        **{"count": bands, "nodata": nodata, "compress": "lzw", "interleave": "pixel"},
        **{"bigtiff": "if_safer", **place},
    }
    if min(grid.height, grid.width) >= BLOCK:
        profile |= {"tiled": True, "blockxsize": BLOCK, "blockysize": BLOCK}
    small = grid.height * grid.width * bands <= MOST_IN_MEMORY
    with ExitStack() as stack:
        partial = stack.enter_context(replaced(path))
        stack.enter_context(rasterio.Env(GDAL_CACHEMAX=_CACHE_MB, GDAL_PAM_ENABLED="NO"))
        stack.enter_context(no_georeference_warning())
        if small:
            memory = stack.enter_context(rasterio.MemoryFile())
            final = stack.enter_context(rasterio.MemoryFile(ext=path.suffix))
            rough, made = memory.name, final.name
        else:
            _require_room(path, grid.height * grid.width * bands)
            rough = str(partial.with_suffix(".rough"))
            stack.callback(Path(rough).unlink, missing_ok=True)
            made = str(partial)
        with rasterio.open(rough, "w", **profile) as file:
            yield file
        copy(rough, made, **_final_form(path, bands, overviews))
        if small:
            partial.write_bytes(final.getbuffer())


def _final_form(path: Path, bands: int, overviews: str) -> dict[str, Any]:
    if path.suffix.lower() == ".png":
        return {"driver": "PNG"}
    return {
        **{"driver": "COG", "compress": "deflate", "predictor": "yes" if bands > 1 else "no"},
        **{"blocksize": BLOCK, "overview_resampling": overviews, "bigtiff": "if_safer"},
        **{"overview_compress": "deflate", "num_threads": "all_cpus"},
    }


def _require_room(path: Path, size: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise OutputError(
            f"{path} cannot be written: it needs up to {size / 1e9:.1f} GB of temporary space "
            f"there, and {free / 1e9:.1f} GB are free. Free disk space or use another folder"
        )
