"""Files of a synthetic city: GeoTIFFs, labels and a manifest, each whole or not there at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.sources import MANIFEST, refuse_real
from geoprep.storage import make_folder, replaced
from geoprep.synth.city.plan import Plan

VERSION: Final = 1
"""Changes when the same seed would draw another city."""
_STRIP_ROWS: Final = 25


def scene_files(folder: Path, plan: Plan, index: int, products: tuple[str, ...]) -> dict[str, Path]:
    """Return where each product of a chip goes, and its label where the city has labels."""
    city, number = plan.city, plan.numbers[index]
    contents = [*products, *([city.label_folder] if city.labelled else [])]
    return {content: folder / content / city.file_name(content, number) for content in contents}


def write_image(path: Path, pixels: NDArray[np.generic], georeference: Affine) -> None:
    """Write pixels (band, y, x) like SpaceNet's chips: LZW, pixel-interleaved, no nodata tag."""
    bands, height, width = pixels.shape
    profile = {
        "driver": "GTiff",
        "dtype": pixels.dtype.name,
        "count": bands,
        "height": height,
        "width": width,
        "crs": "EPSG:4326",
        "transform": georeference,
        "compress": "lzw",
        "predictor": 2,
        "interleave": "pixel",
        "tiled": False,
        "blockysize": _STRIP_ROWS,
        "photometric": "rgb" if bands == 3 else "minisblack",
    }

    with replaced(path) as partial, rasterio.MemoryFile() as memory:
        with memory.open(**profile) as file:
            file.write(pixels)
        partial.write_bytes(memory.getbuffer())


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document as JSON."""
    with replaced(path) as partial:
        partial.write_text(json.dumps(document), encoding="utf-8")


def claim_folder(folder: Path, plan: Plan) -> None:
    """Make the folder a city's own, or make sure that it already is.

    Raises
    ------
    UsageError
        The folder holds a city drawn with other parameters, or data that was not drawn at all.
    """
    manifest = folder / MANIFEST
    wanted = {
        "made by": "geoprep synth",
        "version": VERSION,
        "aoi": plan.city.aoi,
        "seed": plan.seed,
        "scenes": plan.frame.scenes,
        "size": plan.frame.size,
    }
    if not manifest.exists():
        refuse_real(folder.parent, plan.city)
        make_folder(folder)
        write_json(manifest, wanted)
    elif manifest.read_text(encoding="utf-8", errors="replace") != json.dumps(wanted):
        raise UsageError(
            f"{folder} holds a synthetic city drawn with other parameters (see {manifest}): ask "
            "for the same, write to another folder, or delete this one"
        )
