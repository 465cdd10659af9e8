"""Time breakdown of a training step: ``python -m training.fit STORE --profile``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from statistics import median

import torch
from rich.console import Console as Terminal
from rich.table import Table
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from loaders import Batch
from training.losses import AVERAGE, COPY, NORMALISE, WAIT
from training.monitor.console import Console
from training.state import BatchGroup, Run, StepResult

TrainingStep = Callable[[Run, Iterator[Batch], BatchGroup], StepResult]
"""`training.loop.training_step`."""

WARM_UP, STEPS, PROFILED = 3, 10, 3
OPERATORS = 8
"""Rows of the table of operators."""

NOTES = {
    WAIT: "above a few per cent: increase `loader_threads`",
    COPY: "uint8; none on a CPU",
    NORMALISE: "uint8 to float, on the device",
    AVERAGE: "of `ema`",
}


class Clock:
    """Measures the seconds of each phase of a step.

    Parameters
    ----------
    device
        Device to synchronise before and after each phase.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.phases: dict[str, float] = defaultdict(float)

    def _now(self) -> float:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time inside the context to a phase."""
        begun = self._now()
        yield
        self.phases[phase] += self._now() - begun


@dataclass(frozen=True, slots=True)
class Profile:
    """Time breakdown of a step.

    Attributes
    ----------
    seconds
        Median seconds of a step.
    phases
        Median seconds of each phase.
    operators
        Seconds and calls per step of each operator under torch's profiler, without the operators
        that it calls.
    """

    seconds: float
    phases: dict[str, float]
    operators: dict[str, tuple[float, float]]


def profile(run: Run, console: Console, step: TrainingStep) -> None:
    """Run some training steps and print their time breakdown. Nothing is saved.

    Parameters
    ----------
    run
        Run with its tiles loaded; its weights change.
    console
        Output for messages.
    step
        `training.loop.training_step`.
    """
    console.line(f"profiling {WARM_UP + STEPS} steps, then {PROFILED} with torch's profiler")
    measured, terminal = measure(run, step), Terminal(width=100)
    phases = Table("phase of a step", "ms", "share", "", title_justify="left")
    total = max(sum(measured.phases.values()), 1e-9)
    for name, seconds in measured.phases.items():
        share = f"{seconds / total:.1%}"
        phases.add_row(name, f"{1e3 * seconds:.1f}", share, console.spell(NOTES.get(name, "")))
    terminal.print(phases)
    compiled = {"off": "nothing", "loss": "the loss", "model": "the model and the loss"}
    images = run.loader.schedule.batch_size * run.config.accumulate
    terminal.print(
        f"a step of {images} images takes {1e3 * measured.seconds:.0f} ms: "
        f"{images / measured.seconds:.1f} images/s "
        f"(medians of {STEPS} steps; compiled: {compiled[run.engine.compile_mode]})"
    )
    operators = Table("operator", "share", "calls per step")
    total = sum(seconds for seconds, _ in measured.operators.values())
    slowest = sorted(measured.operators.items(), key=lambda item: -item[1][0])
    for name, (seconds, calls) in slowest[:OPERATORS]:
        operators.add_row(name[:60], f"{seconds / total:.1%}", f"{calls:.0f}")
    terminal.print(operators)


def measure(run: Run, step: TrainingStep) -> Profile:
    """Run some training steps and return their time breakdown.

    Parameters
    ----------
    run
        Run with its tiles loaded; its weights change.
    step
        `training.loop.training_step`.
    """
    run.module.train()
    batches = chain.from_iterable(repeat(run.loader))
    group = BatchGroup(run.config.accumulate, 0, float(run.progress.epoch))
    for _ in range(WARM_UP):
        step(run, batches, group)
    clock, recorded = Clock(run.engine.device), []
    with _timed(run, clock):
        for _ in range(STEPS):
            clock.phases = defaultdict(float)
            step(run, batches, group)
            recorded.append(clock.phases)
    other = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}.get(run.engine.device.type)
    with torch_profile(activities=[ProfilerActivity.CPU, *([other] if other else [])]) as profiler:
        for _ in range(PROFILED):
            step(run, batches, group)
    operators = {
        row.key: (
            (row.self_cpu_time_total + row.self_device_time_total) / 1e6 / PROFILED,
            row.count / PROFILED,
        )
        for row in profiler.key_averages()
        if row.self_cpu_time_total > 0
    }
    phases = {name: median(phase[name] for phase in recorded) for name in recorded[0]}
    return Profile(median(sum(phase.values()) for phase in recorded), phases, operators)


@contextmanager
def _timed(run: Run, clock: Clock) -> Iterator[None]:
    """Time the phases of a run's steps inside the context."""
    run.timed = run.trainable.timed = clock
    yield
    run.timed = run.trainable.timed = record_function
