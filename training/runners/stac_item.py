"""The STAC item beside a model file: how to run it without this package, by the MLM extension."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import shapely
import shapely.geometry
import torch

from geoprep.building.options import parse_rescale
from geoprep.palette import bin_label
from geoprep.sources.stac_items import asset_address
from geoprep.specifications import FILE_SCHEMA, MLM_SCHEMA, STAC_VERSION
from geoprep.speed import CONTINUOUS_MAX_MPH
from geoprep.storage.addresses import is_remote
from geoprep.storage.output_files import replaced
from geoprep.storage.places import remote_file
from geoprep.storage.transfer import download
from geoprep.store.reader import StoreReader
from geoprep.views.footprints import outlines
from geoprep.views.stac import parsed_times
from training.checkpoint import BEST, Checkpoint, CheckpointError, ModelInfo, load
from training.model.unet import STRIDE
from training.runners.export_record import damage_reported

_ALWAYS = "1900-01-01T00:00:00Z", "9999-12-31T23:59:59Z"
"""Times where none is known, as the extension's best practices say."""


class Extent(NamedTuple):
    """The area and the times of the images that a model was trained on."""

    geometry: dict[str, Any] | None = None  # of GeoJSON, in degrees; None if it is not known
    times: tuple[str, str] = _ALWAYS  # of the first and the last image


_STATISTICS = re.compile(r"\.(running_mean|running_var|num_batches_tracked)$")
"""Buffers of BatchNorm, which are no parameters."""
_FORMATS = {
    ".pt": ("PyTorch", "torch", "torch.save"),
    ".pt2": ("PyTorch", "torch", "torch.export.save"),
    ".ipex": ("PyTorch", "torch", "torch.jit.save"),
    ".onnx": ("ONNX", "onnx", "onnx.save"),
    ".xml": ("OpenVINO", "openvino", "openvino.save_model"),
}
"""Framework, its package, and the function that writes the file."""

_BEFORE = '''\
import numpy as np

def pre_process(values, valid):
    """Return uint8 (1, band, y, x) of an image (y, x, band) and its valid pixels, bool (y, x).

    Values are {values}.
    """
    {limits}
    scaled = np.floor((values - low) * 255 / (high - low) + 0.5)
    image = np.where(valid[..., None], np.clip(scaled, 1, 255), 0).astype(np.uint8)
    padding = [(0, -side % {stride}) for side in valid.shape]
    return np.pad(image, (*padding, (0, 0)), "reflect").transpose(2, 0, 1)[None]
'''
_VALUES = {"unit": "in the unit of the bands: that of the file * scale + offset, if it has these"}
_OF_IMAGE = """\
few = values.dtype in (np.uint8, np.uint16)  # 0 does not count then, and black is at least 1
    bands = [band[band > 0] if few else band for band in values[valid].T]
    ends = [np.percentile(band, (2, 98)) if band.size else (0, 0) for band in bands]
    low, high = np.array(ends, float).T
    low = np.maximum(low, 1) if few else low
    high = np.where(high > low, high, low + 1)"""
_AFTER = """\
import numpy as np

def post_process(probabilities):  # (y, x, channel)
    {code}
"""
_SPEEDS = """\
mph = np.clip(np.array({mph}) + 0.5, 1, 253).astype(np.uint8)
    speed = mph[probabilities[..., :-1].argmax(-1)]
    return np.where(probabilities[..., -1] >= {threshold}, speed, 0)  # mph, 0 for no road"""
_USE = """\
Resample an image to the model's pixel size along x and y (gsd_m) by area averages; apply \
pre_processing_function, the model and post_processing_function; crop the padding below and at the \
right. For a checkpoint the model is the result of training.load_model."""


def item_path(file: Path) -> Path:
    """Return the path of the item of a model file, such as ``moscow.onnx.stac.json``."""
    return file.with_name(f"{file.name}.stac.json")


def training_extent(stores: Sequence[StoreReader]) -> Extent:
    """Return the box around the scenes of each store, and the times that stores keep of them."""
    spans = [span for s in stores for span in s.meta.build.get("datetimes", {}).values()]
    texts = [time for span in spans for time in span.split("/")]
    times = parsed_times(texts).dropna().sort_values()
    stated = [f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in times]
    scenes = [outlines(store, "scene", "EPSG:4326")[0] for store in stores]
    area = shapely.union_all([shapely.union_all(shapes).envelope for shapes in scenes])
    area = shapely.transform(area, lambda xy: xy.round(6))
    geometry = None if area.is_empty else json.loads(shapely.to_geojson(area))
    return Extent(geometry, (stated[0], stated[-1]) if stated else _ALWAYS)


def write_export_item(file: Path, checkpoint: Path, precision: str, licence: str | None) -> str:
    """Write the item of a model file made from a checkpoint; return a line for the user.

    Its extent is that of the item beside the checkpoint.
    """
    extent = Extent()
    if (beside := item_path(checkpoint)).exists():
        with damage_reported(beside, "a STAC item"):
            item = json.loads(beside.read_text(encoding="utf-8"))
            times = item["properties"]
            extent = Extent(item["geometry"], (times["start_datetime"], times["end_datetime"]))
    write_item(file, load(checkpoint), extent, precision=precision, licence=licence)
    unknown = "" if extent.geometry else ", its training area is not known"
    return f"{item_path(file)}: STAC item{unknown}"


def write_item(
    file: Path,
    checkpoint: Checkpoint,
    extent: Extent,
    *,
    precision: str = "float32",
    licence: str | None = None,
) -> None:
    """Write the item of a checkpoint or of a model file made from it."""
    info, settings = checkpoint.info, checkpoint.config
    name = f"{file.resolve().parent.name}-best" if file.name == BEST else file.stem
    name = f"geoprep-{re.sub('[^A-Za-z0-9]+', '-', name)}".strip("-")
    framework, package, writer = _FORMATS.get(file.suffix, _FORMATS[".pt"])
    pretrained = settings.get("encoder_weights", "none") != "none" or settings.get("init_from")
    counted = [v.numel() for n, v in checkpoint.model.items() if not _STATISTICS.search(n)]
    threshold = 0.5 if info.threshold is None else info.threshold
    bands = [{"name": band} for band in info.bands]  # STAC wants an asset's, MLM the item's
    area, times = extent
    unknown = ["time"] * (times == _ALWAYS) + ["area"] * (area is None)
    properties = {
        "description": " ".join(
            [_USE, *(f"The {what} of its training images is not known." for what in unknown)]
        ),
        **({"gsd": max(info.gsd_m)} if 0 < max(info.gsd_m) < math.inf else {}),
        "bands": bands,
        "datetime": None,
        "start_datetime": times[0],
        "end_datetime": times[1],
        **({"license": given} if (given := licence or settings.get("licence")) else {}),
        "mlm:name": name,
        "mlm:architecture": info.model,
        "mlm:framework": framework,
        "mlm:framework_version": re.split("[^0-9.]", import_module(package).__version__)[0],
        "mlm:tasks": ["semantic-segmentation"],
        "mlm:total_parameters": sum(counted),
        **({} if pretrained else {"mlm:pretrained_source": None}),
        "mlm:pretrained": bool(pretrained),
        "mlm:input": [_input(info)],
        "mlm:output": [_output(info, threshold)],
        "mlm:hyperparameters": {
            "precision": precision,
            "rescale": info.rescale,
            "threshold": threshold,
            "mean": info.mean,
            "std": info.std,
            "gsd_m": info.gsd_m if math.isfinite(sum(info.gsd_m)) else None,
        },
    }
    assets = {"model": _asset(file, "mlm:model") | {"bands": bands, "mlm:artifact_type": writer}}
    if file.suffix == ".xml":
        assets["weights"] = _asset(file.with_suffix(".bin"), "mlm:weights")
    item = {
        "type": "Feature",
        "stac_version": STAC_VERSION,
        "id": name,
        "stac_extensions": [MLM_SCHEMA, FILE_SCHEMA],
        "geometry": area,
        **({"bbox": shapely.geometry.shape(area).bounds} if area else {}),
        "properties": properties,
        "links": [],
        "assets": assets,
    }
    with replaced(item_path(file)) as partial:
        partial.write_text(json.dumps(item, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def item_model(path: Path) -> Path:
    """Return the model file that an item describes, beside it and unchanged.

    Of an item on a server, both are copies in torch's folder of downloads.
    """
    address = re.sub("^(https?|s3|gs):/", r"\1://", path.as_posix())  # a Path merges slashes
    if is_remote(address):
        digest = hashlib.sha256(address.encode()).hexdigest()[:16]
        path = Path(torch.hub.get_dir(), "geoprep", digest, path.name)
        download(remote_file(address), path)
    with damage_reported(path, "the STAC item of a model"):
        assets = json.loads(path.read_text(encoding="utf-8"))["assets"].values()
        (model,) = [asset for asset in assets if "mlm:model" in asset["roles"]]
        weights = [asset for asset in assets if "mlm:weights" in asset["roles"]]
        files = {str(asset["href"]): asset["file:checksum"] for asset in (model, *weights)}
    for href, checksum in files.items():
        file = path.parent / href
        if is_remote(address) and not file.resolve().is_relative_to(path.parent.resolve()):
            raise CheckpointError(f"{address}: its file {href} is not below its folder")
        if is_remote(address) and not _is_file(file, checksum):
            file.unlink(missing_ok=True)
            download(remote_file(asset_address(address, href)), file)
        if not _is_file(file, checksum):
            raise CheckpointError(
                f"{file} is missing, or not the file that {path} describes: its checksum differs. "
                "Keep both in one folder, or export the model again"
            )
    return path.parent / str(model["href"])


def _is_file(file: Path, checksum: str) -> bool:
    return file.is_file() and checksum == _checksum(file)


def _input(info: ModelInfo) -> dict[str, Any]:
    fixed = parse_rescale(info.rescale)
    limits = [fixed] * len(info.bands) if fixed else info.limits
    code = f"low, high = np.array({[*map(list, limits)]}).T" if limits else _OF_IMAGE
    values = _VALUES.get(info.limits_of, "those of the file, as they are stored")
    axes = {"batch": -1, "bands": len(info.bands), "height": -1, "width": -1}
    return {
        "name": "image",
        "bands": info.bands,
        "input": _array(axes, "uint8"),
        "description": "Bytes 1 to 255, 0 without imagery; the model normalises them.",
        "value_scaling": None,
        "resize_type": None,
        "pre_processing_function": _python(
            _BEFORE.format(values=values, limits=code, stride=STRIDE)
        ),
    }


def _output(info: ModelInfo, threshold: float) -> dict[str, Any]:
    """Return the channels, and the function that turns them into speeds, roads or classes."""
    bins = [f"road, {bin_label(i)} mph" for i, _ in enumerate(info.class_mph, start=1)]
    names = [*info.class_names] if info.has_classes else [*bins, "road"]
    code = {
        "bins": _SPEEDS.format(mph=[*info.class_mph], threshold=threshold),
        "continuous": f"return probabilities[..., 0] * {CONTINUOUS_MAX_MPH}  # mph",
        "classes": "return probabilities.argmax(-1)",
    }.get(info.targets, f"return probabilities[..., -1] >= {threshold}")
    classes = [
        {"value": i, "name": re.sub("[^0-9A-Za-z_-]+", "-", name), "description": name}
        | ({"color_hint": colour.removeprefix("#")} if colour else {})
        for i, (name, colour) in enumerate(zip_longest(names, info.class_colors))
    ]
    axes = {"batch": -1, "height": -1, "width": -1, "channel": info.channels}
    return {
        "name": "probability",
        "tasks": ["semantic-segmentation"],
        "bands": [],
        "result": _array(axes, "float32"),
        "classification:classes": classes,
        "post_processing_function": _python(_AFTER.format(code=code)),
    }


def _array(axes: dict[str, int], dtype: str) -> dict[str, Any]:
    return {"shape": [*axes.values()], "dim_order": [*axes], "data_type": dtype}


def _python(code: str) -> dict[str, str]:
    return {"format": "python", "expression": code}


def _asset(file: Path, role: str) -> dict[str, Any]:
    return {
        "href": f"./{file.name}",
        "type": "application/octet-stream",
        "roles": [role],
        "file:size": file.stat().st_size,
        "file:checksum": _checksum(file),
    }


def _checksum(file: Path) -> str:
    """Return the SHA-256 of a file as a multihash: code 12, length 20, digest."""
    with file.open("rb") as opened:
        return "1220" + hashlib.file_digest(opened, "sha256").hexdigest()
