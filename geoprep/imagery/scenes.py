"""A scene opened: its grid, the bands that are read, their units, and what tells its nodata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from geoprep.grid import Grid
from geoprep.imagery.description import NOTHING_STATED, Raster, Stated
from geoprep.imagery.validity import Nodata


@dataclass(frozen=True, slots=True)
class OpenScene:
    """How the pixels of a scene are read, chosen once, from its header.

    Builds and predictions read images by it alone, so that equal pixels become equal bytes.
    """

    address: str
    grid: Grid
    bands: tuple[int, ...]  # numbered from 1, in the order of reading
    dtype: str  # of these bands
    units: tuple[tuple[float, float], ...]  # scale and offset of each; empty if all are 1 and 0
    nodata: Nodata  # as given, or else of a STAC item where the file states none
    black_decides: bool  # on nodata, where it is connected with the edge: nothing states it
    block_rows: int  # of the blocks that the file consists of
    leaves_out_alpha: bool  # whether the last of four bands is left out, as alpha
    all_valid: bool = False  # whether every pixel is known to hold imagery, before one is read

    @property
    def doubt(self) -> str:
        """What to look at if values may be decoded already, for the user; empty: they are not."""
        if not self.units or not self.dtype.startswith("float"):
            return ""
        scale, offset = self.units[0]
        return (
            f"floating-point values with the scale {scale:g} and the offset {offset:g}. If they "
            "are decoded already, as results of xarray are, which keep both: "
            "`gdal_edit.py -scale 1 -offset 0 FILE`"
        )


def open_scene(
    raster: Raster,
    bands: Sequence[int],
    grid: Grid,
    nodata: Nodata = None,
    stated: Stated = NOTHING_STATED,
) -> OpenScene:
    """Return how 1-based bands of an image are read; ImageError if they cannot be.

    ``grid`` is that of the image on the ground. ``nodata`` comes first, then what the file says,
    then what a STAC item has ``stated``.
    """
    states_nodata = raster.reading(bands).states_nodata
    if nodata is None and not states_nodata:
        nodata = stated.nodata
    dtype, units = raster.dtype_of(bands), raster.units_of(bands, stated.units)
    black_decides, alpha = nodata is None and not states_nodata, raster.leaves_out_alpha(bands)
    all_valid = nodata == "none" and not states_nodata and not dtype.startswith("float")
    address, blocks = raster.files[0], raster.block_rows
    return OpenScene(
        *(address, grid, tuple(bands), dtype, units, nodata),
        black_decides=black_decides,
        block_rows=blocks,
        leaves_out_alpha=alpha,
        all_valid=all_valid,
    )
