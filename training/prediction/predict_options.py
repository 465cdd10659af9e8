"""Options of ``geoprep predict``: the model, the images, how they are read and predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from geoprep.building.options import parse_nodata, parse_rescale
from geoprep.errors import ImageError, UsageError
from geoprep.imagery.band_names import parse_bands
from geoprep.options import argument, option
from training.runners.model_options import ModelOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from training.checkpoint import ModelInfo


Units = Sequence[tuple[float, float]]


def check_gsd(text: str) -> None:
    """Raise UsageError unless ``gsd`` is ``checkpoint``, ``image`` or a pixel size in metres."""
    try:
        fits = text in ("checkpoint", "image") or 0 < float(text) < math.inf
    except ValueError:
        fits = False
    if not fits:
        raise UsageError("gsd", f"{text}: use checkpoint, image, or metres such as 0.3")


def _unless_checkpoint(parse: Callable[[str], object]) -> Callable[[str], None]:
    """Return a check of a rule of `geoprep.building`, or ``checkpoint``: UsageError otherwise."""

    def check(text: str) -> None:
        if text != "checkpoint":
            parse(text)

    return check


def known_limits(
    info: ModelInfo, rule: str, dtype: str = "", units: Units = (), name: str = ""
) -> NDArray[np.float64] | None:
    """Return float64 (band, 2), the values that become black and white; None: the image's own.

    ``units`` are scale and offset of the bands of an image of a ``dtype``, if it has any. Raises
    ImageError if the limits of the model belong to values of another kind.
    """
    from geoprep.imagery.rescale import source_limits, value_kind

    if dtype not in ("", "uint8") and rescale_rule(info, rule) == "none":
        raise ImageError(
            f"{name} is {dtype}, but the model was trained on uint8 without rescaling: use "
            "`rescale` scene, or LO,HI, to map its values to bytes"
        )
    fixed = parse_rescale(rescale_rule(info, rule))
    own = rescale_rule(info, rule) == info.rescale
    kind = value_kind(dtype, scaled=bool(units))
    if own and info.limits_of == "integers":
        units, kind = (), value_kind(dtype, scaled=False)
    if own and dtype and info.limits_of not in ("", kind) and (fixed is not None or info.limits):
        belong = "integers of more than 8 bits" if info.limits_of == "integers" else "a unit"
        raise ImageError(
            f"{name} is {dtype}, and the limits of the model belong to {belong}: use `rescale` "
            "scene, or LO,HI for these values"
        )
    if fixed == (0, 255) or (own and not info.limits_of):  # of values as they are stored
        units = ()
    limits = fixed or (info.limits if rescale_rule(info, rule) == "city" else ())
    return source_limits(limits, len(info.bands), units) if limits else None


def rescale_rule(info: ModelInfo, rule: str) -> str:
    """Return the rule of rescaling, which may be that of the model."""
    return info.rescale if rule == "checkpoint" else rule


def limits_note(info: ModelInfo, rule: str) -> str:
    """Return a line for the user if limits of a city are not known; else an empty one."""
    if rescale_rule(info, rule) != "city" or info.limits:
        return ""
    return (
        "rescaling: the model was trained on several cities with different limits, so each image's "
        "own limits are used (`rescale` LO,HI sets others)"
    )


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Images: what is read and written, and how."""

    images: tuple[str, ...] = argument(
        "GeoTIFFs, folders or patterns, also on S3; or STAC items. Runs or model files before them "
        "are models too, whose probabilities are averaged.",
        "IMAGE",
        default=(),
    )
    of: Path | None = option(
        None,
        "Store whose scenes of `split` alone are predicted: of the images, by name; without "
        "images, from the pixels of the store.",
        "STORE",
    )
    split: Literal["train", "val", "test"] | None = option(None, "Split of the store `of`.")
    asset: str | None = option(
        None,
        "Asset of the STAC items, such as visual; several (red,green,blue) are stacked as bands. "
        "By default their only raster.",
        "NAME",
    )
    area: str | None = option(
        None,
        "Predict only inside of the polygons of a vector file, or of a box in degrees. The rest is "
        "nodata, and predictions end with the area.",
        "FILE|W,S,E,N",
    )
    where: str | None = option(
        None, "Features of `area` that count, an SQL expression such as \"name = 'north'\".", "SQL"
    )
    out: Path | None = option(None, "Folder for the predictions, one NAME.tif per image.", "FOLDER")
    overlay: bool = option(False, "Also write NAME.png: the prediction over the image.")
    polygons: Path | None = option(
        None,
        "Also write the classes of all predictions in the folder as polygons (.gpkg, .geojson, "
        ".fgb), as geoprep polygonize does.",
        "FILE",
    )
    square: bool = option(
        False,
        "Polygons with right angles, for buildings: walls along the main direction or across it, "
        "where that fits the pixels.",
    )
    min_area: float | None = option(
        None, "Leave out polygons of a smaller area. By default of 10 pixels.", "M2", least=0
    )
    simplify: float | None = option(
        None, "Simplify the edges of polygons. By default by a pixel.", "METRES", least=0
    )
    confidence: bool = option(
        False,
        "Add a band to a prediction of classes: the largest probability minus the second, x 255.",
    )
    probabilities: bool = option(
        False, "Add one band per class to a prediction of classes: its probability x 255."
    )
    outputs: Literal["road,speed", "all"] = option(
        "road,speed", "Bands of a prediction of roads; all adds the probability of each speed bin."
    )
    overwrite: bool = option(False, "Predict anew, and replace files that exist.")
    compress: Literal["zstd", "deflate"] = option("zstd", "Compression of the predictions.")
    gsd: str = option(
        "checkpoint",
        "Pixel size to predict at: the checkpoint's, the image's, or in metres. Images that are "
        "more than 10 % off are resampled.",
        "checkpoint|image|METRES",
        check=check_gsd,
    )
    grid: Literal["image", "model"] = option(
        "image",
        "Pixels of the predictions: those of the image, or those that the model gets where the "
        "image is resampled.",
    )
    bands: str | None = option(
        None,
        "Bands to read, by number from 1 or by name, such as 5,3,2. By default the bands with the "
        "names of the model's, else all of them.",
        "BAND,...",
        check=parse_bands,
    )
    rescale: str = option(
        "checkpoint",
        "Rule that turns values into bytes: that of the training store (checkpoint), scene, none, "
        "or LO,HI.",
        "RULE",
        check=_unless_checkpoint(parse_rescale),
    )
    nodata: str = option(
        "checkpoint",
        "Pixel value that is nodata where all bands have it, or none, as for build-zarr: that of "
        "the training store (checkpoint).",
        "VALUE|none",
        check=_unless_checkpoint(parse_nodata),
    )
    allow_no_crs: bool = option(
        False, "Predict images without georeference pixel by pixel, without resampling."
    )
    pixel_size: float | None = option(
        None,
        "Pixel size of images without georeference, which are then resampled like others. Their "
        "predictions are not georeferenced either.",
        "METRES",
        above=0,
    )


@dataclass(frozen=True, kw_only=True)
class PredictOptions(ModelOptions, ImageOptions):
    """Work: how an image is divided for the model, and images among processes."""

    window: int = option(
        1024,
        "Side of the windows, a multiple of 32; images of up to 1.3 times it are one window.",
        "PIXELS",
    )
    overlap: int = option(32, "Overlap of neighbouring windows.", "PIXELS")
    batch_size: int | None = option(
        None, "Windows per batch. By default 1, and 8 on an accelerator.", "N", least=1
    )
    compile: Literal["auto", "on", "off"] = option(
        "auto",
        "Compile the model: takes up to a minute (half a second for .xml files) and pays for "
        "large jobs, which auto decides. Ignored for .onnx and .ipex files.",
    )
    instances: int = option(
        1,
        "Processes for many images, each with its share of the cores. They divide the images and "
        "write into one folder.",
        "N",
        least=1,
    )
    quiet: bool = option(False, "Show no progress bar, and no line per image unless it failed.")
