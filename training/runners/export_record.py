"""The record that every model file carries: what the model was trained for, as JSON."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from geoprep.errors import UsageError
from geoprep.typed import typed
from training.checkpoint import CheckpointError, ModelInfo

KEY = "geoprep"
"""Name of the record in a file."""

VERSION = 1
Precision = Literal["float32", "bfloat16", "int8"]
EXTRA = "pip install geoprep[deploy]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRecord:
    """The record in a model file."""

    info: ModelInfo
    precision: Precision
    checkpoint: str  # XXH3-128 of the checkpoint, in hexadecimal digits
    calibration: int = 0  # tiles that INT8 was calibrated on
    versions: dict[str, str]  # of the packages that wrote it
    # XXH3-128 of OpenVINO's .bin file, or of the .onnx file with zeros in this place. Empty where
    # the format has checksums of its own.
    weights: str = ""

    def to_json(self) -> str:
        """Return the record as JSON, without the paths of the training stores."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        info = asdict(replace(plain.pop("info"), stores=()))
        return json.dumps({"version": VERSION, "info": info, **plain})

    @classmethod
    def from_json(cls, text: str | None, path: Path) -> ExportRecord:
        """Return the record that `to_json` wrote, or raise CheckpointError."""
        try:
            values: dict[str, Any] = json.loads(text or "null")
            if values.pop("version") != VERSION:
                raise ValueError("another version")
            info = ModelInfo.from_plain(values.pop("info"))
            record = typed(cls, {**values, "info": info})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} has no record of what it was trained for that this version can read "
                f"({error}): export it again with geoprep export-model"
            ) from error
        return record


@contextmanager
def damage_reported(path: Path, what: str = "a model file") -> Iterator[None]:
    """Turn what a library raises while it reads a file into a CheckpointError of one line."""
    try:
        yield
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{path} is damaged or not {what} ({first}): export it again"
        ) from error


def required_module(name: str, purpose: str) -> ModuleType:
    """Return a module of the extra ``deploy``; UsageError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UsageError(f"{purpose} needs {package} ({error}): {EXTRA}") from error
