"""Published ResNet34 weights for the encoder, adapted to the number of bands."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor, nn

from geoprep.errors import UsageError

IMAGENET_URL = "https://download.pytorch.org/models/resnet34-b627a593.pth"
"""torchvision's ResNet34_Weights.IMAGENET1K_V1; the name ends in the start of its SHA-256."""

_STEM = "conv1.weight"
_CLASSIFIER = ("fc.weight", "fc.bias")
_PREFIXES = ("module.", "encoder.", "backbone.")


def load_encoder_weights(model: nn.Module, source: str = "none") -> str:
    """Load weights into the encoder of a model; return a line that describes them.

    Published weights are for red, green and blue. For another number of bands the kernels of the
    first convolution are repeated band by band and scaled by 3 / bands, which keeps the magnitude
    of its output; for one band they are summed.

    Parameters
    ----------
    model
        Model with an ``encoder`` whose parameters are named like torchvision's ResNet.
    source
        ``none``, ``imagenet`` (downloaded once, 87 MB, into torch's cache) or a file: a state
        dictionary of ResNet34, or one that holds it under ``state_dict`` or ``model``.

    Raises
    ------
    UsageError
        The file cannot be read or does not fit, or the model has no such encoder.
    """
    if source == "none":
        return "random weights"
    encoder = getattr(model, "encoder", None)
    if not isinstance(encoder, nn.Module) or _STEM not in encoder.state_dict():
        raise UsageError(
            f"`encoder_weights` {source}: this model has no encoder named like torchvision's "
            "ResNet; load weights in its factory, and use none here"
        )
    weights = _state_dict(_download() if source == "imagenet" else _read(source))
    if _STEM not in weights:
        raise UsageError(
            f"`encoder_weights` {source} has no {_STEM}: give a state dictionary of ResNet34 "
            "with torchvision's names"
        )
    bands, given = encoder.state_dict()[_STEM].shape[1], weights[_STEM].shape[1]
    weights[_STEM] = adapt_bands(weights[_STEM], bands)
    try:
        missing, unknown = encoder.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        detail = str(error).strip().splitlines()[-1].strip()
        raise UsageError(f"`encoder_weights` {source} is not of a ResNet34: {detail}") from error
    # Weights from before torch 0.4.1 have no such counters.
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unknown:
        raise UsageError(
            f"`encoder_weights` {source} is not of a ResNet34: {len(missing)} parameters missing, "
            f"{len(unknown)} unknown, such as {[*missing, *unknown][0]}"
        )
    adapted = "" if given == bands else f", first convolution adapted from {given} to {bands} bands"
    return f"encoder from {source}{adapted}"


def adapt_bands(kernel: Tensor, bands: int) -> Tensor:
    """Return the kernel of a first convolution for another number of bands.

    Parameters
    ----------
    kernel
        (output, given, y, x).
    bands
        Number of bands of the result.
    """
    given = kernel.shape[1]
    if given == bands:
        return kernel
    if bands == 1:
        return kernel.sum(dim=1, keepdim=True)
    return kernel[:, torch.arange(bands) % given] * (given / bands)


def _state_dict(content: dict[str, Any]) -> dict[str, Tensor]:
    """Return the state dictionary inside a file, without prefixes and classifier."""
    inner = (content.get(key) for key in ("state_dict", "model"))
    content = next((part for part in inner if isinstance(part, dict)), content)
    weights = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
    for prefix in _PREFIXES:
        inside = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        weights = inside or weights
    return {name: value for name, value in weights.items() if name not in _CLASSIFIER}


def _download() -> dict[str, Any]:
    try:
        return torch.hub.load_state_dict_from_url(
            IMAGENET_URL, map_location="cpu", check_hash=True, progress=False, weights_only=True
        )
    except (URLError, OSError, RuntimeError) as error:
        raise UsageError(
            f"`encoder_weights` imagenet: cannot download {IMAGENET_URL} ({error}); download it "
            "elsewhere and give the file, or use none"
        ) from error


def _read(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise UsageError(f"`encoder_weights` {path}: no such file; use imagenet, none or a file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UsageError(
            f"`encoder_weights` {path} is not a file of plain tensors; save a state dictionary "
            "with torch.save"
        ) from error
    if not isinstance(content, dict):
        raise UsageError(f"`encoder_weights` {path} holds no state dictionary")
    return content
