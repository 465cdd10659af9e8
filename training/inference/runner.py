"""Runners: a trained network in whatever form. Bytes in, probabilities out.

Here are the interface, PyTorch's own network, plain and compiled, and the mean over several views.
Exported networks are runners in `training.inference`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from loaders import Normalize
from training.checkpoint import Facts
from training.engine import missing_compiler

CPU = torch.device("cpu")
Compile = Literal["auto", "on", "off"]
Precision = Literal["auto", "bf16", "fp32"]
Views = Literal["none", "flips", "d4"]
Function = Callable[[Tensor], Tensor]
"""uint8 (n, band, y, x) -> fp32 (n, y, x, channel)."""

WORTH_COMPILING = 300_000_000
"""Pixels of one shape of batch from which on compiling pays, on a CPU: it takes 10 to 20 s, and
maps grow 9 % faster by it (measured on two cores, ResNet34-UNet in bf16)."""


class Runner:
    """A network as maps and evaluation use it.

    Parameters
    ----------
    precision
        Of the convolutions: ``float32``, ``bfloat16``, ``int8``.

    Attributes
    ----------
    device
        Where its probabilities are.
    form
        What carries it out, for people; empty for torch.
    compiled
        Whether it was compiled for a shape of batch: other bytes may come of it.
    fixed_batch
        Whether a batch is filled up, since it must always have as many windows.
    at_once
        How many threads call it, each with a batch of its own, where it is to be fast.
    compile_mode
        Whether to compile: ``auto`` where the pixels of a job pay for it.
    """

    device = CPU
    form = ""
    compiled = False
    fixed_batch = False
    at_once = 1
    compile_mode: Compile = "auto"

    def __init__(self, precision: str) -> None:
        self.precision = precision

    @property
    def identity(self) -> dict[str, object]:
        """What the bytes of a map depend on, plain JSON."""
        return {"precision": self.precision, "compiled": self.compiled}

    @property
    def description(self) -> str:
        """For people, such as ``bfloat16 on cpu``."""
        return f"{self.precision} on {self.device}" + (f", {self.form}" if self.form else "")

    def for_pixels(self, pixels: int) -> tuple[Runner, str]:
        """Return the runner to put so many pixels through in one shape of batch, and why."""
        del pixels
        return self, ""

    def __call__(self, image: Tensor) -> Tensor:
        """Return fp32 (n, y, x, channel), probabilities, on the runner's device.

        Parameters
        ----------
        image
            uint8 (n, band, y, x), on the CPU; sides are multiples of 32.
        """
        raise NotImplementedError


class Probabilities(nn.Module):
    """Normalisation, network and sigmoid in one module, so that they compile into one.

    Parameters
    ----------
    network
        Normalised (n, band, y, x) -> logits (n, channel, y, x).
    mean, std
        Per band, in grey values.
    """

    def __init__(self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        """Return fp32 (n, y, x, channel), contiguous, of uint8 (n, band, y, x)."""
        logits: Tensor = self.network(self.normalize(image))
        # Sigmoid in fp32: bf16 tells 0.99 from 0.994, bytes of probability are 0.004 apart.
        return logits.permute(0, 2, 3, 1).float().sigmoid_().contiguous()


class ModuleRunner(Runner):
    """A module of PyTorch that takes bytes and gives probabilities.

    Parameters
    ----------
    module
        uint8 (n, band, y, x) -> fp32 (n, y, x, channel).
    precision
        Of the convolutions: ``float32``, ``bfloat16``, ``int8``.
    device
        Where it is.
    autocast
        Whether it must be run in bf16; False where it is what it is.
    """

    def __init__(
        self,
        module: Function,
        precision: str,
        *,
        device: torch.device = CPU,
        autocast: bool = False,
    ) -> None:
        super().__init__(precision)
        self.module, self.device, self.autocast = module, device, autocast

    @cached_property
    def in_shape(self) -> CompiledRunner:
        """The same, compiled for every shape of batch."""
        return CompiledRunner(self)

    def for_pixels(self, pixels: int) -> tuple[Runner, str]:
        """See `Runner`."""
        compiled, why = should_compile(self.compile_mode, self.device, pixels)
        return (self.in_shape if compiled else self), why

    def __call__(self, image: Tensor) -> Tensor:
        """See `Runner`."""
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)
        with torch.no_grad(), autocast:
            moved = image.to(self.device, non_blocking=True)
            return self._run(moved.contiguous(memory_format=torch.channels_last))

    def _run(self, image: Tensor) -> Tensor:
        return self.module(image)


class NativeRunner(ModuleRunner):
    """A network in PyTorch, as it was trained.

    Parameters
    ----------
    network
        Trained, in eval mode.
    facts
        Of its checkpoint.
    device
        Where it runs.
    precision
        ``bf16``, ``fp32``, or ``auto``: bf16 wherever the hardware computes in it.
    """

    def __init__(
        self, network: nn.Module, facts: Facts, *, device: torch.device, precision: Precision
    ) -> None:
        dtype = choose_dtype(device, precision)
        module = Probabilities(network, facts.mean, facts.std).eval()
        module.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs know this argument alone
        super().__init__(
            module,
            str(dtype).removeprefix("torch."),
            device=device,
            autocast=dtype != torch.float32,
        )


class CompiledRunner(ModuleRunner):
    """The same network compiled for inference: batch norms folded, weights packed.

    Its weights are constants from the first call on. One compilation for each shape.

    Parameters
    ----------
    plain
        The runner of the network as it is, whose module this one shares.
    """

    form = "compiled"
    compiled = fixed_batch = True
    for_pixels = Runner.for_pixels

    def __init__(self, plain: ModuleRunner) -> None:
        super().__init__(
            plain.module, plain.precision, device=plain.device, autocast=plain.autocast
        )
        self._frozen: Function = torch.compile(plain.module, dynamic=False)

    def _run(self, image: Tensor) -> Tensor:
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor import config

        try:
            # As an option of torch.compile it comes too late: the tracer, which has to leave the
            # weights in the module for it, looks at the global setting.
            with config.patch(freezing=True):
                return self._frozen(image)
        except TorchDynamoException as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(f"not compiled, {reason}", RuntimeWarning, stacklevel=2)
            self._frozen = self.module
            return super()._run(image)


def choose_dtype(device: torch.device, precision: Precision) -> torch.dtype:
    """Return the dtype of the convolutions."""
    rounded = precision == "bf16"
    if precision == "auto":
        cpu = torch.cpu
        fast = cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported()
        rounded = device.type != "cpu" or fast
    return torch.bfloat16 if rounded else torch.float32


def should_compile(mode: Compile, device: torch.device, pixels: int) -> tuple[bool, str]:
    """Return whether to compile for a shape of batch, and why, for people.

    Parameters
    ----------
    mode
        ``auto``, ``on`` or ``off``.
    device
        Where the network runs.
    pixels
        That go through it in this shape.
    """
    if mode == "off":
        return False, "not compiled, as asked"
    lacking = missing_compiler(device)
    if lacking:
        return False, f"not compiled, {lacking}"
    if mode == "on":
        return True, "compiled, as asked"
    if device.type != "cpu":
        return False, "not compiled: on an accelerator it is --compile on that does"
    if pixels < WORTH_COMPILING:
        return False, (
            f"not compiled: {pixels / 1e6:,.0f} Mpx do not pay for it, "
            f"{WORTH_COMPILING / 1e6:,.0f} would (--compile on does it all the same)"
        )
    return True, f"compiled: {pixels / 1e6:,.0f} Mpx pay for it"


class View(NamedTuple):
    """A symmetry of the square: flipped along axes, then rows and columns exchanged."""

    flip_y: bool = False
    flip_x: bool = False
    transpose: bool = False

    def of(self, image: Tensor) -> Tensor:
        """Return the view of an image (n, band, y, x)."""
        axes = [axis for axis, flipped in ((2, self.flip_y), (3, self.flip_x)) if flipped]
        seen = image.flip(axes) if axes else image
        return seen.transpose(2, 3) if self.transpose else seen

    def undo(self, result: Tensor) -> Tensor:
        """Return what a network made of the view, (n, y, x, channel), as it lies in the image."""
        seen = result.transpose(1, 2) if self.transpose else result
        axes = [axis for axis, flipped in ((1, self.flip_y), (2, self.flip_x)) if flipped]
        return seen.flip(axes) if axes else seen


_BOTH = (False, True)
VIEWS: dict[str, tuple[View, ...]] = {
    "none": (View(),),
    "flips": tuple(View(y, x) for y in _BOTH for x in _BOTH),
    "d4": tuple(View(y, x, t) for t in _BOTH for y in _BOTH for x in _BOTH),
}
"""Test-time augmentation: every view once; the first is the image itself."""


def filled(image: Tensor, count: int) -> Tensor:
    """Return a batch (n, band, y, x) with black windows at its end, so that it has ``count``."""
    lacking = count - len(image)
    if lacking <= 0:
        return image
    more = image.new_zeros((lacking, *image.shape[1:]))
    return torch.cat([image, more]).contiguous(memory_format=torch.channels_last)


def mean_of_views(runner: Function, image: Tensor, views: Views) -> Tensor:
    """Return the mean of a runner's probabilities over all views, fp32 (n, y, x, channel).

    Parameters
    ----------
    runner
        See `Runner`.
    image
        uint8 (n, band, y, x).
    views
        Which, see `VIEWS`.
    """
    first, *rest = VIEWS[views]
    total = first.undo(runner(first.of(image)))
    for view in rest:
        total += view.undo(runner(view.of(image)))
    return total.div_(1 + len(rest)) if rest else total
