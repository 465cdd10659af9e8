"""Where the time of a training step goes: ``python -m training.fit STORE --profile``."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median

import torch
from rich.console import Console as Terminal
from rich.table import Table
from torch import nn
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from loaders import Batch
from training.monitor.console import Console
from training.run import Group, Run

WARM_UP, STEPS, PROFILED = 3, 10, 3
OPERATORS = 8
"""Lines of the second table."""

WAIT, NORMALISE, NETWORK, LOSS = (
    "wait for the batch",
    "normalise, targets",
    "network forward",
    "loss forward",
)
NOTES = {
    WAIT: "more than some per cent: --loader-threads",
    "copy to the device": "bytes; nothing on a CPU",
    NORMALISE: "uint8 to floats, on the device",
    "averaged weights": "with --ema",
}


class Clock:
    """Seconds of every phase of the steps that training takes, one figure per step.

    Parameters
    ----------
    run
        Whose steps; ``forward`` is told apart by hooks around normalisation and network.
    """

    def __init__(self, run: Run) -> None:
        self.device = run.engine.device
        self.steps: list[dict[str, float]] = []
        self._running: dict[str, float] = {}
        self._hooks = [
            hook
            for name, module in ((NORMALISE, run.trainable.prep), (NETWORK, run.trainable.network))
            for hook in self._watch(name, module)
        ]

    def _watch(self, phase: str, module: nn.Module) -> Iterator[torch.utils.hooks.RemovableHandle]:
        def begin(*_: object) -> None:
            self._running[phase] = self._now()

        def end(*_: object) -> None:
            self.steps[-1][phase] += self._now() - self._running[phase]

        yield module.register_forward_pre_hook(begin)
        yield module.register_forward_hook(end)

    def _now(self) -> float:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count what happens inside as this phase."""
        begun = self._now()
        yield
        self.steps[-1][phase] += self._now() - begun

    def begin(self) -> None:
        """Begin a step."""
        self.steps.append(defaultdict(float))

    def end(self) -> None:
        """Take the hooks away, and the loss from what is left of the forward pass."""
        for hook in self._hooks:
            hook.remove()
        for i, step in enumerate(self.steps):
            parts = [step[phase] for phase in (NORMALISE, NETWORK)]
            whole = {LOSS: step["forward"] - sum(parts), **step}
            order = (WAIT, "copy to the device", NORMALISE, NETWORK, LOSS, *step)
            self.steps[i] = {name: whole[name] for name in order if name != "forward"}


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
    found = measure(run)
    _print_phases(found, run)
    _print_operators(found.operators)


def measure(run: Run) -> Profile:
    """Take some steps as training does, and return where their time went.

    Parameters
    ----------
    run
        With its tiles loaded; its weights change.
    """
    # torch's profiler tells the terminal when it starts and stops, unless only errors count.
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    run.module.train()
    batches = _forever(run)
    _take(run, batches, WARM_UP)
    clock = Clock(run)
    plain, run.stepper = run.stepper, replace(run.stepper, timed=clock)
    _take(run, batches, STEPS, clock)
    clock.end()
    run.stepper = plain
    with torch_profile(activities=_activities(run.engine.device)) as profiler:
        _take(run, batches, PROFILED)
    batches.close()
    steps = clock.steps
    phases = {name: median([step[name] for step in steps]) for name in steps[0]}
    return Profile(median([sum(s.values()) for s in steps]), phases, _operators(profiler))


def _forever(run: Run) -> Generator[Batch, None, None]:
    while True:
        yield from run.data.loader


def _take(run: Run, batches: Iterator[Batch], steps: int, clock: Clock | None = None) -> None:
    group = Group(run.config.optim.accumulate, 0, float(run.progress.epoch))
    for _ in range(steps):
        if clock is not None:
            clock.begin()
        run.step(islice(_waited(batches, clock), group.size), group)


def _waited(batches: Iterator[Batch], clock: Clock | None) -> Iterator[Batch]:
    while True:
        if clock is None:
            yield next(batches)
        else:
            with clock(WAIT):
                batch = next(batches)
            yield batch


def _print_phases(found: Profile, run: Run) -> None:
    compiled = {"off": "nothing", "loss": "the loss", "model": "the network and the loss"}
    table = Table("part of a step", "ms", "share", "", title_justify="left")
    total = sum(found.phases.values())
    for name, seconds in found.phases.items():
        share = seconds / max(total, 1e-9)
        table.add_row(name, f"{1e3 * seconds:.1f}", f"{share:.1%}", NOTES.get(name, ""))
    terminal = Terminal(width=100)
    terminal.print(table)
    images = run.data.loader.schedule.batch_size * run.config.optim.accumulate
    terminal.print(
        f"a step of {images} images takes {1e3 * found.seconds:.0f} ms: "
        f"{images / found.seconds:.1f} images/s "
        f"(medians of {STEPS} steps; compiled: {compiled[run.engine.compile_mode]})"
    )


def _activities(device: torch.device) -> list[ProfilerActivity]:
    other = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}.get(device.type)
    return [ProfilerActivity.CPU, *([other] if other else [])]


def _operators(profiler: torch_profile) -> dict[str, tuple[float, float]]:
    return {
        row.key: (
            (row.self_cpu_time_total + row.self_device_time_total) / 1e6 / PROFILED,
            row.count / PROFILED,
        )
        for row in profiler.key_averages()
        if row.self_cpu_time_total > 0
    }


def _print_operators(operators: dict[str, tuple[float, float]]) -> None:
    total = sum(seconds for seconds, _ in operators.values())
    table = Table("operator", "share", "calls per step")
    for name in sorted(operators, key=lambda key: -operators[key][0])[:OPERATORS]:
        seconds, calls = operators[name]
        table.add_row(name[:60], f"{seconds / total:.1%}", f"{calls:.0f}")
    Terminal(width=100).print(table)
