"""Checkpoints: one file that holds a run, written so that a crash never costs more than a step.

A file is complete or absent: it is written under another name, it and its folder are flushed to
the disk, and only then does it take the place of the one before. It is read with
``weights_only=True``: tensors and plain values. Code comes in only where a checkpoint names a
network that is not this package's, and then only by consent, see `load_network`.
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
from torch import Tensor, nn

from geoprep.errors import GeoprepError, UsageError
from geoprep.storage import flush

FORMAT = "geoprep-checkpoint"
VERSION = 1
LAST, BEST = "last.pt", "best.pt"

Weights = Literal["auto", "ema", "raw"]

# What zipfile and torch raise at bytes that are not what they should be.
_UNREADABLE = (
    *(RuntimeError, OSError, EOFError, ValueError, KeyError, NotImplementedError),
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error),
)


class CheckpointError(GeoprepError):
    """A checkpoint cannot be used: missing, truncated, foreign, or of another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a network was made for: all that prediction needs beside its weights.

    Attributes
    ----------
    network
        As `training.model.build_network` takes it: a name, or ``package.module:factory``.
    bands
        Names of the input bands, in order.
    channels
        Output channels.
    targets
        What they mean, see `loaders.SpeedTarget`: ``bins``, ``continuous`` or ``binary``.
    mean, std
        Of each band in grey values, for `loaders.Normalize`.
    rescale
        How source values became bytes in the store: ``scene``, ``city``, ``none`` or ``LO,HI``.
    gsd_m
        Ground sample distance along x and y in metres, at the level trained last.
    level
        Tile side in pixels of that level.
    class_mph
        Speed that each speed channel stands for; empty where targets are no bins.
    stores
        Where the training data was, to tell people.
    limits
        For each band the source values that became black and white, where all scenes that were
        trained on share them (the rule ``city``); empty otherwise.
    folds, fold
        How training and validation scenes were cut anew, see `loaders.Folds`; None where the
        store's own splits held.
    threshold
        Probability from which a pixel is a road, best on validation; None: never validated.
    version
        Of this record.
    """

    network: str
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

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Facts:
        """Return the record that `dataclasses.asdict` made plain; lists become tuples."""
        known = {f.name for f in fields(cls)}
        kept: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known
        }
        return cls(**kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A run at one moment, as plain values and tensors.

    Attributes
    ----------
    facts
        What the network is for.
    network
        Its weights, by name.
    ema
        The averaged weights, by name; None where none were kept.
    optimizer
        State of the optimizer; None in files that are only for prediction.
    progress
        Where the run is: stage, epoch, step, best result, sums of the running epoch, history.
    loader
        State of the loader.
    rng
        States of the random generators.
    config
        Every setting of the run.
    environment
        What bits depend on beyond the settings: threads, torch, engine, ranks.
    """

    facts: Facts
    network: dict[str, Tensor]
    ema: dict[str, Tensor] | None = None
    optimizer: dict[str, Any] | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    loader: dict[str, Any] = field(default_factory=dict)
    rng: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)


def save(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; at no moment is there no whole one on the disk.

    Parameters
    ----------
    path
        Of the file.
    checkpoint
        What to write.

    Raises
    ------
    CheckpointError
        It cannot be written; what was there before is untouched.
    TypeError
        It holds something that `load` would refuse.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    values = {f.name: getattr(checkpoint, f.name) for f in fields(checkpoint)}
    values |= {"format": FORMAT, "version": VERSION, "facts": asdict(checkpoint.facts)}
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
            f"{path} cannot be written ({error}): make room or choose another --out; the "
            "checkpoint before it is untouched"
        ) from error


def load(path: str | Path, *, device: torch.device | str = "cpu") -> Checkpoint:
    """Read a checkpoint, or the last one of a run's folder.

    Parameters
    ----------
    path
        A file, or the folder of a run.
    device
        Where tensors go.

    Raises
    ------
    CheckpointError
        It is missing, truncated, not one of ours, or of another version.
    """
    path = Path(path)
    path = path / LAST if path.is_dir() else path
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint; name one such as runs/moscow/{BEST}")
    values = _read(path, device)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not a checkpoint of training.fit, though torch can read it; weights alone "
            "go to --encoder-weights"
        )
    if values.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has checkpoint version {values.get('version')}, this package reads {VERSION}: "
            "use the package that wrote it"
        )
    try:
        kept = {f.name: values[f.name] for f in fields(Checkpoint)}
        return Checkpoint(**kept | {"facts": Facts.from_plain(kept["facts"])})
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} lacks what a checkpoint has ({error}): use another one"
        ) from error


def load_network(
    path: str | Path,
    *,
    device: torch.device | str = "cpu",
    weights: Weights = "auto",
    model: str | None = None,
) -> tuple[nn.Module, Facts]:
    """Return the trained network, ready for prediction, and what it is for.

    Parameters
    ----------
    path
        A checkpoint, or the folder of a run: then its best one.
    device
        Where the network goes.
    weights
        ``ema``, ``raw``, or ``auto``: the averaged weights where there are any.
    model
        ``package.module:factory`` to make the network: code to import, which a checkpoint alone
        must not decide. None where the network is this package's own.

    Raises
    ------
    CheckpointError
        The file cannot be used, or its weights do not fit the network.
    UsageError
        The checkpoint names code, and ``model`` is None.
    """
    from training.model import build_network  # which reading a checkpoint alone does not need

    path = Path(path)
    path = path / BEST if path.is_dir() else path
    checkpoint = load(path, device=device)
    if weights == "ema" and checkpoint.ema is None:
        raise CheckpointError(f"{path} holds no averaged weights: it was trained without --ema")
    averaged = None if weights == "raw" else checkpoint.ema
    facts = checkpoint.facts
    spec = trusted(facts.network, model, str(path))
    network = build_network(spec, bands=len(facts.bands), channels=facts.channels)
    load_weights(network, averaged or checkpoint.network, str(path))
    return network.to(device).eval(), facts


def trusted(network: str, model: str | None, where: str) -> str:
    """Return the network to build: what a checkpoint names, unless that is code nobody asked for.

    Parameters
    ----------
    network
        As the checkpoint names it.
    model
        What a person names; None for nothing.
    where
        Name of the checkpoint.

    Raises
    ------
    UsageError
        The checkpoint names ``package.module:factory``, and the person nothing.
    """
    from training.model import is_code

    if model is None and is_code(network):
        raise UsageError(
            f"{where} asks to import {network}, which is code of its own: if you trust it, say so "
            f"with --model {network}"
        )
    return network if model is None else model


def load_weights(network: nn.Module, state: dict[str, Tensor], where: str) -> None:
    """Load weights into a network.

    Raises
    ------
    CheckpointError
        They do not fit it.
    """
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise CheckpointError(
            f"{where}: its weights do not fit the network it names ({' '.join(lines[1:2]).strip()}"
            "): has the factory changed since?"
        ) from error


def _check_plain(value: Any, name: str) -> None:  # noqa: ANN401 - that is the question
    """Raise TypeError at what ``weights_only=True`` would refuse: better now than at resuming."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            _check_plain(part, f"{name}[{key!r}]")
    elif isinstance(value, list | tuple):
        for part in value:
            _check_plain(part, name)
    elif type(value) not in (str, int, float, bool, type(None)) and not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: checkpoints hold plain values")


def check_sums(path: Path) -> None:
    """Raise at a damaged byte of a file that torch wrote, which it would take for a weight.

    Raises
    ------
    ValueError
        A checksum is not that of its bytes.
    zipfile.BadZipFile
        The file is none of torch's, or cut off.
    """
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"checksum of {damaged}")


def _read(path: Path, device: torch.device | str) -> Any:  # noqa: ANN401 - anything may be in it
    if not zipfile.is_zipfile(path):
        raise CheckpointError(
            f"{path} is truncated or not a checkpoint ({path.stat().st_size} bytes): use another "
            f"one, such as {BEST} beside it"
        )
    try:
        check_sums(path)
        return torch.load(path, map_location=device, weights_only=True)
    except _UNREADABLE as error:
        lines = [line.strip() for line in str(error).splitlines()] or [type(error).__name__]
        # torch explains at length; the line that says what it found is marked so.
        cause = next((line for line in lines if line.startswith("WeightsUnpickler")), lines[0])
        raise CheckpointError(
            f"{path} is damaged or not a checkpoint of training.fit ({cause}): use another one"
        ) from error
