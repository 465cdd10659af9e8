"""Reads images and labels by their address (see `geoprep.storage.addresses`)."""

import io
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, SubElement, tostring

from geoprep.errors import ImageError, SourceError
from geoprep.quiet import no_georeference_warning
from geoprep.storage.addresses import (
    archive_member,
    image_in_file,
    is_local,
    is_remote,
    shown_address,
    split_address,
)
from geoprep.storage.cut_files import Read, missing_end, missing_pixels
from geoprep.storage.orientation import other_display
from geoprep.storage.places import located, read_object
from geoprep.storage.versions import BLOCK, open_file, require_end

if TYPE_CHECKING:
    from rasterio.io import DatasetReader


def open_image(address: str) -> AbstractContextManager["DatasetReader"]:
    """Open an image for reading; rasterio's errors until it is closed name the file.

    A remote image is downloaded into memory. Sidecar files
    (``.msk``, ``.aux.xml``, world files) count for images on a disk, where they are looked up by
    name: GDAL's default, to list the folder at every open, costs 0.3 ms among 1400 chips. Safe in
    threads: each call opens a data set of its own, and GDAL starts no threads. Several `joined`
    images of one band each are opened as one image.
    """
    return _stacked(address, _whole)


def open_header(address: str) -> AbstractContextManager["DatasetReader"]:
    """Open an image for its header alone; of a remote image only some ranges are downloaded."""
    return _stacked(address, lambda image: _header(image) if is_remote(image) else _whole(image))


@contextmanager
def _whole(address: str) -> Iterator["DatasetReader"]:
    with _gdal(address):
        if not is_remote(address):
            with _opened(address) as dataset:
                _require_plain(address, other_display(dataset))
                _require_whole(address, missing_pixels(dataset))
                for name in dataset.files if is_local(address) else [address]:  # a VRT's too
                    with _ranges(str(name)) as (read, size):
                        _require_whole(address, missing_end(read, size))
                yield dataset
        else:
            import rasterio

            data = read_object(address)
            read = lambda at, size: data[at : at + size]  # noqa: E731 - as `_ranges` yields it
            _require_whole(address, missing_end(read, len(data)))
            with rasterio.MemoryFile(data) as memory, memory.open() as dataset:
                _require_plain(address, other_display(dataset))
                yield dataset


@contextmanager
def _header(address: str) -> Iterator["DatasetReader"]:
    """Open a remote image; only the blocks that are read are downloaded."""
    import rasterio

    files, key = located(address)
    size = files.size(key)

    @lru_cache(16)
    def block(number: int) -> bytes:
        return files.read_range(key, number * BLOCK, min((number + 1) * BLOCK, size))

    errors: list[SourceError] = []
    # GDAL also looks for sidecars, which do not count.
    name = f"{uuid.uuid4().hex}/image{PurePosixPath(key).suffix}"

    def opener(path: str, mode: str = "r", **_: object) -> _RangeReader:
        if path != name or mode not in ("r", "rb"):
            raise FileNotFoundError(path)
        return _RangeReader(block, size, errors)

    with _gdal(address, errors):
        with rasterio.open(name, opener=opener) as dataset:
            _require_plain(address, other_display(dataset))
            yield dataset
        if errors:
            raise errors[0]


@contextmanager
def _stacked(
    address: str, open_one: Callable[[str], AbstractContextManager["DatasetReader"]]
) -> Iterator["DatasetReader"]:
    """Open an image, or several of one band each and of equal grids as one: a VRT in memory."""
    import rasterio
    from rasterio.enums import MaskFlags

    addresses = split_address(address)
    with ExitStack() as stack:
        bands = [stack.enter_context(open_one(image)) for image in addresses]
        if len(bands) == 1:
            stack.enter_context(_gdal(address))
            only = _only_image(address, *bands)
            yield stack.enter_context(rasterio.open(only)) if only else bands[0]
            return
        finest = min(bands, key=lambda band: abs(band.transform.a))
        for image, band in zip(addresses, bands, strict=True):
            masked = MaskFlags.per_dataset in band.mask_flag_enums[0]
            if masked or band.count > 1 or not _covers(band, finest):
                raise ImageError(
                    f"{addresses[0]} and {image} cannot be stacked: bands need the same extent and "
                    "CRS, and are images of one band without a mask. Choose others with `asset`, "
                    "or resample them with gdalwarp"
                )
        stack.enter_context(_gdal(address))
        memory = stack.enter_context(rasterio.MemoryFile(_vrt(bands, finest), ext=".vrt"))
        yield stack.enter_context(memory.open())


def _only_image(address: str, dataset: "DatasetReader") -> str:
    """Return the address of the only image in a file, "" if it opens as that; refuse several."""
    names: list[str] = dataset.subdatasets
    if len(names) > 1:
        raise ImageError(
            f"{shown_address(address)}: has {len(names)} images: give the address of one, such as "
            f"{', '.join(names[:3])}"
        )
    if not (names or dataset.count):
        raise ImageError(f"{shown_address(address)}: has no image in it.")
    return "" if dataset.count else names[0]


def _grid(dataset: "DatasetReader") -> tuple[Any, ...]:
    return dataset.shape, dataset.transform, dataset.crs


def _covers(band: "DatasetReader", finest: "DatasetReader") -> bool:
    """Return whether grids are equal, or one of larger pixels has that extent by half of them."""
    if _grid(band) == _grid(finest):
        return True
    pixel, edges = abs(band.transform.a), zip(band.bounds, finest.bounds, strict=True)
    larger = pixel > abs(finest.transform.a) and band.crs == finest.crs
    straight = band.transform.is_rectilinear and finest.transform.is_rectilinear
    return larger and straight and all(abs(one - other) <= pixel / 2 for one, other in edges)


def _vrt(bands: Sequence["DatasetReader"], first: "DatasetReader") -> bytes:
    """Return a VRT of the only bands of images, each resampled to the nearest pixel of a grid."""
    from rasterio.dtypes import dtype_rev, typename_fwd

    root = Element("VRTDataset", rasterXSize=str(first.width), rasterYSize=str(first.height))
    if first.crs:
        SubElement(root, "SRS").text = first.crs.to_wkt()
    SubElement(root, "GeoTransform").text = ",".join(map(repr, first.transform.to_gdal()))
    for dataset in bands:
        band = SubElement(
            root, "VRTRasterBand", dataType=typename_fwd[dtype_rev[dataset.dtypes[0]]]
        )
        if dataset.nodata is not None:
            SubElement(band, "NoDataValue").text = repr(dataset.nodata)
        SubElement(band, "Offset").text = repr(dataset.offsets[0])
        SubElement(band, "Scale").text = repr(dataset.scales[0])
        source = SubElement(band, "SimpleSource")
        SubElement(source, "SourceFilename").text = dataset.name
        if _grid(dataset) == _grid(first):
            continue
        there, (width, height) = ~first.transform * dataset.transform, dataset.shape[::-1]
        target = there.c, there.f, there.a * width, there.e * height
        for rect, values in (("SrcRect", (0, 0, width, height)), ("DstRect", target)):
            names = ("xOff", "yOff", "xSize", "ySize")
            SubElement(source, rect, dict(zip(names, map(repr, values), strict=True)))
    return tostring(root)


def _opened(address: str) -> "DatasetReader":
    """Open a local image, or a member of a tar in place."""
    import rasterio

    member = archive_member(address)
    if member is not None and member.offset is not None:
        return rasterio.open(f"/vsisubfile/{member.offset}_{member.size},{member.archive}")
    try:  # GDAL would never finish opening these; it reports missing files itself
        if os.path.lexists(address):
            require_end(address)
    except OSError as error:
        raise ImageError(_complaint(address, error)) from error
    return rasterio.open(address)


@contextmanager
def _gdal(address: str, errors: list[SourceError] | None = None) -> Iterator[None]:
    """Set GDAL up for an image; its errors name the image, or are the first of ``errors``."""
    import rasterio
    from rasterio.errors import CRSError, RasterioError

    listing = "TRUE" if is_local(address) else "EMPTY_DIR"
    env = rasterio.Env(
        GDAL_DISABLE_READDIR_ON_OPEN=listing,
        GDAL_NUM_THREADS="1",
        CPL_VSIL_GZIP_WRITE_PROPERTIES="NO",  # into a file beside a .tar.gz
    )
    try:
        with no_georeference_warning(), env:
            yield
    except (RasterioError, CRSError, UnicodeError) as error:  # the last: a name that is no UTF-8
        if errors:
            raise errors[0] from error
        raise ImageError(_complaint(address, error)) from error


@contextmanager
def _ranges(name: str) -> Iterator[tuple[Read, int]]:
    """Yield a function that reads a file or a member of an archive, and the number of bytes."""
    if not archive_member(name) and not Path(name).is_file():
        yield (lambda *_: b""), 0  # a folder, or what only GDAL knows how to open
        return
    with open_file(name) as (read, size, _):
        yield read, size


def _require_whole(address: str, missing: str) -> None:
    if missing:
        raise ImageError(_complaint(address, OSError(missing)))


def _require_plain(address: str, displayed: str) -> None:
    if displayed:
        raise ImageError(f"{shown_address(address)} {displayed}")


def _complaint(address: str, error: Exception) -> str:
    member = archive_member(address)
    first = split_address(address)[0]
    inside = image_in_file(first)
    path = Path(member.archive if member else inside[1] if inside else first)
    if not is_remote(address) and not address.startswith("/vsi") and not path.exists():
        return f"{shown_address(address)}: no such file; check the path."
    cause: BaseException = error  # GDAL's own message, which rasterio wraps in several exceptions
    while cause.__cause__ is not None:
        cause = cause.__cause__
    reason = " ".join(str(cause).split()) or type(cause).__name__
    return (
        f"{shown_address(address)}: cannot be read as an image ({reason}). Download it again, or "
        "remove it from the folder."
    )


class _RangeReader(io.RawIOBase):
    """A file that is read in blocks as they are needed.

    An exception in a callback of GDAL ends the process. So a read that fails returns no bytes, and
    the caller has to look at ``errors``.
    """

    def __init__(self, block: Callable[[int], bytes], size: int, errors: list[SourceError]) -> None:
        self._block, self._size, self._errors = block, size, errors
        self._position = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        first, left = self._position, max(0, self._size - self._position)
        stop = first + (left if size < 0 else min(size, left))
        numbers = range(first // BLOCK, -(-stop // BLOCK))
        try:
            data = b"".join(map(self._block, numbers)) if stop > first else b""
        except SourceError as error:
            self._errors.append(error)
            return b""
        self._position = stop
        skip = first % BLOCK
        return data[skip : skip + stop - first]
