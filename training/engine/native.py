"""Device, precision, compiler and random numbers of training steps.

``native`` is PyTorch itself: oneDNN on a CPU, autocast, channels last, fused optimizers.
``ipex`` is Intel's retired extension, see `training.engine.ipex`.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from geoprep.cpus import instruction_sets
from geoprep.errors import UsageError
from loaders import this_rank
from training.engine import ipex
from training.setting_texts import CompileMode as CompileMode
from training.setting_texts import DeviceName as DeviceName
from training.setting_texts import EngineName, Precision


@dataclass(frozen=True, slots=True)
class Engine:
    """Device, precision and compiler that training steps use.

    If it ``skips_steps``, a step whose loss or gradient is not finite is skipped on the device,
    without waiting for it: on accelerators, and in fp16, where single gradients overflow.
    Otherwise the host checks before each step. If it ``captures``, steps are recorded as CUDA
    graphs, see `training.run.captured`.
    """

    name: EngineName
    device: torch.device
    dtype: torch.dtype
    compile_mode: CompileMode
    reason: str
    autocast: Callable[[], torch.autocast]
    skips_steps: bool
    captures: bool

    def environment(self) -> dict[str, Any]:
        """Return what the exact weights of a run depend on besides its settings."""
        return {
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
            "engine": self.name,
            "precision": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
            "compiled": self.compile_mode,
            "ranks": this_rank()[1],
        }

    def optimize(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Return model and optimizer as this engine runs them; the model may be changed."""
        if self.name == "ipex":
            return ipex.optimize(model, optimizer, self.dtype)
        return model, optimizer


def choose_device(name: DeviceName = "auto") -> torch.device:
    """Return a device by name; ``auto`` is a CUDA or XPU device if there is one, else the CPU."""
    available: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "xpu": torch.xpu.is_available,
        "cpu": lambda: True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, has in available.items() if has()))
    if not available[name]():
        raise UsageError(
            "device",
            f"{name}: torch {torch.__version__} finds none; install the driver and a "
            f"torch built for {name}, or use cpu",
        )
    return torch.device(name)


def wait_for(device: torch.device) -> None:
    """Wait until an accelerator has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def choose_engine(
    name: EngineName = "auto",
    device: DeviceName = "auto",
    precision: Precision = "auto",
    compile_mode: CompileMode = "loss",
    *,
    capture: bool = True,
) -> Engine:
    """Return the engine for the given settings."""
    place = choose_device(device)
    taken, why = _choose_name(name, place)
    lacking = None if compile_mode == "off" else missing_compiler(place)
    dtype, numbers = choose_precision(place, precision)
    reason = f"{taken}: {why}; {numbers}" + (f"; nothing compiled, {lacking}" if lacking else "")
    if not lacking and compile_mode != "off":
        reason += "; the first step compiles kernels (a minute or two, then they are cached)"
    half = dtype != torch.float32
    return Engine(
        name=taken,
        device=place,
        dtype=dtype,
        compile_mode="off" if lacking else compile_mode,
        reason=reason,
        # A graph must not use casts of weights that were cached outside of it.
        autocast=partial(
            torch.autocast,
            place.type,
            dtype=dtype,
            enabled=half,
            cache_enabled=place.type != "cuda",
        ),
        skips_steps=place.type != "cpu" or dtype == torch.float16,
        captures=capture and place.type == "cuda" and this_rank()[1] == 1,
    )


def choose_precision(device: torch.device, precision: Precision) -> tuple[torch.dtype, str]:
    """Return the dtype of convolutions and a description; set up the kernels of CUDA devices.

    PyTorch uses TensorFloat-32 in convolutions by default, but not in matrix products.
    """
    computed, cuda = computes_bf16(device), device.type == "cuda"
    lacks = "this device has no" if cuda else f"this {device.type} has no instructions for"
    note: str = precision
    if precision in ("auto", "bf16"):
        other = "fp16" if cuda else "fp32"
        note = "bf16" if computed or (precision == "bf16" and not cuda) else other
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(note, torch.float32)
    if note == "fp16":
        note += ", loss scaled"
    if precision in ("auto", "bf16") and dtype != torch.bfloat16:
        note += f" ({lacks} bf16)"
    if not cuda:
        return dtype, f"fp32 (tf32 is for cuda, not {device.type})" if note == "tf32" else note
    # CUDA devices have had both since Ampere. cuDNN's search for kernels (`benchmark`) stays off:
    # it took 2.7 s per shape and found none that were faster (H100).
    tf32 = precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    if note == "tf32":
        note = "fp32" if computed else "fp32 (this device has no tf32)"
    return dtype, f"{note}, tf32 {'on' if tf32 else 'off'}" if computed else note


def computes_bf16(device: torch.device) -> bool:
    """Return whether a device computes in bf16; a CPU without its instructions emulates it."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return True
    x86 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(x86) or "BF16" in instruction_sets()


def read_text(path: str) -> str:
    """Return the text of a file of the kernel; empty if there is no such file."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _choose_name(name: EngineName, device: torch.device) -> tuple[EngineName, str]:
    """Return the name of the engine to use, and the reason."""
    if name != "ipex":
        return "native", "as requested" if name == "native" else f"PyTorch on {device.type}"
    if device.type != "cpu":
        raise UsageError("engine", f"ipex supports the cpu only; use native for {device.type}")
    ipex.require_extension("`engine` ipex")
    return "ipex", "as requested; native is as fast or faster"


def missing_compiler(device: torch.device) -> str | None:
    """Return why torch.compile cannot be used on this machine; None if it can."""
    if device.type != "cpu":
        return None if importlib.util.find_spec("triton") else "since Triton is not installed"
    wanted = os.environ.get("CXX") or "g++"
    if shutil.which(wanted):
        return None
    return f"since there is no C++ compiler ({wanted}); install g++ for slightly faster steps"


def seed_all(seed: int) -> None:
    """Seed torch, and the generators that augmentations of users may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the one that they may use


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of all random generators as plain values and tensors."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - the one that users' models may use
    state = {
        "torch": torch.get_rng_state(),
        "python": list(random.getstate()[1]),
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore all random generators to a state of `random_state`."""
    torch.set_rng_state(state["torch"].cpu())
    random.setstate((3, tuple(state["python"]), None))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))  # noqa: NPY002 - as above
    if "device" in state and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["device"].cpu())
