"""Time breakdown of a training step: ``geoprep fit STORE --profile``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat

from rich.table import Table

from geoprep.executors.terminal import Terminal
from training.engine.native import wait_for
from training.model.trainable import AVERAGE, COPY, NORMALISE, WAIT
from training.run.plan import time_step
from training.run.step import train_step
from training.run.timing import StepTimer
from training.run.trainer import Trainer

PROFILED = 5
NOTES = {
    WAIT: "above a few per cent: increase `loader_threads`",
    COPY: "uint8; none on a CPU",
    NORMALISE: "uint8 to float, on the device",
    AVERAGE: "of `ema`",
}
COMPILED = {"off": "nothing", "loss": "the loss", "model": "model and loss"}


def profile(trainer: Trainer) -> None:
    """Run some training steps and print their time breakdown. Nothing is saved.

    A step that is recorded has no phases, since the host starts it at once.
    """
    spell, state, terminal = trainer.report.spell, trainer.state, Terminal(width=100)
    steps, images = StepTimer.TIMED, trainer.images_per_step
    trainer.report.line(f"timing {steps + PROFILED} steps")
    seconds = time_step(trainer)
    terminal.print(
        f"a step of {images} images takes {1e3 * seconds:.0f} ms: {images / seconds:.1f} images/s "
        f"(mean of {steps} steps; compiled: {COMPILED[trainer.engine.compile_mode]})"
    )
    if trainer.engine.captures:
        terminal.print(spell("recorded steps have no phases: use `capture` off to see them"))
        return
    module, device = trainer.module.train(), trainer.engine.device
    batches, count = chain.from_iterable(repeat(trainer.loader)), trainer.config.accumulate
    phases = defaultdict[str, float](float)

    @contextmanager
    def timed(phase: str) -> Iterator[None]:
        """Add up the seconds of a phase, until the device has finished its work."""
        begun = time.perf_counter()
        yield
        wait_for(device)
        phases[phase] += time.perf_counter() - begun

    state.timed = trainer.trainable.timed = timed
    for _ in range(PROFILED):
        train_step(module, batches, state, count)
    table = Table("phase of a step", "ms", "share", "", title_justify="left")
    for name, total in phases.items():
        share = total / sum(phases.values())
        note = spell(NOTES.get(name, ""))
        table.add_row(name, f"{1e3 * total / PROFILED:.1f}", f"{share:.1%}", note)
    terminal.print(table)
