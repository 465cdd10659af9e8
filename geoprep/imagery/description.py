"""Statements of a raster file about itself: one record, which everything else asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from geoprep.crs import is_georeferenced, stated_crs
from geoprep.errors import ImageError, SourceError
from geoprep.grid import Grid, local_grid
from geoprep.imagery.band_names import Names, common_name, has_names
from geoprep.imagery.rescale import SIZES
from geoprep.imagery.wide import WIDE
from geoprep.storage.addresses import shown_address, split_address
from geoprep.storage.versions import file_version

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

Mask = Literal["none", "band", "data set", "alpha", "nodata"]
"""Where the mask of a band comes from: its own, that of the whole file, an alpha band, its nodata
value; none: every pixel is valid."""

_COLOURS: Final = ("red", "green", "blue")
_MOST_PIXELS, _LONGEST = 1 << 40, 1 << 23  # memory grows with the length of a row


class Stated(NamedTuple):
    """Statements of a STAC item about an image; it counts where the file itself says nothing."""

    names: tuple[Names, ...] = ()  # of its bands
    nodata: float | None = None  # one value for all bands
    units: tuple[tuple[float, float], ...] = ()  # scale and offset of its bands


NOTHING_STATED: Final = Stated()


@dataclass(frozen=True, slots=True)
class Band:
    """A band as its file states it."""

    description: str  # "" without one
    colour: str  # rasterio's name of its colour interpretation, such as red, palette or alpha
    dtype: str
    nodata: float | None
    scale: float  # a value means value * scale + offset
    offset: float
    unit: str
    mask: Mask

    @property
    def is_palette(self) -> bool:
        """Whether values are indexes into a colour table."""
        return (self.colour, self.dtype) == ("palette", "uint8")


@dataclass(frozen=True, slots=True)
class Raster:
    """A raster as its file states it, without a pixel read.

    Examples
    --------
    >>> import rasterio
    >>> from geoprep.imagery.headers import describe
    >>> shape = {"driver": "GTiff", "width": 60, "height": 40, "count": 2, "dtype": "uint16"}
    >>> with rasterio.open("pair.tif", "w", **shape, nodata=0, crs="EPSG:32637") as file:
    ...     file.descriptions = ("red", "nir")
    >>> raster = describe("pair.tif")
    >>> raster.grid.shape, raster.band_names, raster.bands[1].dtype, raster.states_nodata
    ((40, 60), ('red', 'nir'), 'uint16', True)
    """

    name: str  # for messages
    grid: Grid  # its crs is "" if the file is not georeferenced
    crs: str  # as stated, WKT, also of a file without a transform; "" without one
    gcps: int  # ground control points
    has_rpcs: bool  # the camera's model
    bands: tuple[Band, ...]
    palette: tuple[tuple[int, int, int, int], ...] | None  # red, green, blue, alpha of 256 values
    tags: Mapping[str, str]  # of the file
    block_rows: int  # of the blocks in which pixels are stored
    # Addresses of all files that it consists of, the file itself first; `describe` alone finds
    # the others: sidecars, and the sources of a VRT with theirs.
    files: tuple[str, ...]

    @classmethod
    def of(cls, dataset: DatasetReader, address: str | None = None) -> Raster:
        """Return the description of an open file; ``address`` is its own, None: its name."""
        address = address or dataset.name
        name = shown_address(split_address(address)[0])
        if dataset.width * dataset.height > _MOST_PIXELS or max(dataset.shape) > _LONGEST:
            raise ImageError(
                f"{name} claims {dataset.width} x {dataset.height} pixels, more than can be read: "
                "cut it with `gdal_translate -srcwin X Y WIDTH HEIGHT IN OUT`"
            )
        wkt, code = stated_crs(dataset.crs.to_wkt(version="WKT2_2019")) if dataset.crs else ("", "")
        placed = is_georeferenced(wkt, dataset.transform)
        bands = tuple(_bands(dataset))
        return cls(
            name,
            Grid(dataset.height, dataset.width, dataset.transform, code if placed else ""),
            wkt,
            len(dataset.gcps[0]),
            dataset.rpcs is not None,
            bands,
            _palette(dataset) if bands[0].is_palette else None,
            dataset.tags(),
            dataset.block_shapes[0][0],
            (address,),
        )

    def version(self) -> str:
        """Return a text that changes with any of its local files, see `storage.file_version`."""
        versions = []
        first, *others = self.files
        for file in (*split_address(first), *others):
            try:
                versions.append(file_version(file))
            except SourceError:  # such as a source on a server
                versions.append("unreadable")
        return xxhash.xxh3_128_hexdigest(" ".join(versions).encode())

    @property
    def alpha(self) -> int | None:
        """1-based number of the alpha band."""
        colours = [band.colour for band in self.bands]
        return colours.index("alpha") + 1 if "alpha" in colours else None

    @property
    def colours(self) -> NDArray[np.uint8]:
        """Red, green, blue and alpha of every value of a palette, uint8 (256, 4)."""
        return np.array(self.palette, np.uint8).reshape(-1, 4)

    @property
    def band_names(self) -> tuple[str, ...]:
        """Name of every band: its description, its colour, or ``band N``; those of a palette."""
        if self.palette is not None:
            return _COLOURS
        return tuple(
            band.description or (band.colour if band.colour in _COLOURS else f"band {number}")
            for number, band in enumerate(self.bands, start=1)
        )

    @property
    def names(self) -> tuple[Names, ...]:
        """Names of each band: that of `band_names`, and its common name in STAC, if it has one."""
        if self.palette is not None:
            return tuple((name,) for name in _COLOURS)
        return tuple(
            (name, common_name(band.description) or common_name(band.colour))
            for name, band in zip(self.band_names, self.bands, strict=True)
        )

    def names_or(self, stated: Sequence[Names]) -> Sequence[Names]:
        """Return all names of every band; those of an item if the file has none."""
        enough = len(stated) >= len(self.bands) and has_names(stated)
        return stated if enough and not has_names(self.names) else self.names

    @property
    def default_bands(self) -> tuple[int, ...]:
        """1-based bands of imagery: all but alpha; red, green and blue of a palette."""
        alpha = None if self.palette else self.alpha
        return tuple(n for n in range(1, len(self.band_names) + 1) if n != alpha)

    def leaves_out_alpha(self, bands: Sequence[int]) -> bool:
        """Return whether the last of four bands is left out as alpha, and may be near infrared.

        It is called so in GeoTIFFs by default. A PNG says what it means.
        """
        is_tiff = self.name.lower().endswith((".tif", ".tiff"))
        return len(self.bands) == self.alpha == 4 not in bands and is_tiff

    def reading(self, bands: Sequence[int]) -> Raster:
        """Return the description for reading 1-based bands: alpha among them is data.

        GDAL and tifffile call the fourth of four bands alpha by default.
        """
        alpha = self.alpha
        if self.palette is not None or alpha is None or alpha not in bands:
            return self
        own = [replace(band, mask="none") if band.mask == "alpha" else band for band in self.bands]
        own[alpha - 1] = replace(own[alpha - 1], colour="undefined")
        return replace(self, bands=tuple(own))

    @property
    def has_mask(self) -> bool:
        """Whether the file has a mask for all of its bands."""
        return self.bands[0].mask == "data set"

    @property
    def has_band_masks(self) -> bool:
        """Whether bands have masks of their own."""
        return any(band.mask == "band" for band in self.bands)

    @property
    def states_nodata(self) -> bool:
        """Whether an alpha band, masks, a nodata tag or the palette mark nodata."""
        tagged = any(band.nodata is not None for band in self.bands)
        clear = any(alpha == 0 for *_, alpha in self.palette or ())
        masked = self.has_mask or self.has_band_masks
        return self.alpha is not None or masked or tagged or clear

    def nodata_of(self, bands: Sequence[int]) -> list[float | None]:
        """Return the nodata value of 1-based bands, which files such as VRTs have of their own."""
        if self.palette is not None:
            return [None] * len(bands)
        return [self.bands[number - 1].nodata for number in bands]

    def units_of(
        self, bands: Sequence[int], stated: Sequence[tuple[float, float]] = ()
    ) -> tuple[tuple[float, float], ...]:
        """Return scale and offset of 1-based bands; none where a value is its own meaning.

        ``stated`` are those of an item, one for all bands or one for each.
        """
        if self.palette is not None:
            return ()
        own = [(band.scale or 1.0, band.offset) for band in self.bands]
        if set(own) == {(1.0, 0.0)}:
            if len(set(stated)) == 1:
                own = [stated[0]] * len(own)
            elif max(bands) <= len(stated):
                own = [*stated]
        units = tuple(own[number - 1] for number in bands)
        if not np.isfinite(units).all():
            raise ImageError(
                f"{self.name} states the scale and offset {units} of its bands, which are no "
                "numbers: correct them with `gdal_edit.py -scale S -offset O FILE`"
            )
        return units if set(units) != {(1.0, 0.0)} else ()

    def dtype_of(self, bands: Sequence[int]) -> str:
        """Return the dtype of 1-based bands; raise ImageError if they cannot be read together."""
        if self.palette is not None:
            return "uint8"
        dtypes = {self.bands[number - 1].dtype for number in bands}
        if self.bands[0].colour == "palette" and bands[0] == 1:
            raise ImageError(
                f"{self.name} has a palette of {self.bands[0].dtype} values: make its colours "
                "bands with `gdal_translate -expand rgb IN OUT`"
            )
        if len(dtypes) == 1 and dtypes <= {*SIZES, *WIDE}:
            return dtypes.pop()
        held = "/".join(sorted(dtypes))
        if "complex" in held:
            raise ImageError(
                f"{self.name} holds {held} values: complex values have no brightness; convert them "
                "to a real image, such as the amplitude, first"
            )
        raise ImageError(
            f"{self.name} holds {held} in the bands to read, which must have one dtype: choose "
            "`bands`, or convert with gdal_translate -ot Float32 IN OUT"
        )

    def grid_in(self, crs: str) -> Grid:
        """Return the grid; a file with a transform and without a CRS has this one."""
        if self.crs or not is_georeferenced(crs, self.grid.transform):
            return self.grid
        return replace(self.grid, crs=crs)

    def placed(self, pixel_size_m: float | None = None) -> Grid:
        """Return the grid on the ground; ``pixel_size_m`` is for images without georeference.

        Raises
        ------
        ImageError
            The image is nowhere on Earth, or not georeferenced and there is no pixel size.
        """
        from pyproj.exceptions import ProjError

        if not self.grid.georeferenced:
            if pixel_size_m is not None:
                return local_grid(*self.grid.shape, pixel_size_m)
            raise ImageError(f"{self.name} {self._missing_georeference()}")
        try:
            on_earth = all(0 < metres < np.inf for metres in self.grid.gsd_m())
        except ProjError:  # the CRS of another planet, for one
            on_earth = False
        if not on_earth:
            raise ImageError(
                f"{self.name} is nowhere on Earth by its CRS and transform "
                f"{tuple(self.grid.transform)[:6]}: check both with `gdalinfo FILE`, and correct "
                "them with `gdal_edit.py -a_srs EPSG:xxxx -a_ullr ULX ULY LRX LRY FILE`"
            )
        return self.grid

    def _missing_georeference(self) -> str:
        """Return what an image lacks to be georeferenced, and the command that adds it."""
        name, transform = self.name, self.grid.transform
        out = f"{PurePath(name).stem}_warped.tif"
        if self.gcps:
            return (
                f"has {self.gcps} ground control points and no transform: rectify it with "
                f"`gdalwarp -t_srs EPSG:4326 -r bilinear {name} {out}` and use the result"
            )
        if self.has_rpcs:
            return (
                "has RPCs, the camera's model, and no transform: rectify it with "
                f"`gdalwarp -rpc -to RPC_DEM=DEM.tif -t_srs EPSG:4326 -r bilinear {name} {out}` "
                "(on flat ground without -to RPC_DEM=...) and use the result"
            )
        without = "or set `pixel_size`, the width of its pixels in metres, to use it as it is"
        if not self.crs:
            return f"has no CRS: add one with `gdal_edit.py -a_srs EPSG:xxxx FILE`, {without}"
        if transform.is_identity or transform.is_degenerate:
            return (
                f"has no georeference (transform {tuple(transform)[:6]}): add it with "
                f"`gdal_edit.py -a_ullr ULX ULY LRX LRY FILE`, {without}"
            )
        return (
            f"has a CRS that is neither geographic nor projected ({self.crs[:60]}): "
            f"set the right one with `gdal_edit.py -a_srs EPSG:xxxx FILE`, {without}"
        )


def _bands(dataset: Any) -> list[Band]:  # noqa: ANN401 - rasterio's properties have no types
    """Return the bands of an open file."""
    return [
        Band(description or "", colour.name, dtype, nodata, scale, offset, unit or "", _mask(flags))
        for description, colour, dtype, nodata, scale, offset, unit, flags in zip(
            dataset.descriptions,
            dataset.colorinterp,
            dataset.dtypes,
            dataset.nodatavals,
            dataset.scales,
            dataset.offsets,
            dataset.units,
            dataset.mask_flag_enums,
            strict=True,
        )
    ]


def _mask(flags: Sequence[Any]) -> Mask:
    """Return where a mask comes from, of GDAL's flags; none of them is set for a band's own."""
    names = {flag.name for flag in flags}
    if "alpha" in names:
        return "alpha"
    if "per_dataset" in names:
        return "data set"
    if "nodata" in names:
        return "nodata"
    return "none" if "all_valid" in names else "band"


def _palette(dataset: DatasetReader) -> tuple[tuple[int, int, int, int], ...]:
    colours = [(0, 0, 0, 255)] * 256
    for index, colour in dataset.colormap(1).items():
        colours[index] = colour
    return tuple(colours)
