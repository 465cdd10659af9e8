"""Runners: uint8 windows in, probabilities out, whatever form the model has.

This file has the interface, the runners of PyTorch models, plain and compiled, and test-time
augmentation. The modules of the formats have the runners of model files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from threading import Semaphore
from typing import Literal

import torch
from torch import Tensor, nn

from loaders import DevicePrep, Normalize, SpeedTarget
from training.checkpoint import ModelInfo
from training.engine.native import computes_bf16, missing_compiler
from training.model.compiled import Compiled
from training.runners.graph import inference_module

CPU = torch.device("cpu")
Compile = Literal["auto", "on", "off"]
NativePrecision = Literal["auto", "bf16", "fp32"]
Views = Literal["none", "flips", "d4"]
PredictFunction = Callable[[Tensor], Tensor]
"""uint8 (n, band, y, x) -> fp32 (n, y, x, channel)."""

pad_image = DevicePrep(Normalize([0.0], [1.0]), SpeedTarget("binary")).pad
"""Pads uint8 (n, band, y, x) by reflection to sides that a model takes, see `DevicePrep.pad`."""

WORTH_COMPILING = 300_000_000
"""Pixels in batches of one shape from which on compiling pays on a CPU: it takes 10 to 20 s and
makes predictions 9 % faster (measured on two cores, ResNet34-UNet in bf16)."""


class Runner:
    """A trained model, as prediction and validation call it."""

    device = CPU  # of the probabilities
    form = ""  # library that executes the model; empty for torch
    compiled = False  # for a shape of batch, which may change the last bits
    fixed_batch = False  # every batch needs the same number of windows, and is padded
    at_once = 1  # threads that should call it at the same time, each with its own batch
    # Small images to predict at a time, if it should not wait while one is opened or written
    images = 1
    compile_mode: Compile = "auto"  # auto: if the pixels of a job pay for it

    def __init__(self, precision: str) -> None:
        self.precision = precision

    @cached_property
    def turns(self) -> Semaphore:
        """Lets as many batches in as it takes at once, of all images that are predicted."""
        return Semaphore(self.at_once)

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


class TorchRunner(Runner):
    """A PyTorch module from bytes to probabilities, under bf16 autocast if asked for.

    ``to_compile`` returns the module that large jobs compile; None: it is never compiled.
    """

    def __init__(
        self,
        module: PredictFunction,
        precision: str,
        *,
        device: torch.device = CPU,
        autocast: bool = False,
        form: str = "",
        to_compile: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__(precision)
        self.module, self.device, self.form = module, device, form
        self._autocast, self.to_compile = autocast, to_compile

    @cached_property
    def in_shape(self) -> TorchRunner:
        """The same model compiled for each shape of batch: norms folded, weights constant."""
        assert self.to_compile is not None
        runner = TorchRunner(
            _frozen(self.to_compile()),
            self.precision,
            device=self.device,
            autocast=self._autocast,
            form="compiled",
        )
        runner.compiled = runner.fixed_batch = True
        return runner

    def for_pixels(self, pixels: int) -> tuple[Runner, str]:
        """See `Runner`."""
        pays = self.device.type == "cpu" and pixels >= WORTH_COMPILING
        wanted = self.compile_mode == "on" or (self.compile_mode == "auto" and pays)
        if self.to_compile is None or not wanted:
            return self, ""
        if lacking := missing_compiler(self.device):
            return self, f"model not compiled, {lacking}"
        return self.in_shape, "compiling the model with the first batch, up to a minute"

    def __call__(self, image: Tensor) -> Tensor:
        """See `Runner`."""
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast)
        with torch.no_grad(), autocast:
            moved = image.to(self.device, non_blocking=True)
            return self.module(moved.contiguous(memory_format=torch.channels_last))


class NativeRunner(TorchRunner):
    """The PyTorch model of a checkpoint, with the kernels of exported models.

    They are computed in fp32: those of `UpConv` in bf16 took 0.008 of road IoU (measured).
    """

    def __init__(
        self, model: nn.Module, info: ModelInfo, *, device: torch.device, precision: NativePrecision
    ) -> None:
        rounded = computes_bf16(device) if precision == "auto" else precision == "bf16"
        module = inference_module(model, info).to(device)
        super().__init__(
            module,
            "bfloat16" if rounded else "float32",
            device=device,
            autocast=rounded,
            to_compile=lambda: module,
        )


def _frozen(module: nn.Module) -> PredictFunction:
    """Return a module compiled with its weights as constants."""
    compiled = Compiled(module, "the model")

    def run(image: Tensor) -> Tensor:
        from torch._inductor import config

        # An option of torch.compile would come too late: the tracer, which has to keep the weights
        # in the module, reads the global setting.
        with config.patch(freezing=True):
            probabilities: Tensor = compiled(image)
        return probabilities

    return run


_FLIPS = ((), (3,), (2,), (2, 3))
VIEWS: dict[str, list[tuple[tuple[int, ...], bool]]] = {
    "none": [((), False)],
    "flips": [(axes, False) for axes in _FLIPS],
    "d4": [(axes, transposed) for transposed in (False, True) for axes in _FLIPS],
}
"""The views of test-time augmentation: the axes of (n, band, y, x) that are flipped, and whether
these are then exchanged. The first one is the image itself."""


def pad_batch(image: Tensor, count: int) -> Tensor:
    """Return a batch (n, band, y, x) padded with black windows to ``count`` windows."""
    lacking = count - len(image)
    if lacking <= 0:
        return image
    black = image.new_zeros((lacking, *image.shape[1:]))
    return torch.cat([image, black]).contiguous(memory_format=torch.channels_last)


def average_views(runner: PredictFunction, image: Tensor, views: Views) -> Tensor:
    """Return the mean of a runner's probabilities over all views, fp32 (n, y, x, channel)."""
    total, (_, *others) = runner(image), VIEWS[views]
    for axes, transposed in others:
        view = image.flip(axes)
        seen = runner(view.transpose(2, 3) if transposed else view)
        seen = seen.transpose(1, 2) if transposed else seen
        total += seen.flip([axis - 1 for axis in axes])
    return total.div_(1 + len(others)) if others else total
