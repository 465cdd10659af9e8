"""Intel Extension for PyTorch, an optional engine.

Intel retired the extension after version 2.8: the repository is archived, and its README recommends
PyTorch itself, which has most of its optimisations. It needs one release of torch. It is therefore
supported in an environment of its own, and imported only on request.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from geoprep.errors import UsageError

PACKAGE = "intel-extension-for-pytorch"
VERSION = "2.8.0"
RETIRED = (
    "Intel retired the extension after 2.8 and recommends PyTorch itself: `engine` native works "
    "without it"
)
INSTALL = f"pip install torch=={VERSION} {PACKAGE}=={VERSION}, or make ipex"


def state() -> str:
    """Return in a few words why the extension cannot be used, or ``works``."""
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "is not installed"
    if _release(version) != _release(torch.__version__):
        return f"{version} does not fit torch {torch.__version__}"
    try:
        _module()
    except Exception as error:  # its import runs native code that fails in many ways
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"{version} does not load: {first}"
    return "works"


def require_extension(wanted_by: str) -> None:
    """Raise UsageError if the extension cannot be used: why, and how to install it."""
    if (found := state()) != "works":
        raise UsageError(f"{wanted_by}: {PACKAGE} {found}; {INSTALL}. {RETIRED}")


def optimize(
    model: nn.Module, optimizer: Optimizer, dtype: torch.dtype
) -> tuple[nn.Module, Optimizer]:
    """Return model and optimizer as the extension rewrites them."""
    # With prepacked weights, load_state_dict leaves a model that computes something else (2.8.0,
    # tried), and averaged weights need load_state_dict.
    model, optimizer = _module().optimize(
        model, optimizer=optimizer, dtype=dtype, inplace=True, weights_prepack=False
    )
    return model, optimizer


def optimize_inference(model: nn.Module) -> nn.Module:
    """Return a copy of a model in eval mode as the extension rewrites it for bf16."""
    # A trace holds no prepacked weights: freezing packs them on the machine that runs it.
    rewritten: nn.Module = _module().optimize(
        model, dtype=torch.bfloat16, inplace=False, weights_prepack=False
    )
    return rewritten


def quantisers() -> tuple[Any, Any, Any]:
    """Return the extension's ``prepare``, ``convert`` and settings for static INT8."""
    quantization = _module().quantization
    settings = quantization.default_static_qconfig_mapping
    return quantization.prepare, quantization.convert, settings


def _module() -> Any:  # noqa: ANN401  # the extension carries no types
    return importlib.import_module("intel_extension_for_pytorch")


def _release(version: str) -> tuple[str, ...]:
    """Return major and minor version, which are those of torch for a matching extension."""
    return tuple(version.split("+")[0].split(".")[:2])
