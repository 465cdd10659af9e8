"""Files of a synthetic city: GeoTIFFs, labels and a manifest, each whole or not there at all."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.synth.plan import Plan
from geoprep.synth.products import PRODUCT_BANDS

MANIFEST: Final = "synth.json"
VERSION: Final = 1
"""Changes when the same seed would draw another city."""
_ROWS_A_STRIP: Final = 25


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
        "blockysize": _ROWS_A_STRIP,
        "photometric": "rgb" if bands == 3 else "minisblack",
    }

    def write(temporary: Path) -> None:
        with rasterio.open(temporary, "w", **profile) as file:
            file.write(pixels)

    _replace(path, write)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document as JSON."""
    text = json.dumps(document)
    _replace(path, lambda temporary: _write_text(temporary, text))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    """Let a file be written under a hidden name, then give it its own in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
    there = _read_manifest(manifest)
    if there is None:
        _refuse_foreign(folder)
        write_json(manifest, wanted)
    elif there != wanted:
        other = ", ".join(
            f"{key} {there.get(key)!r} instead of {value!r}"
            for key, value in wanted.items()
            if there.get(key) != value
        )
        raise UsageError(
            f"{folder} holds a synthetic city drawn with other parameters "
            f"({other or 'more keys'}): ask for the same, "
            "write to another folder, or delete this one"
        )


def _read_manifest(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} cannot be read ({error}): delete {path.parent}") from error
    return document if isinstance(document, dict) else {}


def _refuse_foreign(folder: Path) -> None:
    """Refuse to mix a synthetic city into a folder of real imagery."""
    for product in PRODUCT_BANDS:
        found = next((folder / product).glob("*.tif"), None)
        if found is not None:
            raise UsageError(
                f"{folder} holds imagery that is not synthetic ({found.name}): "
                "write the synthetic city to another folder"
            )
