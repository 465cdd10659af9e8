"""Where the time of a training step goes: ``python -m training.fit STORE --profile``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, repeat
from statistics import median

import torch
from rich.console import Console as Terminal
from rich.table import Table
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from training.module import AVERAGE, COPY, NORMALISE, WAIT
from training.monitor.console import Console
from training.run import Group, Run

WARM_UP, STEPS, PROFILED = 3, 10, 3
OPERATORS = 8
"""Lines of the second table."""

NOTES = {
    WAIT: "more than some per cent: --loader-threads",
    COPY: "bytes; nothing on a CPU",
    NORMALISE: "uint8 to floats, on the device",
    AVERAGE: "with --ema",
}


class Clock:
    """Seconds of every phase of a step.

    Parameters
    ----------
    device
        Which is waited for before and after each of them.
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
        """Count what happens inside as this phase."""
        begun = self._now()
        yield
        self.phases[phase] += self._now() - begun


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of a step goes.

    Attributes
    ----------
    seconds
        Per step, a median.
    phases
        Part of a step to seconds, medians.
    operators
        Operator to seconds and calls per step under torch's profiler, without those it calls.
    """

    seconds: float
    phases: dict[str, float]
    operators: dict[str, tuple[float, float]]


def profile(run: Run, console: Console) -> None:
    """Take some steps as training does, and print where their time went. Nothing is saved.

    Parameters
    ----------
    run
        With its tiles loaded; its weights change.
    console
        Says what is going on.
    """
    console.line(f"taking {WARM_UP + STEPS} steps, then {PROFILED} under torch's profiler")
    found, terminal = measure(run), Terminal(width=100)
    phases = Table("part of a step", "ms", "share", "", title_justify="left")
    total = max(sum(found.phases.values()), 1e-9)
    for name, seconds in found.phases.items():
        share = f"{seconds / total:.1%}"
        phases.add_row(name, f"{1e3 * seconds:.1f}", share, NOTES.get(name, ""))
    terminal.print(phases)
    compiled = {"off": "nothing", "loss": "the loss", "model": "the network and the loss"}
    images = run.loader.schedule.batch_size * run.config.accumulate
    terminal.print(
        f"a step of {images} images takes {1e3 * found.seconds:.0f} ms: "
        f"{images / found.seconds:.1f} images/s "
        f"(medians of {STEPS} steps; compiled: {compiled[run.engine.compile_mode]})"
    )
    operators = Table("operator", "share", "calls per step")
    total = sum(seconds for seconds, _ in found.operators.values())
    slowest = sorted(found.operators.items(), key=lambda item: -item[1][0])
    for name, (seconds, calls) in slowest[:OPERATORS]:
        operators.add_row(name[:60], f"{seconds / total:.1%}", f"{calls:.0f}")
    terminal.print(operators)


def measure(run: Run) -> Profile:
    """Take some steps as training does, and return where their time went.

    Parameters
    ----------
    run
        With its tiles loaded; its weights change.
    """
    run.module.train()
    batches = chain.from_iterable(repeat(run.loader))
    group = Group(run.config.accumulate, 0, float(run.progress.epoch))
    for _ in range(WARM_UP):
        run.step(batches, group)
    clock, steps = Clock(run.engine.device), []
    with _timed(run, clock):
        for _ in range(STEPS):
            clock.phases = defaultdict(float)
            run.step(batches, group)
            steps.append(clock.phases)
    other = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}.get(run.engine.device.type)
    with torch_profile(activities=[ProfilerActivity.CPU, *([other] if other else [])]) as profiler:
        for _ in range(PROFILED):
            run.step(batches, group)
    operators = {
        row.key: (
            (row.self_cpu_time_total + row.self_device_time_total) / 1e6 / PROFILED,
            row.count / PROFILED,
        )
        for row in profiler.key_averages()
        if row.self_cpu_time_total > 0
    }
    phases = {name: median(step[name] for step in steps) for name in steps[0]}
    return Profile(median(sum(step.values()) for step in steps), phases, operators)


@contextmanager
def _timed(run: Run, clock: Clock) -> Iterator[None]:
    """Let a clock time the phases of a run's steps for a while."""
    plain, run.stepper = run.stepper, replace(run.stepper, timed=clock)
    run.trainable.timed = clock
    yield
    run.stepper, run.trainable.timed = plain, record_function
