"""How a step is carried out: device, precision, compiler.

``native`` is PyTorch's own path: oneDNN on a CPU, bf16 autocast, channels last, fused optimizers.
``ipex`` is Intel's retired extension, see `training.engine.ipex`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.optim import Optimizer

from geoprep.errors import UsageError
from training.engine import ipex

EngineName = Literal["auto", "native", "ipex"]
DeviceName = Literal["auto", "cpu", "cuda", "xpu"]
Precision = Literal["bf16", "fp32"]
CompileMode = Literal["loss", "model", "off"]

DTYPES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class Engine:
    """A way to carry out training steps.

    Attributes
    ----------
    name
        ``native`` or ``ipex``.
    device
        Where to compute.
    dtype
        Of the convolutions: ``torch.bfloat16`` or ``torch.float32``.
    compile_mode
        What of a step to compile; ``off`` where there is no compiler.
    reason
        One line for the run's header: which engine, why, and what is compiled.
    """

    name: EngineName
    device: torch.device
    dtype: torch.dtype
    compile_mode: CompileMode
    reason: str

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context for a forward pass; backward pass and optimizer run outside it."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def optimize(self, network: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Return network and optimizer as this engine runs them; the network may be changed."""
        if self.name == "ipex":
            return ipex.optimize(network, optimizer, self.dtype)
        return network, optimizer


def choose_device(name: DeviceName = "auto") -> torch.device:
    """Return a device by name; ``auto`` is the accelerator where there is one.

    Raises
    ------
    UsageError
        There is no such device.
    """
    there: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "xpu": torch.xpu.is_available,
        "cpu": lambda: True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, has in there.items() if has()))
    if not there[name]():
        raise UsageError(
            f"--device {name}: torch {torch.__version__} sees none; install the driver and a "
            f"torch built for {name}, or take --device cpu"
        )
    return torch.device(name)


def choose_engine(
    name: EngineName = "auto",
    device: DeviceName = "auto",
    precision: Precision = "bf16",
    compile_mode: CompileMode = "loss",
) -> Engine:
    """Return an engine.

    Parameters
    ----------
    name
        ``auto`` takes ``ipex`` where it is installed, works and the device is a CPU.
    device
        ``auto`` takes the accelerator where there is one.
    precision
        ``bf16`` (autocast: parameters stay fp32) or ``fp32``.
    compile_mode
        ``loss`` compiles the loss alone, ``model`` the network as well, which on a CPU gains
        nothing that could be measured and takes a minute to begin with, ``off`` nothing.

    Raises
    ------
    UsageError
        What was asked for is not there; says how to install it.
    """
    place = choose_device(device)
    taken, why = _which(name, place)
    lacking = None if compile_mode == "off" else missing_compiler(place)
    reason = f"{taken}: {why}" + (f"; nothing compiled, {lacking}" if lacking else "")
    return Engine(taken, place, DTYPES[precision], "off" if lacking else compile_mode, reason)


def _which(name: EngineName, device: torch.device) -> tuple[EngineName, str]:
    """Return the engine to take, and why."""
    if name == "native":
        return "native", "as asked for"
    if device.type != "cpu":
        if name == "ipex":
            raise UsageError(
                f"--engine ipex is for --device cpu here; take native for {device.type}"
            )
        return "native", f"PyTorch's own path on {device.type}"
    missing = ipex.problem()
    if missing is None:
        asked = name == "ipex"
        return "ipex", "as asked for" if asked else "installed and working; native is level"
    if name == "ipex":
        raise UsageError(missing)
    return "native", f"Intel's extension {ipex.state()}"


def missing_compiler(device: torch.device) -> str | None:
    """Return what torch.compile lacks on this machine, or None where it lacks nothing.

    Parameters
    ----------
    device
        A CPU needs a C++ compiler, an accelerator needs Triton.
    """
    if device.type != "cpu":
        return None if importlib.util.find_spec("triton") else "since Triton is not installed"
    wanted = os.environ.get("CXX") or "g++"
    if shutil.which(wanted):
        return None
    return f"since there is no C++ compiler ({wanted}); install g++ for slightly faster steps"
