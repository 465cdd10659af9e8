"""The step's figures: every rung in a process of its own, batch sizes, and where its time goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.child import ChildError, ask
from benchmarks.common import Result, announce, interleave, ratios
from benchmarks.fitting.rungs import (
    CEILING,
    FIT,
    FIT_FP32,
    IPEX,
    KEPT,
    PLAIN,
    RUNGS,
    WORKER,
    Rung,
)
from training.engine.native import missing_compiler

OVER = {
    "over_fp32": (KEPT.name, 2.0, "fit over fp32 with the same allocator"),
    "over_plain": (PLAIN.name, None, "fit over fp32 with every default, the allocator's too"),
    "over_fit_fp32": (FIT_FP32.name, None, "bf16 over fp32, all else being fit's"),
    "over_ipex": (IPEX.name, 1.0, "the native engine over Intel's extension"),
    "share": (CEILING, 0.8, "of the rate of the step's convolutions alone"),
}
"""Figure to the rung that fit is put over, what is promised, and a note."""


def chosen_rungs(result: Result) -> list[Rung]:
    """Return the rungs that can be climbed here; a note says which cannot and why."""
    import torch

    lacking = missing_compiler(torch.device("cpu"))
    if lacking:
        result.notes.append(f"nothing is compiled, {lacking}")
    if IPEX.python and IPEX.python.exists():
        return list(RUNGS)
    result.notes.append("no comparison with IPEX: `make ipex` makes its environment")
    return [rung for rung in RUNGS if rung != IPEX]


def measure_ladder(result: Result, store: str, rungs: Sequence[Rung]) -> None:
    """Record every rung, from the bottom up, the bound, and their ratios."""
    of = result.settings
    task = {"store": store, **{name: of[name] for name in ("batch_size", "crop", "seconds")}}
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        rung.name: partial(climb, task, rung) for rung in rungs if _works(result, task, rung)
    }
    cases[CEILING] = partial(ask, WORKER, {**task, "do": "ceiling"})
    _record(result, interleave(cases, of["repeats"]))
    for name, (under, at_least, note) in OVER.items():
        rates = [result.figures.get(f"ladder.{rung}.rate") for rung in (FIT.name, under)]
        if rates[0] and rates[1]:
            values = ratios(rates[0].values, rates[1].values)
            result.add(f"ladder.{name}", "", values, at_least=at_least, note=note)


def _works(result: Result, task: Mapping[str, Any], rung: Rung) -> bool:
    """Try a rung that needs more than torch: a compiler, which keeps what it made.

    One that fails is left out with a note.
    """
    if rung not in (FIT, IPEX):
        return True
    announce(f"first run: {rung.title}")
    try:
        climb({**task, "seconds": 0}, rung)
    except ChildError as error:
        result.notes.append(f"{rung.title}: left out, {error}")
        return False
    return True


def climb(task: Mapping[str, Any], rung: Rung) -> dict[str, Any]:
    """Return what a rung reaches in a process of its own."""
    return ask(WORKER, {**task, "do": "climb", "rung": rung.name}, python=rung.python)


def _record(result: Result, answers: Mapping[str, list[dict[str, Any]]]) -> None:
    """Record what was answered: rung to its answers, one per round."""
    settings: dict[str, dict[str, Any]] = {}
    price = result.settings["price"]
    for name, found in answers.items():
        step = [a["seconds"] / a["steps"] for a in found]
        rates = [result.settings["batch_size"] / s for s in step]
        result.add(f"ladder.{name}.rate", "images/s", rates)
        result.add(f"ladder.{name}.step", "ms", [s * 1e3 for s in step])
        if price and name != CEILING:
            bought = [rate * 3600 / price for rate in rates]
            result.add(f"ladder.{name}.bought", "images per dollar", bought)
        if "peak_mib" in found[0]:
            result.add(f"ladder.{name}.peak", "MiB", [a["peak_mib"] for a in found])
            waited = [a["waited"] / a["seconds"] for a in found]
            note = "share of the time that the step waited for its batch"
            result.add(f"ladder.{name}.waited", "", waited, note=note)
        told = ("allocator", "engine", "threads", "convolutions")
        settings[name] = {key: found[0][key] for key in told if key in found[0]}
    result.settings["ladder"] = settings


def measure_sizes(result: Result, store: str, sizes: Sequence[int]) -> None:
    """Record the rate of every batch size."""
    of = result.settings
    task = {"store": store, "crop": of["crop"], "seconds": of["seconds"] / 2}
    task |= {"repeats": of["repeats"], "of": list(sizes)}
    announce(", ".join(map(str, sizes)))
    for name, paces in ask(WORKER, {**task, "do": "sizes"}).items():
        rates = [int(name) * p["steps"] / p["seconds"] for p in paces]
        result.add(f"sizes.{name}.rate", "images/s", rates)


def measure_step(result: Result, store: str) -> None:
    """Record where the time of a step goes, as ``training.fit --profile`` tells it."""
    announce("under the profiler")
    of = result.settings
    task = {"store": store, "batch_size": of["batch_size"], "crop": of["crop"]}
    for part, found in ask(WORKER, {**task, "do": "breakdown"}).items():
        whole = sum(found.values())
        for name, milliseconds in sorted(found.items(), key=lambda item: -item[1]):
            result.add(f"step.{part}.{name}.time", "ms", [milliseconds])
            result.add(f"step.{part}.{name}.share", "", [milliseconds / whole])
