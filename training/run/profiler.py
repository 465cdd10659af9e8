"""Time breakdown of a training step: ``geoprep fit STORE --profile``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat

from rich.table import Table
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from geoprep.executors.terminal import Terminal
from training.engine.native import wait_for
from training.model.trainable import AVERAGE, COPY, NORMALISE, WAIT
from training.run.plan import time_step
from training.run.step import train_step
from training.run.timing import StepTimer
from training.run.trainer import Trainer

PROFILED = 5
OPERATORS = 8
"""Rows of the table of operators."""

NOTES = {
    WAIT: "above a few per cent: increase `loader_threads`",
    COPY: "uint8; none on a CPU",
    NORMALISE: "uint8 to float, on the device",
    AVERAGE: "of `ema`",
}
COMPILED = {"off": "nothing", "loss": "the loss", "model": "model and loss"}


def profile(trainer: Trainer) -> None:
    """Run some training steps and print their time breakdown. Nothing is saved.

    A recorded step has no phases, since the host starts it at once: its kernels are printed.
    """
    spell, state = trainer.report.spell, trainer.state
    steps = StepTimer.TIMED
    trainer.report.line(f"timing {steps + PROFILED} steps, then {PROFILED} with torch's profiler")
    seconds = time_step(trainer)
    module, device = trainer.module.train(), trainer.engine.device
    batches, count = chain.from_iterable(repeat(trainer.loader)), trainer.config.accumulate
    phases = defaultdict[str, float](float)
    other = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}.get(device.type)

    @contextmanager
    def timed(phase: str) -> Iterator[None]:
        """Add up the seconds of a phase, until the device has finished its work."""
        begun = time.perf_counter()
        yield
        wait_for(device)
        phases[phase] += time.perf_counter() - begun

    state.timed = trainer.trainable.timed = timed
    # Not under the profiler, where steps would allocate new memory.
    for _ in range(0 if trainer.engine.captures else PROFILED):
        train_step(module, batches, state, count)
    state.timed = trainer.trainable.timed = record_function
    with torch_profile(activities=[ProfilerActivity.CPU, *([other] if other else [])]) as profiler:
        for _ in range(PROFILED):
            trainer.step(module, batches, state, count)

    rows = profiler.key_averages()
    what = "kernel" if trainer.engine.captures else "operator"
    if what == "kernel":
        rows = [row for row in rows if row.device_type.name != "CPU"] or rows
    images = trainer.images_per_step
    terminal = Terminal(width=100)
    table = Table("phase of a step", "ms", "share", "", title_justify="left")
    for name, total in phases.items():
        share = total / max(sum(phases.values()), 1e-9)
        note = spell(NOTES.get(name, ""))
        table.add_row(name, f"{1e3 * total / PROFILED:.1f}", f"{share:.1%}", note)
    if phases:
        terminal.print(table)
    terminal.print(
        f"a step of {images} images takes {1e3 * seconds:.0f} ms: {images / seconds:.1f} images/s "
        f"(mean of {steps} steps; compiled: {COMPILED[trainer.engine.compile_mode]})"
    )
    which = "self_cpu_time_total" if other is None else "self_device_time_total"
    found = {row.key: (getattr(row, which), row.count) for row in rows if row.key not in phases}
    total = max(sum(spent for spent, _ in found.values()), 1e-9)
    table = Table(what, "share", "calls per step")
    for name, (spent, calls) in sorted(found.items(), key=lambda one: -one[1][0])[:OPERATORS]:
        table.add_row(name[:60], f"{spent / total:.1%}", f"{calls / PROFILED:.0f}")
    terminal.print(table)
