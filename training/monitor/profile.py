"""Where the time of a training step goes: ``python -m training.fit STORE --profile``."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from loaders import Batch
from training.losses import LossParts
from training.monitor.console import Watch
from training.run import Run

WARM_UP, STEPS = 3, 10
OPERATORS = 8
"""Lines of the second table."""

PHASES = {
    "wait for the batch": "more than some per cent: --loader-threads",
    "copy to the device": "bytes; nothing on a CPU",
    "normalise, targets": "uint8 to floats, on the device",
    "network forward": "",
    "loss forward": "compiled unless --compile off",
    "backward": "",
    "clip, optimizer": "fused where torch has it",
    "averaged weights": "only with --ema",
}


class _Clock:
    """Seconds of every phase, one figure a step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, list[float]] = {name: [] for name in PHASES}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        self.seconds[phase].append(time.perf_counter() - begun)


def profile(run: Run, watch: Watch) -> None:
    """Take some steps part by part, and print where their time went. Nothing is saved.

    Parameters
    ----------
    run
        With its tiles loaded; its weights change.
    watch
        Says what is going on.
    """
    watch.line(f"taking {WARM_UP + STEPS} steps part by part, then {STEPS // 3} under the profiler")
    batches = _forever(run)
    for _ in range(WARM_UP):
        _step(run, batches, _Clock(run.engine.device))
    clock = _Clock(run.engine.device)
    for _ in range(STEPS):
        _step(run, batches, clock)
    _print_phases(clock, int(run.data.loader.schedule.batch_size))
    with torch_profile(activities=_activities(run.engine.device)) as profiler:
        for _ in range(STEPS // 3):
            _step(run, batches, _Clock(run.engine.device))
    _print_operators(profiler)
    batches.close()


def _forever(run: Run) -> Generator[Batch, None, None]:
    while True:
        yield from run.data.loader


def _step(run: Run, batches: Iterator[Batch], clock: _Clock) -> None:
    trainable, engine, optim = run.trainable.train(), run.engine, run.config.optim
    with clock("wait for the batch"):
        host_batch = next(batches)
    with clock("copy to the device"):
        batch = host_batch.to(engine.device)
    with engine.autocast():
        with clock("normalise, targets"):
            ready = trainable.prep(batch)
        with clock("network forward"):
            logits: Tensor = trainable.network(ready.image)
        with clock("loss forward"):
            parts: LossParts = trainable.loss(logits, ready.target, ready.valid)
    with clock("backward"):
        parts.total.backward()  # type: ignore[no-untyped-call]  # torch's
    with clock("clip, optimizer"):
        if optim.clip is not None:
            clip_grad_norm_(trainable.parameters(), optim.clip)
        run.optimizer.step()
        run.optimizer.zero_grad()
    with clock("averaged weights"):
        if run.ema is not None:
            run.ema.update(1)


def _print_phases(clock: _Clock, batch_size: int) -> None:
    whole = [sum(parts) for parts in zip(*clock.seconds.values(), strict=True)]
    table = Table("part of a step", "ms", "share", "", title_justify="left")
    total = sum(median(seconds) for seconds in clock.seconds.values())
    for name, seconds in clock.seconds.items():
        share = median(seconds) / max(total, 1e-9)
        table.add_row(name, f"{1e3 * median(seconds):.1f}", f"{share:.1%}", PHASES[name])
    console = Console(width=100)
    console.print(table)
    rate = batch_size / median(whole)
    console.print(
        f"a step of {batch_size} images takes {1e3 * median(whole):.0f} ms: {rate:.1f} images/s "
        f"(medians of {STEPS} steps)"
    )


def _activities(device: torch.device) -> list[ProfilerActivity]:
    other = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}.get(device.type)
    return [ProfilerActivity.CPU, *([other] if other else [])]


def _print_operators(profiler: torch_profile) -> None:
    rows = [row for row in profiler.key_averages() if row.self_cpu_time_total > 0]
    times = {row.key: row.self_cpu_time_total + row.self_device_time_total for row in rows}
    total = sum(times.values())
    table = Table("operator", "share", "calls a step")
    calls = {row.key: row.count for row in rows}
    for name in sorted(times, key=lambda key: -times[key])[:OPERATORS]:
        table.add_row(name[:60], f"{times[name] / total:.1%}", f"{calls[name] / (STEPS // 3):.0f}")
    Console(width=100).print(table)
