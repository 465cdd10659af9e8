"""Time breakdown of a training step: ``python -m training.fit STORE --profile``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
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
from training.engine import CompileMode
from training.model import AVERAGE, COPY, NORMALISE, WAIT
from training.monitor.console import Console
from training.run import BatchGroup, Run, StepResult

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


def timing_event(device: torch.device) -> torch.Event:
    """Return an event that the current stream of a device has passed when it is recorded."""
    event = torch.Event(device, enable_timing=True)
    event.record()
    return event


class Clock:
    """Measures the seconds of each phase of some steps, on the CPU and on the device.

    On an accelerator the CPU only starts a phase's work. Events in the stream measure how long the
    device takes for it; the CPU waits for them once, after the last step.

    Parameters
    ----------
    device
        Device of the steps.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cpu: list[dict[str, float]] = []
        self._events: list[list[tuple[str, torch.Event, torch.Event]]] = []

    def next_step(self) -> None:
        """Begin a step; the phases until the next call belong to it."""
        self._cpu.append(defaultdict(float))
        self._events.append([])

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time inside the context to a phase of the step."""
        on_cpu = self.device.type == "cpu"
        first = None if on_cpu else timing_event(self.device)
        begun = time.perf_counter()
        yield
        self._cpu[-1][phase] += time.perf_counter() - begun
        if first is not None:
            self._events[-1].append((phase, first, timing_event(self.device)))

    def cpu(self) -> dict[str, float]:
        """Return the median seconds of each phase on the CPU."""
        return _medians(self._cpu)

    def on_device(self) -> dict[str, float]:
        """Return the median seconds of each phase on the device; empty if that is the CPU."""
        if self.device.type == "cpu":
            return {}
        torch.accelerator.synchronize(self.device)
        steps: list[dict[str, float]] = []
        for events in self._events:
            steps.append(defaultdict(float))
            for phase, first, last in events:
                steps[-1][phase] += first.elapsed_time(last) / 1e3
        return _medians(steps)

    def step_seconds(self) -> float:
        """Return the median seconds of a step, on the device if there is one.

        On a device that is the time from the first event of a step to that of the next one, so
        that work of the CPU that the device waits for counts once.
        """
        if self.device.type == "cpu":
            return median(sum(phases.values()) for phases in self._cpu)
        torch.accelerator.synchronize(self.device)
        starts = [events[0][1] for events in self._events]
        ends = [*starts[1:], self._events[-1][-1][2]]
        return median(
            start.elapsed_time(end) / 1e3 for start, end in zip(starts, ends, strict=True)
        )


def _medians(steps: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each value over all steps."""
    return {name: median(step[name] for step in steps) for name in steps[0]}


@dataclass(frozen=True, slots=True)
class Profile:
    """Time breakdown of a step.

    Attributes
    ----------
    seconds
        Median seconds of a step.
    cpu, device
        Median seconds of each phase on the CPU and on the device. The second is empty if the CPU
        trains. Both run at the same time: do not add them.
    operators
        Seconds on the CPU and on the device, and calls, per step of each operator under torch's
        profiler, without the operators that it calls.
    """

    seconds: float
    cpu: dict[str, float]
    device: dict[str, float]
    operators: dict[str, tuple[float, float, float]]

    def phase_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield name, milliseconds (of the CPU and of the device), and share of each phase."""
        decisive = self.device or self.cpu
        total = max(sum(decisive.values()), 1e-9)
        for name, seconds in self.cpu.items():
            columns = [seconds, *([self.device[name]] if self.device else [])]
            times = (f"{1e3 * value:.1f}" for value in columns)
            yield name, *times, f"{decisive[name] / total:.1%}"

    def operator_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield name, shares (of the CPU's and of the device's time), and calls of the slowest."""
        which = (1, 0) if self.device else (0,)
        totals = [max(sum(row[i] for row in self.operators.values()), 1e-9) for i in (0, 1)]
        slowest = sorted(self.operators.items(), key=lambda item: -item[1][which[0]])
        for name, row in slowest[:OPERATORS]:
            shares = (f"{row[i] / totals[i]:.1%}" for i in sorted(which))
            yield name[:60], *shares, f"{row[2]:.0f}"


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
    kinds = ("CPU ms", f"{run.engine.device.type} ms") if measured.device else ("ms",)
    phases = Table("phase of a step", *kinds, "share", "", title_justify="left")
    for name, *figures in measured.phase_rows():
        phases.add_row(name, *figures, console.spell(NOTES.get(name, "")))
    terminal.print(phases)
    images = run.loader.schedule.batch_size * run.config.accumulate
    terminal.print(
        f"a step of {images} images takes {1e3 * measured.seconds:.0f} ms: "
        f"{images / measured.seconds:.1f} images/s "
        f"(medians of {STEPS} steps; compiled: {_compiled(run.engine.compile_mode)})"
    )
    if measured.device:
        terminal.print(
            f"The CPU takes {1e3 * sum(measured.cpu.values()):.0f} ms to start the work of a step, "
            "while the device computes: the columns overlap. Shares are those of the device."
        )
    kinds = ("CPU share", f"{run.engine.device.type} share") if measured.device else ("share",)
    operators = Table("operator", *kinds, "calls per step")
    for row in measured.operator_rows():
        operators.add_row(*row)
    terminal.print(operators)


def print_settings(
    rates: Iterable[tuple[str, float | None]], images: int, console: Console
) -> None:
    """Print the rate of a step by setting, each as soon as it is measured.

    Parameters
    ----------
    rates
        Name of a setting; images per second, None if its step does not fit into memory.
    images
        Images per step.
    console
        Output for messages.
    """
    for name, rate in rates:
        found = "does not fit into memory"
        if rate is not None:
            found = f"{1e3 * images / rate:8.1f} ms per step, {rate:8.1f} images/s"
        console.line(f"{name:<42} {found}")


def _compiled(mode: CompileMode) -> str:
    """Return the parts of a step that are compiled, in words."""
    if mode in ("off", "loss"):
        return "nothing" if mode == "off" else "the loss"
    return "the model and the loss" + (f", {mode}" if mode != "model" else "")


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
    clock = Clock(run.engine.device)
    with _timed(run, clock):
        for _ in range(STEPS):
            clock.next_step()
            step(run, batches, group)
    seconds, cpu, device = clock.step_seconds(), clock.cpu(), clock.on_device()
    other = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}.get(run.engine.device.type)
    with torch_profile(activities=[ProfilerActivity.CPU, *([other] if other else [])]) as profiler:
        for _ in range(PROFILED):
            step(run, batches, group)
    operators = {
        row.key: (
            row.self_cpu_time_total / 1e6 / PROFILED,
            row.self_device_time_total / 1e6 / PROFILED,
            row.count / PROFILED,
        )
        for row in profiler.key_averages()
        if row.self_cpu_time_total > 0
    }
    return Profile(seconds, cpu, device, operators)


@contextmanager
def _timed(run: Run, clock: Clock) -> Iterator[None]:
    """Time the phases of a run's steps inside the context."""
    run.timed = run.trainable.timed = clock
    yield
    run.timed = run.trainable.timed = record_function
