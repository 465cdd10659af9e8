"""How a step is carried out: device, precision, memory format, compiler.

``native`` is PyTorch's own path: oneDNN on a CPU, bf16 autocast, channels last, fused optimizers.
``ipex`` is Intel's retired extension, see `training.engine.ipex`.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal, Self, get_args

import torch
from torch.optim import Optimizer

from geoprep.errors import UsageError
from training.engine import ipex as engine_ipex
from training.engine.compiled import missing_compiler
from training.module import Trainable
from training.optim import MakeOptimizer

EngineName = Literal["auto", "native", "ipex"]
DeviceName = Literal["auto", "cpu", "cuda", "xpu"]
Precision = Literal["bf16", "fp32"]
CompileMode = Literal["loss", "model", "off"]

DTYPES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Engine(ABC):
    """A way to carry out training steps.

    Parameters
    ----------
    device
        Where to compute.
    dtype
        Of the convolutions: ``torch.bfloat16`` or ``torch.float32``.
    compile_mode
        What of a step to compile; ``off`` is what it becomes where there is no compiler.
    why
        Why this engine was taken.

    Attributes
    ----------
    name
        ``native`` or ``ipex``.
    reason
        One line for the run's header: which engine, why, and what is compiled.
    """

    name: ClassVar[str]

    def __init__(
        self, device: torch.device, dtype: torch.dtype, compile_mode: CompileMode, why: str
    ) -> None:
        lacking = None if compile_mode == "off" else missing_compiler(device)
        self.device = device
        self.dtype = dtype
        self.compile_mode: CompileMode = "off" if lacking else compile_mode
        self._why = why
        self.reason = f"{self.name}: {why}" + (f"; nothing compiled, {lacking}" if lacking else "")

    def prepare(
        self, trainable: Trainable, make_optimizer: MakeOptimizer
    ) -> tuple[Trainable, Optimizer]:
        """Return the module on the device, as this engine runs it, and its optimizer.

        The module is changed in place; names in its ``state_dict`` stay what they were.

        Parameters
        ----------
        trainable
            In training mode, parameters in fp32.
        make_optimizer
            Called once the parameters are in place, see `training.optim`.
        """
        trainable = trainable.to(device=self.device)
        trainable = trainable.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's own stubs lack this form
        optimizer = make_optimizer(p for p in trainable.parameters() if p.requires_grad)
        optimizer = self._optimize(trainable, optimizer)
        if self.compile_mode != "off":
            trainable.compile_loss()
        if self.compile_mode == "model":
            trainable.compile_network()
        return trainable, optimizer

    def uncompiled(self) -> Self:
        """Return the same engine without the compiler, for a few steps only."""
        return type(self)(self.device, self.dtype, "off", self._why)

    @abstractmethod
    def _optimize(self, trainable: Trainable, optimizer: Optimizer) -> Optimizer:
        """Change the network in place and return the optimizer that goes with it."""

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context for a forward pass; backward pass and optimizer run outside it."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


class NativeEngine(Engine):
    """PyTorch itself."""

    name = "native"

    def _optimize(self, trainable: Trainable, optimizer: Optimizer) -> Optimizer:
        return optimizer


class IpexEngine(Engine):
    """Intel's extension: its fused optimizer, and weights laid out for its kernels."""

    name = "ipex"

    def _optimize(self, trainable: Trainable, optimizer: Optimizer) -> Optimizer:
        trainable.network, optimizer = engine_ipex.optimize(
            trainable.network, optimizer, self.dtype
        )
        return optimizer


def choose_device(name: DeviceName = "auto") -> torch.device:
    """Return a device by name; ``auto`` is the accelerator where there is one.

    Raises
    ------
    UsageError
        The name is unknown, or there is no such device.
    """
    there: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "xpu": torch.xpu.is_available,
        "cpu": lambda: True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, has in there.items() if has()))
    if name not in there:
        raise UsageError(f"--device {name} is not one of {', '.join(get_args(DeviceName))}")
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
        A name is unknown, or what was asked for is not there; says how to install it.
    """
    for flag, value, names in (
        ("--engine", name, EngineName),
        ("--precision", precision, Precision),
        ("--compile", compile_mode, CompileMode),
    ):
        if value not in get_args(names):
            raise UsageError(f"{flag} {value} is not one of {', '.join(get_args(names))}")
    place, dtype = choose_device(device), DTYPES[precision]
    if name == "native":
        return NativeEngine(place, dtype, compile_mode, "as asked for")
    if place.type != "cpu":
        if name == "ipex":
            raise UsageError(
                f"--engine ipex is for --device cpu here; take native for {place.type}"
            )
        return NativeEngine(place, dtype, compile_mode, f"PyTorch's own path on {place.type}")
    missing = engine_ipex.problem()
    if missing is None:
        why = (
            "as asked for" if name == "ipex" else "installed and working; --engine native is level"
        )
        return IpexEngine(place, dtype, compile_mode, why)
    if name == "ipex":
        raise UsageError(missing)
    return NativeEngine(place, dtype, compile_mode, f"Intel's extension {engine_ipex.state()}")
