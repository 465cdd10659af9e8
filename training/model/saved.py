"""Models of checkpoints: built, with their weights."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from geoprep.errors import UsageError
from training.checkpoint import BEST, CheckpointError, ModelInfo, Weights, load
from training.model.build import build_model, is_code


def load_model(
    path: str | Path,
    *,
    device: torch.device | str = "cpu",
    weights: Weights = "auto",
    model: str | None = None,
) -> tuple[nn.Module, ModelInfo]:
    """Return the trained model in evaluation mode, and its inputs and outputs.

    A folder stands for its best.pt. ``model`` is consent to import the code that a checkpoint
    names, and needed for models outside this package.
    """
    path = Path(path)
    path = path / BEST if path.is_dir() else path
    checkpoint = load(path, device=device)
    if weights == "ema" and checkpoint.ema is None:
        raise CheckpointError(f"{path} holds no averaged weights: it was trained without EMA")
    averaged = None if weights == "raw" else checkpoint.ema
    info = checkpoint.info
    spec = trusted(info.model, model, str(path))
    built = build_model(spec, bands=len(info.bands), channels=info.channels)
    load_weights(built, averaged or checkpoint.model, str(path))
    return built.to(device).eval(), info


def trusted(named: str, model: str | None, where: str) -> str:
    """Return the specification of the model to build, if the user permits to import its code."""
    if model is None and is_code(named):
        raise UsageError(
            f"{where} imports {named}, which is code outside this package: if you trust it, add "
            f"`model` {named}"
        )
    return named if model is None else model


def load_weights(model: nn.Module, state: dict[str, Tensor], where: str) -> None:
    """Load weights into a model."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise CheckpointError(
            f"{where}: its weights do not fit the model that it names "
            f"({' '.join(lines[1:2]).strip()}): check whether the factory has changed"
        ) from error
