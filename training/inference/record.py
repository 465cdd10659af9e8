"""What an exported file says about itself, as JSON: in each format where that keeps such things."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

import xxhash

from geoprep.errors import UsageError
from training.checkpoint import CheckpointError, Facts

KEY = "geoprep"
"""Name of the record in a file."""

VERSION = 1
Precision = Literal["float32", "bfloat16", "int8"]
EXTRA = "pip install geoprep[deploy]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What an exported network is.

    Attributes
    ----------
    facts
        What it is for.
    precision
        Of its convolutions.
    checkpoint
        XXH3-128 of the checkpoint it was made from, in hexadecimal digits.
    calibration
        Tiles that ranges of INT8 were taken from; 0 for other precisions.
    kept
        Layers that were not quantised, by name.
    versions
        Of the packages that wrote it.
    weights
        XXH3-128 of the file beside it that holds the weights; empty where it holds them itself.
    """

    facts: Facts
    precision: Precision
    checkpoint: str
    calibration: int = 0
    kept: tuple[str, ...] = ()
    versions: dict[str, str]
    weights: str = ""

    def to_json(self) -> str:
        """Return the record as text; where training data was is nobody else's business."""
        plain = asdict(replace(self, facts=replace(self.facts, stores=())))
        return json.dumps({"version": VERSION, **plain})

    @classmethod
    def from_json(cls, text: str | None, path: Path) -> Record:
        """Return the record that `to_json` wrote.

        Raises
        ------
        CheckpointError
            There is none, or it is of another version.
        """
        try:
            values: dict[str, Any] = json.loads(text or "null")
            if values.pop("version") != VERSION:
                raise ValueError("another version")
            facts = Facts.from_plain(values.pop("facts"))
            limits = tuple((low, high) for low, high in facts.limits)
            record = cls(**values | {"facts": replace(facts, limits=limits)})
            if record.precision not in get_args(Precision):
                raise ValueError(record.precision)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} does not say what it was trained for, or says it in the words of another "
                "version: make it with python -m training.export of this one"
            ) from error
        return replace(record, kept=tuple(record.kept))


def file_hash(path: Path) -> str:
    """Return XXH3-128 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


@contextmanager
def reading(path: Path, what: str = "an exported network") -> Iterator[None]:
    """Say in one line what a library raises at a file that is damaged or not ``what``.

    Raises
    ------
    CheckpointError
        Whatever was raised; what libraries raise has no common base.
    """
    try:
        yield
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{path} is damaged or not {what} ({first}): export it again"
        ) from error


def needed(name: str, purpose: str) -> ModuleType:
    """Return a module that an extra brings.

    Raises
    ------
    UsageError
        It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UsageError(f"{purpose} needs {package} ({error}): {EXTRA}") from error
