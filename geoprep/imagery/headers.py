"""Read what a file, with all files that belong to it, states about itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from geoprep.errors import GeoprepError, ImageError
from geoprep.imagery.description import Raster
from geoprep.storage.addresses import is_local, shown_address, split_address
from geoprep.storage.inputs import open_header
from geoprep.storage.versions import SIDECAR, stated_beside

if TYPE_CHECKING:
    from rasterio.io import DatasetReader


def describe(address: str) -> Raster:
    """Return what a file, or an address of storage, states about itself.

    Only the header of a remote file is downloaded. Raises ImageError if it cannot be opened.
    """
    images = split_address(address)
    files = dict.fromkeys(images)
    with ExitStack() as opened, _named(address):
        dataset = opened.enter_context(open_header(address))
        for image in filter(is_local, images):
            own = dataset if image == address else opened.enter_context(open_header(image))
            _add_files(own, files)
        return replace(Raster.of(dataset, address), files=(address, *[*files][len(images) :]))


@contextmanager
def _named(address: str) -> Iterator[None]:
    """Raise any error of an odd header as an ImageError that names the file."""
    try:
        yield
    except GeoprepError:
        raise
    except Exception as error:
        raise ImageError(
            f"{shown_address(address)}: its header cannot be read ({type(error).__name__}: "
            f"{error}). Write it anew with `gdal_translate IN OUT`, or remove it from the folder."
        ) from error


def _add_files(dataset: DatasetReader, files: dict[str, None]) -> None:
    """Add the other files that an open image consists of, as keys."""
    for file in map(_on_disk, dataset.files):
        # Overviews are not read, nor the statistics that viewers write.
        ignored = (
            file.endswith(".ovr")
            or file.startswith("/vsimem/")
            or (file.endswith(SIDECAR) and not stated_beside(file))
        )
        if file in files or ignored:
            continue
        files[file] = None
        if dataset.driver == "VRT":
            with suppress(ImageError), open_header(file) as source:
                _add_files(source, files)


def _on_disk(file: str) -> str:
    """Return a file of GDAL's list, or the archive that it is in."""
    if not file.startswith("/vsi"):
        return file
    path = Path("/" + re.sub(r"^(/vsi\w+/)+|[{}]", "/", file).lstrip("/"))
    return next((str(part) for part in (path, *path.parents) if part.is_file()), file)
