"""Checkpoints: files that hold a run or a trained model, written atomically.

A file is written under another name, flushed to the disk with its folder, and then renamed. It is
read with ``weights_only=True``: tensors and plain values. A checkpoint may name a model outside
this package, whose code is imported only with consent, see `load_model`.
"""

from __future__ import annotations

import math
import pickle
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from geoprep.errors import GeoprepError, UsageError
from geoprep.storage.local_files import flush
from geoprep.storage.output_files import put
from training.model.build import BUILT_IN, build_model, is_code
from training.model.build import ModelInfo as ModelInfo

FORMAT = "geoprep-checkpoint"
VERSION = 1
LAST, BEST = "last.pt", "best.pt"

# What zipfile and torch raise for damaged files.
_UNREADABLE = (
    *(RuntimeError, OSError, EOFError, ValueError, KeyError, NotImplementedError),
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error),
)


class CheckpointError(GeoprepError):
    """A checkpoint cannot be used: missing, truncated, of another program or version."""


@dataclass(slots=True)
class RunProgress:
    """Counters of a run, which a checkpoint holds."""

    epoch: int = 0
    """Current epoch, counted from 0 over all stages."""
    step: int = 0
    """Number of optimizer steps that are done."""
    best: float = math.nan
    """Validation IoU of the best epoch of the stage (`ModelInfo.score`); NaN without a label."""
    best_loss: float = math.nan
    """Its validation loss."""
    best_epoch: int = -1
    """Its epoch; -1 before the first."""
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Sums of loss, pixelwise part and dice over the labelled pixels of the current epoch."""
    labelled: float = 0.0
    """Number of these pixels; of weighted classes the sum of their weights."""
    seconds: float = 0.0
    """Wall time of the run with its validations, over all starts."""
    time_over: float = 0.0
    """Seconds of ``time`` that are over; 0 before the end of a run with one."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Rows of metrics.csv, one per epoch."""
    labels: str = ""
    """Digest of the labels that the scores are of; empty if unknown."""
    skipped: int = 0
    """Steps that were skipped, since their gradient overflowed in fp16."""

    def add(self, rows: Sequence[Sequence[float]]) -> None:
        """Add loss, pixelwise part, dice and weight of batches to the sums of the epoch.

        Added batch by batch, the sums do not depend on how often the losses are read.
        """
        for *parts, count in rows:
            self.sums = [total + count * part for total, part in zip(self.sums, parts, strict=True)]
            self.labelled += count

    def reset_sums(self) -> None:
        """Set the sums to 0: an epoch begins, or the first rank holds the sums of all ranks."""
        self.sums, self.labelled = [0.0] * len(self.sums), 0.0

    def is_best(self, score: float, loss: float) -> bool:
        """Record a validation result; return whether it is the best of its stage.

        It is the highest score, without any the lowest loss, and without that the last epoch.
        """
        lower = math.isnan(self.best_loss) or loss < self.best_loss
        if score <= self.best or (math.isnan(score) and not (math.isnan(self.best) and lower)):
            return False
        self.best, self.best_loss, self.best_epoch = score, loss, self.epoch
        return True

    def compare_labels(self, labels: str) -> bool:
        """Record a digest of labels; return whether it is another one, and then forget the best."""
        before, self.labels = self.labels, labels
        if not before or before == labels:
            return False
        self.forget_best()
        return True

    def forget_best(self) -> None:
        """Compare no later epoch with those until now, such as of another resolution."""
        self.best, self.best_loss, self.best_epoch = math.nan, math.nan, -1

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Return the counters that `dataclasses.asdict` turned into plain values."""
        if "epoch" not in values or "step" not in values:
            raise CheckpointError(
                "this checkpoint has no epoch and step: it is for prediction only; resume from "
                "another one"
            )
        try:
            return cls(**values)
        except TypeError as error:
            raise CheckpointError(
                f"the progress in this checkpoint has another form ({error}): resume with the "
                "version that wrote it"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """State of a run as plain values and tensors; best.pt has only what prediction needs.

    ``ema`` are averaged weights. ``environment``: everything besides the settings that the exact
    weights depend on.
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


def save(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically: the disk holds the previous or the new file, complete.

    TypeError: it holds a value that `load` would refuse.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    values = {item.name: getattr(checkpoint, item.name) for item in fields(checkpoint)}
    values |= {"format": FORMAT, "version": VERSION, "info": asdict(checkpoint.info)}
    _check_plain(values, "checkpoint")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(values, part)
        flush(part)
        flush(path.parent)
        put(part, path)
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
    except ValueError as error:
        raise CheckpointError(
            f"{path}: in its record of the model {error}, which geoprep fit does not write: use "
            "another one"
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


def load_model(
    path: str | Path,
    *,
    device: torch.device | str = "cpu",
    model: str | None = None,
) -> tuple[nn.Module, ModelInfo]:
    """Return the trained model in evaluation mode, and its inputs and outputs.

    It has the averaged weights, if there are any. A folder stands for its best.pt. ``model`` is
    consent to import the code that a checkpoint names, and needed for models outside this package.
    """
    path = Path(path)
    path = path / BEST if path.is_dir() else path
    checkpoint = load(path, device=device)
    info = checkpoint.info
    spec = trusted(info.model, model, str(path))
    own = spec in BUILT_IN  # built without random weights, which take a quarter of a second
    with torch.device("meta") if own else nullcontext():
        built = build_model(spec, bands=len(info.bands), channels=info.channels)
    load_weights(built, checkpoint.ema or checkpoint.model, str(path), assign=own)
    return built.to(device).eval(), info


def trusted(named: str, model: str | None, where: str) -> str:
    """Return the specification of the model to build, if the user permits to import its code."""
    if model is None and is_code(named):
        raise UsageError(
            f"{where} imports {named}, which is code outside this package: if you trust it, add "
            f"`model` {named}"
        )
    return named if model is None else model


def load_weights(
    model: nn.Module, state: dict[str, Tensor], where: str, *, assign: bool = False
) -> None:
    """Load weights into a model; ``assign`` makes them its own in place of a copy."""
    try:
        model.load_state_dict(state, assign=assign)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise CheckpointError(
            f"{where}: its weights do not fit the model that it names "
            f"({' '.join(lines[1:2]).strip()}): check whether the factory has changed"
        ) from error
