"""The step of `training.fit` with other batch sizes, other feeds, and taken apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.child import ask
from benchmarks.common import Result
from benchmarks.fitting.rungs import WORKER

SIZES = (1, 2, 4, 8, 16)
QUICK_SIZES = (1, 2)


def measure_sizes(
    result: Result,
    task: Mapping[str, Any],
    *,
    sizes: Sequence[int],
    repeats: int,
    announce: Callable[[str], None],
) -> None:
    """Record the rate of every batch size."""
    announce(f"batch sizes {', '.join(map(str, sizes))}")
    given = {key: value for key, value in task.items() if key != "batch_size"}
    answers = ask(WORKER, {**given, "do": "sizes", "repeats": repeats, "of": list(sizes)})
    for name, paces in answers.items():
        rates = [int(name) * p["steps"] / p["seconds"] for p in paces]
        result.add(f"sizes.{name}.rate", "images/s", rates)
    result.settings["sizes"] = list(sizes)


def measure_feeds(
    result: Result,
    task: Mapping[str, Any],
    *,
    counts: Sequence[int],
    repeats: int,
    announce: Callable[[str], None],
) -> None:
    """Record the rate of every feed, and the share of time that steps waited for it."""
    announce("loader threads and workers")
    answers = ask(WORKER, {**task, "do": "feeding", "repeats": repeats, "of": list(counts)})
    for name, paces in answers.items():
        rates = [task["batch_size"] * p["steps"] / p["seconds"] for p in paces]
        result.add(f"feeds.{name}.rate", "images/s", rates)
        result.add(f"feeds.{name}.waited", "", [p["waited"] / p["seconds"] for p in paces])
    result.settings["feeds"] = list(answers)


def measure_breakdown(
    result: Result, task: Mapping[str, Any], *, steps: int, announce: Callable[[str], None]
) -> None:
    """Record where the time of a step goes, as milliseconds and shares."""
    announce("where a step goes")
    given = {key: value for key, value in task.items() if key != "seconds"}
    found = ask(WORKER, {**given, "do": "breakdown", "steps": steps})
    whole = sum(found.values())
    for kind, milliseconds in sorted(found.items(), key=lambda item: -item[1]):
        result.add(f"step.{kind}", "ms", [milliseconds])
        result.add(f"step.{kind}.share", "", [milliseconds / whole])
    result.settings["step"] = sorted(found, key=lambda kind: -found[kind])
