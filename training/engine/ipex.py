"""Intel Extension for PyTorch, where the user installed it.

Intel retired it after 2.8: the repository is archived and its README says to use PyTorch directly,
which now has most of what the extension had. It binds to one release of torch. So it is supported
in an environment of its own, and nothing here imports it before it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

PACKAGE = "intel-extension-for-pytorch"
VERSION = "2.8.0"
RETIRED = (
    "Intel retired the extension after 2.8 (archived, its README says to use PyTorch directly): "
    "--engine native needs nothing of it"
)
INSTALL = f"pip install torch=={VERSION} {PACKAGE}=={VERSION}, or make ipex"


def state() -> str:
    """Return in a few words what keeps the extension from being used, or ``works``."""
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


def extension_problem() -> str | None:
    """Return why the extension cannot be used and how to install it; None where it works."""
    found = state()
    return None if found == "works" else f"{PACKAGE} {found}; {INSTALL}. {RETIRED}"


def problem() -> str | None:
    """Return why ``--engine ipex`` cannot be used; None where it works."""
    found = extension_problem()
    return found and f"--engine ipex: {found}"


def optimize(
    network: nn.Module, optimizer: Optimizer, dtype: torch.dtype
) -> tuple[nn.Module, Optimizer]:
    """Return network and optimizer as the extension rewrites them.

    Parameters
    ----------
    network
        In training mode, fp32.
    optimizer
        Of the network's parameters.
    dtype
        ``torch.bfloat16`` or ``torch.float32``.
    """
    # Weights laid out in blocks cannot be loaded again: load_state_dict then gives a network that
    # computes something else (2.8.0, tried), and averaged weights need just that.
    network, optimizer = _module().optimize(
        network, optimizer=optimizer, dtype=dtype, inplace=True, weights_prepack=False
    )
    return network, optimizer


def optimize_inference(network: nn.Module) -> nn.Module:
    """Return a copy of a network in eval mode as the extension rewrites it for bf16."""
    # Weights laid out in blocks are not in a trace: freezing lays them out where it is run.
    rewritten: nn.Module = _module().optimize(
        network, dtype=torch.bfloat16, inplace=False, weights_prepack=False
    )
    return rewritten


def quantisers() -> tuple[Any, Any, Any]:
    """Return the extension's ``prepare`` and ``convert``, and its settings for static INT8."""
    quantization = _module().quantization
    settings = quantization.default_static_qconfig_mapping
    return quantization.prepare, quantization.convert, settings


def _module() -> Any:  # noqa: ANN401  # the extension carries no types
    return importlib.import_module("intel_extension_for_pytorch")


def _release(version: str) -> tuple[str, ...]:
    """Return major and minor: the extension's fit the torch it was built for."""
    return tuple(version.split("+")[0].split(".")[:2])
