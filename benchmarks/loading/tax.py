"""What loading costs a training step: its processor time, and how long the step takes with it.

The step is that of a ResNet34-UNet in bf16 on the CPU, forward, loss, backward, AdamW, on windows
of 256 pixels. It runs with the loader, with one batch over and over, and with a random tensor that
needs no preparation: what is lost from the last to the first is what loading takes away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.common import Result, interleave, ratios
from benchmarks.loading.data import Sizes
from benchmarks.loading.throughput import cpu_seconds, drain
from benchmarks.loading.unet import ResNet34UNet
from loaders import Batch, BatchLoader, DevicePrep, RamTiles

SHARE = 0.01

_LONG = 1 << 12
"""Windows a tile in an epoch: no step is to wait for the start of one."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Some training steps: seconds and processor seconds of each, on average."""

    seconds: float
    cpu_seconds: float


class Trainer:
    """A model, and what a step needs.

    Parameters
    ----------
    prep
        Bytes to image and target.
    bands
        Of the image.
    """

    def __init__(self, prep: DevicePrep, bands: int) -> None:
        torch.manual_seed(0)
        self.prep = prep
        model = ResNet34UNet(bands, prep.target.channels)
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # its stub lacks this form
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)

    def step(self, image: Tensor, target: Tensor, valid: Tensor) -> None:
        """Take one step."""
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(image)
        loss = functional.binary_cross_entropy_with_logits(logits.float(), target, reduction="none")
        torch.autograd.backward((loss.mean(dim=1) * valid).mean())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def on(self, batch: Batch) -> None:
        """Prepare a batch and take a step on it."""
        self.step(*self.prep(batch))


def _run(step: Callable[[], None], steps: int) -> Steps:
    cpu, start = cpu_seconds(), time.perf_counter()
    for _ in range(steps):
        step()
    return Steps((time.perf_counter() - start) / steps, (cpu_seconds() - cpu) / steps)


def measure_tax(
    result: Result,
    store: Path,
    tiles: RamTiles,
    *,
    sizes: Sizes,
    steps: int,
    seconds: float,
    repeats: int,
    announce: Callable[[str], None],
) -> None:
    """Record the loader's share of a step, and the step with and without it."""
    batch_size, crop = sizes.step_batch, sizes.crop
    loader = BatchLoader(tiles, batch_size, crop=crop, augment="d4", crops_per_tile=_LONG)
    short = BatchLoader(tiles, batch_size, crop=crop, augment="d4", crops_per_tile=16)
    prep = DevicePrep.from_store(store, targets="bins")
    trainer = Trainer(prep, len(tiles.bands))
    batches = iter(loader)
    cached = next(batches)
    ready = _synthetic(prep, cached)
    cases: dict[str, Callable[[], Steps]] = {
        "loader": partial(_run, lambda: trainer.on(next(batches)), steps),
        "cached": partial(_run, lambda: trainer.on(cached), steps),
        "synthetic": partial(_run, lambda: trainer.step(*ready), steps),
    }
    for name, run in cases.items():
        announce(f"training step, first run: {name}")
        run()
    runs = interleave(cases, repeats, lambda text: announce(f"training step, {text}"))
    _close(batches)
    announce("loader alone")
    alone = [drain(short, seconds) for _ in range(repeats)]
    _record(result, runs, [r.cpu_seconds / r.samples * batch_size for r in alone])


def _synthetic(prep: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return random tensors like those of a prepared batch."""
    image, target, valid = prep(batch)
    return torch.randn_like(image), torch.rand_like(target).round(), torch.ones_like(valid)


def _close(batches: Iterator[Batch]) -> None:
    """End the threads of an epoch that is left in the middle."""
    close = getattr(batches, "close", None)
    if close is not None:
        close()


def _record(result: Result, runs: dict[str, list[Steps]], loader_cpu: list[float]) -> None:
    for name, found in runs.items():
        result.add(f"tax.step.{name}", "ms", [s.seconds * 1e3 for s in found])
        result.add(f"tax.step.{name}.cpu", "ms of one core", [s.cpu_seconds * 1e3 for s in found])
    result.add("tax.loader.cpu", "ms of one core a batch", [s * 1e3 for s in loader_cpu])
    result.add(
        "tax.share",
        "",
        ratios(loader_cpu, [s.cpu_seconds for s in runs["cached"]]),
        at_most=None if result.settings["quick"] else SHARE,
        note="processor time of filling a batch over that of a step on a cached one",
    )
    for name in ("cached", "synthetic"):
        over = ratios(*([s.seconds for s in runs[case]] for case in ("loader", name)))
        result.add(f"tax.over_{name}", "", over, note=f"step with the loader over step {name}")
