"""Checkpoints: files that hold a run or a trained model, written atomically.

A file is written under another name, flushed to the disk with its folder, and then renamed. It is
read with ``weights_only=True``: tensors and plain values. A checkpoint may name a model outside
this package, whose code is imported only with consent, see `training.model.load_model`.
"""

from __future__ import annotations

import pickle
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from geoprep.errors import GeoprepError
from geoprep.storage import flush
from geoprep.store import ClassTable

FORMAT = "geoprep-checkpoint"
VERSION = 1
LAST, BEST = "last.pt", "best.pt"

Weights = Literal["auto", "ema", "raw"]

# What zipfile and torch raise for damaged files.
_UNREADABLE = (
    *(RuntimeError, OSError, EOFError, ValueError, KeyError, NotImplementedError),
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error),
)


class CheckpointError(GeoprepError):
    """A checkpoint cannot be used: missing, truncated, of another program or version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Inputs and outputs of a trained model: all that prediction needs besides its weights.

    Attributes
    ----------
    model
        As `training.model.build_model` takes it: a name, or ``package.module:factory``.
    bands
        Names of the input bands, in order.
    channels
        Number of output channels.
    targets
        Meaning of the channels, see `loaders.SpeedTarget`: ``bins``, ``continuous`` or ``binary``;
        or ``classes``, see `loaders.ClassTarget`.
    mean, std
        Mean and standard deviation of each band in grey values, for `loaders.Normalize`.
    rescale
        Rule that mapped source values to bytes in the store: ``scene``, ``city``, ``none`` or
        ``LO,HI``.
    gsd_m
        Pixel size along x and y in metres, at the level trained last.
    level
        Tile side in pixels of that level.
    class_mph
        Speed of each speed channel in mph; empty unless targets are bins.
    stores
        Locations of the training data, for messages.
    limits
        Source values of each band that became black and white, if all training scenes share them
        (the rule ``city``); empty otherwise.
    folds, fold
        Number of folds, and the one used for validation, see `loaders.Folds`; None if the splits
        of the stores were used.
    threshold
        Road probability threshold chosen on validation scenes; None if never validated.
    version
        Version of this record.
    class_names, class_colors
        Name and display colour (``#RRGGBB``) of the class of each channel; empty unless targets
        are classes.
    nodata
        Nodata rule of the training images, as `geoprep.build_zarr` takes it: a pixel value,
        ``none``, or None for the default.
    """

    model: str
    bands: tuple[str, ...]
    channels: int
    targets: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    rescale: str
    gsd_m: tuple[float, float]
    level: int
    class_mph: tuple[float, ...]
    stores: tuple[str, ...] = ()
    limits: tuple[tuple[float, float], ...] = ()
    folds: int | None = None
    fold: int | None = None
    threshold: float | None = None
    version: int = VERSION
    class_names: tuple[str, ...] = ()
    class_colors: tuple[str, ...] = ()
    nodata: float | Literal["none"] | None = None

    @property
    def has_classes(self) -> bool:
        """Whether the channels are the probabilities of classes, which add up to 1."""
        return self.targets == "classes"

    @property
    def classes(self) -> ClassTable:
        """Names and colours of the classes."""
        return ClassTable(self.class_names, self.class_colors)

    @property
    def score(self) -> str:
        """Name of the metric that the best checkpoint has most of."""
        return "mean_iou" if self.has_classes else "road_iou"

    def to_plain(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> ModelInfo:
        """Return the record of `to_plain`; lists become tuples."""
        return cls(**{name: _tuples(value) for name, value in values.items()})


def _tuples(value: Any) -> Any:  # noqa: ANN401 - nested plain values
    """Return nested lists, as of JSON, as tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """State of a run as plain values and tensors; best.pt has only what prediction needs.

    ``ema`` are averaged weights. ``environment`` is what the exact weights depend on besides the
    settings. ``auxiliary`` are weights that only training uses.
    """

    info: ModelInfo
    model: dict[str, Tensor]
    ema: dict[str, Tensor] | None = None
    optimizer: dict[str, Any] | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    loader: dict[str, Any] = field(default_factory=dict)
    rng: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    scaler: dict[str, Any] = field(default_factory=dict)
    auxiliary: dict[str, Tensor] = field(default_factory=dict)


def save(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically: the disk holds the previous or the new file, complete.

    TypeError: it holds a value that `load` would refuse.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    values = {item.name: getattr(checkpoint, item.name) for item in fields(checkpoint)}
    values |= {"format": FORMAT, "version": VERSION, "info": checkpoint.info.to_plain()}
    _check_plain(values, "checkpoint")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(values, part)
        flush(part)
        flush(path.parent)
        part.replace(path)
        flush(path.parent)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        part.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path} cannot be written ({error}): free disk space or choose another `out`; the "
            "previous checkpoint is unchanged"
        ) from error


def load(path: str | Path, *, device: torch.device | str = "cpu") -> Checkpoint:
    """Return a checkpoint, or the last one in the folder of a run."""
    path = Path(path)
    path = path / LAST if path.is_dir() else path
    if not path.is_file():
        raise CheckpointError(
            f"{path}: no such checkpoint; give the path of one, such as runs/moscow/{BEST}"
        )
    values = _read(path, device)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is a file of torch, but not a checkpoint of geoprep fit: it does not say "
            "which bands, normalisation and targets its weights are for. Load them in the factory "
            "of a model, and train it with geoprep fit"
        )
    if values.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has checkpoint version {values.get('version')}, this package reads {VERSION}: "
            "use the version of the package that wrote it"
        )
    try:
        kept = {item.name: values[item.name] for item in fields(Checkpoint)}
        return Checkpoint(**kept | {"info": ModelInfo.from_plain(kept["info"])})
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is not a complete checkpoint (missing: {error}): use another one"
        ) from error


def _check_plain(value: Any, name: str) -> None:  # noqa: ANN401 - the type is checked here
    """Raise TypeError for values that ``weights_only=True`` would refuse to load."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            _check_plain(part, f"{name}[{key!r}]")
    elif isinstance(value, list | tuple):
        for part in value:
            _check_plain(part, name)
    elif type(value) not in (str, int, float, bool, type(None)) and not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: checkpoints hold plain values")


def check_sums(path: Path) -> None:
    """Verify the checksums of a file of torch, which torch does not: ValueError, BadZipFile."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"checksum of {damaged}")


def _read(path: Path, device: torch.device | str) -> Any:  # noqa: ANN401 - a file may hold anything
    if not zipfile.is_zipfile(path):
        raise CheckpointError(
            f"{path} is truncated or not a checkpoint ({path.stat().st_size} bytes): use another "
            f"one, such as {BEST} in the same folder"
        )
    try:
        check_sums(path)
        return torch.load(path, map_location=device, weights_only=True)
    except _UNREADABLE as error:
        lines = [line.strip() for line in str(error).splitlines()] or [type(error).__name__]
        # Of torch's long explanation only this line names the cause.
        cause = next((line for line in lines if line.startswith("WeightsUnpickler")), lines[0])
        raise CheckpointError(
            f"{path} is damaged or not a checkpoint of geoprep fit ({cause}): use another one"
        ) from error
