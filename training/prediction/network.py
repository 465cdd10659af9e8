"""A trained network as prediction uses it: bytes in, probabilities out."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn

from loaders import Normalize
from training.checkpoint import Facts
from training.engine.compiled import missing_compiler
from training.prediction.tta import VIEWS, Augmentation, mean_of_views

CompileWish = Literal["auto", "on", "off"]
Precision = Literal["auto", "bf16", "fp32"]

WORTH_COMPILING = 300_000_000
"""Pixels of one shape of batch from which on compiling pays, on a CPU: it takes 10 to 20 s, and
maps grow 9 % faster by it (measured on two cores, ResNet34-UNet in bf16)."""


class Probabilities(nn.Module):
    """Normalisation, network and sigmoid in one module, so that they compile into one.

    Parameters
    ----------
    network
        Normalised (n, band, y, x) -> logits (n, channel, y, x).
    mean, std
        Of each band, in grey values.
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


class Frozen:
    """A module compiled for inference: batch norms folded into convolutions, weights packed.

    Its weights are constants from the first call on. One compilation for each shape.

    Parameters
    ----------
    module
        In eval mode; called without gradients only.
    """

    def __init__(self, module: nn.Module) -> None:
        self._compiled = torch.compile(module, dynamic=False)

    def __call__(self, image: Tensor) -> Tensor:
        """Return what the module returns, but for rounding."""
        from torch._inductor import config

        # As an option of torch.compile it comes too late: the tracer, which has to leave the
        # weights in the module for it, looks at the global setting.
        with config.patch(freezing=True):
            result: Tensor = self._compiled(image)
        return result


class Predictor:
    """Runs a network on batches of windows.

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
    augmentation
        Views to average over.

    Attributes
    ----------
    paths
        What was done for each shape of batch, for people: ``compiled``, or why not.
    """

    def __init__(
        self,
        network: nn.Module,
        facts: Facts,
        *,
        device: torch.device,
        precision: Precision = "auto",
        augmentation: Augmentation = "none",
    ) -> None:
        self.device = device
        self.channels = facts.channels
        self.augmentation = augmentation
        self.dtype = choose_dtype(device, precision)
        self._plain = Probabilities(network, facts.mean, facts.std).eval()
        self._plain.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs know this argument alone
        self._compiled: Any = None
        self.paths: dict[str, str] = {}

    @property
    def views(self) -> int:
        """How often each window goes through the network."""
        return len(VIEWS[self.augmentation])

    def __call__(self, image: Tensor, *, compiled: bool = False) -> Tensor:
        """Return fp32 (n, y, x, channel) on the device.

        Parameters
        ----------
        image
            uint8 (n, band, y, x), on the CPU.
        compiled
            Whether to compile for this shape, where it has not been done yet.
        """
        with torch.no_grad(), self._autocast():
            moved = image.to(self.device, non_blocking=True)
            run = self._run_compiled if compiled else self._run_plain
            return mean_of_views(run, moved, self.augmentation)

    def _run_plain(self, image: Tensor) -> Tensor:
        result: Tensor = self._plain(image.contiguous(memory_format=torch.channels_last))
        return result

    def _run_compiled(self, image: Tensor) -> Tensor:
        from torch._dynamo.exc import TorchDynamoException

        if self._compiled is None:
            self._compiled = Frozen(self._plain)
        try:
            result: Tensor = self._compiled(image.contiguous(memory_format=torch.channels_last))
        except TorchDynamoException as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(f"not compiled, {reason}", RuntimeWarning, stacklevel=2)
            self._compiled = self._plain
            return self._run_plain(image)
        return result

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def choose_device(wish: str) -> torch.device:
    """Return the device of ``auto``, ``cpu``, ``cuda`` or ``xpu``."""
    if wish == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if found is None or found.type == "mps" else found
    return torch.device(wish)


def choose_dtype(device: torch.device, wish: Precision) -> torch.dtype:
    """Return the dtype of the convolutions."""
    if wish == "auto":
        cpu = torch.cpu
        fast = (
            device.type != "cpu" or cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported()
        )
        return torch.bfloat16 if fast else torch.float32
    return torch.bfloat16 if wish == "bf16" else torch.float32


def should_compile(wish: CompileWish, device: torch.device, pixels: int) -> tuple[bool, str]:
    """Return whether to compile for a shape of batch, and why, for people.

    Parameters
    ----------
    wish
        ``auto``, ``on`` or ``off``.
    device
        Where the network runs.
    pixels
        That go through it in this shape.
    """
    if wish == "off":
        return False, "not compiled, as asked"
    lacking = missing_compiler(device)
    if lacking:
        return False, f"not compiled, {lacking}"
    if wish == "on":
        return True, "compiled, as asked"
    if device.type != "cpu":
        return False, "not compiled: on an accelerator it is --compile on that does"
    if pixels < WORTH_COMPILING:
        return False, (
            f"not compiled: {pixels / 1e6:,.0f} Mpx do not pay for it, "
            f"{WORTH_COMPILING / 1e6:,.0f} would (--compile on does it all the same)"
        )
    return True, f"compiled: {pixels / 1e6:,.0f} Mpx pay for it"
