"""Where the time of a training step goes, by kind of operation."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.fitting.stepper import Stepper
from loaders import Batch

PHASE = "phase: "

WHOLE = {"data": "waiting for data", "clip": "gradient clip", "optimizer": "optimizer"}
"""Phases of a step that are of one kind as a whole."""

KINDS = (
    ("convolutions", r"convolution|conv2d|conv_transpose"),
    ("batch norm", r"batch_?norm"),
    ("loss", r"compiled|fxgraph|torchdynamo|graph_\d"),
    ("activations", r"relu|threshold|clamp_min"),
    ("casts and copies", r"copy|aten::to\b|contiguous|cat\b|clone"),
    ("other elementwise", r"aten::(add|mul|sub|div|sum|neg|exp|log|sigmoid|abs|square|pow)"),
    ("pooling", r"pool"),
)
"""Kind to the names of its operations; the first that fits counts."""

REST = "rest"


def profile_steps(stepper: Stepper, batches: Iterator[Batch], steps: int) -> dict[str, float]:
    """Return milliseconds a step by kind of operation.

    Time is that of the thread that runs the step: while it computes in several threads it waits
    for them. What no operation accounts for, Python among it, is in `REST`.

    Parameters
    ----------
    stepper
        Warmed up.
    batches
        What it learns from.
    steps
        How many are watched.
    """
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        pace = stepper.run(batches, 0, steps)
    found: dict[str, float] = defaultdict(float)
    for event in watched.events() or ():
        phase = _phase(event)
        if phase is not None:
            found[_kind(event.name, phase)] += event.self_cpu_time_total / 1e3 / steps
    found[REST] += pace.seconds * 1e3 / steps - sum(found.values())
    return dict(found)


def _phase(event: Any) -> str | None:  # noqa: ANN401 - torch's event
    """Return the phase of the step that an operation is part of."""
    while event is not None:
        if event.name.startswith(PHASE):
            return str(event.name.removeprefix(PHASE))
        event = event.cpu_parent
    return None


def _kind(name: str, phase: str) -> str:
    if phase in WHOLE:
        return WHOLE[phase]
    lowered = name.lower()
    kinds = (kind for kind, pattern in KINDS if re.search(pattern, lowered))
    return next(kinds, REST)
