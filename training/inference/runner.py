"""Runners: uint8 windows in, probabilities out, whatever form the model has.

This file has the interface, the runners of PyTorch models, plain and compiled, and test-time
augmentation. The modules of the formats have the runners of model files.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from loaders import Normalize
from training.checkpoint import ModelInfo
from training.engine import computes_bf16, missing_compiler

CPU = torch.device("cpu")
Compile = Literal["auto", "on", "off"]
NativePrecision = Literal["auto", "bf16", "fp32"]
Views = Literal["none", "flips", "d4"]
PredictFunction = Callable[[Tensor], Tensor]
"""uint8 (n, band, y, x) -> fp32 (n, y, x, channel)."""

WORTH_COMPILING = 300_000_000
"""Pixels in batches of one shape from which on compiling pays on a CPU: it takes 10 to 20 s and
makes predictions 9 % faster (measured on two cores, ResNet34-UNet in bf16)."""


class Runner:
    """A trained model, as prediction and validation call it."""

    device = CPU  # of the probabilities
    form = ""  # library that executes the model; empty for torch
    note = ""  # a remark on the file for the user
    compiled = False  # for a shape of batch, which may change the last bits
    fixed_batch = False  # every batch needs the same number of windows, and is padded
    at_once = 1  # threads that should call it at the same time, each with its own batch
    compile_mode: Compile = "auto"  # auto: if the pixels of a job pay for it

    def __init__(self, precision: str) -> None:
        self.precision = precision

    @property
    def identity(self) -> dict[str, object]:
        """Everything that the bytes of a prediction depend on, as plain JSON."""
        return {"precision": self.precision, "compiled": self.compiled}

    @property
    def description(self) -> str:
        """Precision, device and library, such as ``bfloat16 on cpu``."""
        return f"{self.precision} on {self.device}" + (f", {self.form}" if self.form else "")

    def for_pixels(self, pixels: int) -> tuple[Runner, str]:
        """Return the runner for so many pixels in batches of one shape, and a note."""
        del pixels
        return self, ""

    def __call__(self, image: Tensor) -> Tensor:
        """Return fp32 (n, y, x, channel) of uint8 (n, band, y, x) on the CPU."""
        raise NotImplementedError


class Probabilities(nn.Module):
    """Normalisation, model and sigmoid or softmax in one module: they compile together."""

    def __init__(self, network: nn.Module, info: ModelInfo) -> None:
        super().__init__()
        self.normalize = Normalize(info.mean, info.std)
        self.network = network
        self.exclusive = info.has_classes

    def forward(self, image: Tensor) -> Tensor:
        """Return fp32 (n, y, x, channel), contiguous, of uint8 (n, band, y, x)."""
        logits: Tensor = self.network(self.normalize(image))
        # In fp32: steps of bf16 are 0.004 near 1, as large as those of the predictions.
        if self.exclusive:
            return logits.permute(0, 2, 3, 1).float().softmax(dim=-1).contiguous()
        return logits.permute(0, 2, 3, 1).float().sigmoid_().contiguous()


class ModuleRunner(Runner):
    """A PyTorch module from bytes to probabilities, under bf16 autocast if asked for."""

    def __init__(
        self,
        module: PredictFunction,
        precision: str,
        *,
        device: torch.device = CPU,
        autocast: bool = False,
    ) -> None:
        super().__init__(precision)
        self.module, self.device, self.autocast = module, device, autocast

    @cached_property
    def in_shape(self) -> CompiledRunner:
        """The same model, compiled for every shape of batch."""
        return CompiledRunner(self)

    def for_pixels(self, pixels: int) -> tuple[Runner, str]:
        """See `Runner`."""
        compiled, note = should_compile(self.compile_mode, self.device, pixels)
        return (self.in_shape if compiled else self), note

    def __call__(self, image: Tensor) -> Tensor:
        """See `Runner`."""
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)
        with torch.no_grad(), autocast:
            moved = image.to(self.device, non_blocking=True)
            return self._run(moved.contiguous(memory_format=torch.channels_last))

    def _run(self, image: Tensor) -> Tensor:
        return self.module(image)


class NativeRunner(ModuleRunner):
    """The PyTorch model of a checkpoint."""

    def __init__(
        self,
        network: nn.Module,
        info: ModelInfo,
        *,
        device: torch.device,
        precision: NativePrecision,
    ) -> None:
        dtype = choose_dtype(device, precision)
        module = Probabilities(network, info).eval()
        module.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs know this argument alone
        super().__init__(
            module,
            str(dtype).removeprefix("torch."),
            device=device,
            autocast=dtype != torch.float32,
        )


class CompiledRunner(ModuleRunner):
    """The same model compiled for each shape of batch: batch norms folded, weights constant."""

    form = "compiled"
    compiled = fixed_batch = True
    for_pixels = Runner.for_pixels

    def __init__(self, plain: ModuleRunner) -> None:
        super().__init__(
            plain.module, plain.precision, device=plain.device, autocast=plain.autocast
        )
        self._frozen: PredictFunction = torch.compile(plain.module, dynamic=False)

    def _run(self, image: Tensor) -> Tensor:
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor import config

        try:
            # An option of torch.compile would come too late: the tracer, which has to keep the
            # weights in the module, reads the global setting.
            with config.patch(freezing=True):
                return self._frozen(image)
        except TorchDynamoException as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(f"model not compiled: {reason}", RuntimeWarning, stacklevel=2)
            self._frozen = self.module
            return super()._run(image)


def choose_dtype(device: torch.device, precision: NativePrecision) -> torch.dtype:
    """Return the dtype of the convolutions."""
    rounded = computes_bf16(device) if precision == "auto" else precision == "bf16"
    return torch.bfloat16 if rounded else torch.float32


def should_compile(mode: Compile, device: torch.device, pixels: int) -> tuple[bool, str]:
    """Return whether to compile for a shape of batch, and what the user should know."""
    pays = device.type == "cpu" and pixels >= WORTH_COMPILING
    if mode == "off" or (mode == "auto" and not pays):
        return False, ""
    lacking = missing_compiler(device)
    if lacking:
        return False, f"model not compiled, {lacking}"
    return True, "compiling the model with the first batch, up to a minute"


class View(NamedTuple):
    """A symmetry of the square: flips along the axes, then a transposition."""

    flip_y: bool = False
    flip_x: bool = False
    transpose: bool = False

    def of(self, image: Tensor) -> Tensor:
        """Return the view of an image (n, band, y, x)."""
        axes = [axis for axis, flipped in ((2, self.flip_y), (3, self.flip_x)) if flipped]
        seen = image.flip(axes) if axes else image
        return seen.transpose(2, 3) if self.transpose else seen

    def undo(self, result: Tensor) -> Tensor:
        """Return the output for the view, (n, y, x, channel), in the orientation of the image."""
        seen = result.transpose(1, 2) if self.transpose else result
        axes = [axis for axis, flipped in ((1, self.flip_y), (2, self.flip_x)) if flipped]
        return seen.flip(axes) if axes else seen


_BOTH = (False, True)
VIEWS: dict[str, tuple[View, ...]] = {
    "none": (View(),),
    "flips": tuple(View(y, x) for y in _BOTH for x in _BOTH),
    "d4": tuple(View(y, x, t) for t in _BOTH for y in _BOTH for x in _BOTH),
}
"""The views of each kind of test-time augmentation; the first is the image itself."""


def pad_batch(image: Tensor, count: int) -> Tensor:
    """Return a batch (n, band, y, x) padded with black windows to ``count`` windows."""
    lacking = count - len(image)
    if lacking <= 0:
        return image
    more = image.new_zeros((lacking, *image.shape[1:]))
    return torch.cat([image, more]).contiguous(memory_format=torch.channels_last)


def average_views(runner: PredictFunction, image: Tensor, views: Views) -> Tensor:
    """Return the mean of a runner's probabilities over all views, fp32 (n, y, x, channel)."""
    first, *rest = VIEWS[views]
    total = first.undo(runner(first.of(image)))
    for view in rest:
        total += view.undo(runner(view.of(image)))
    return total.div_(1 + len(rest)) if rest else total
