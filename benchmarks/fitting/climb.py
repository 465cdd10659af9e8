"""The ladder's figures: every rung in a process of its own, in turns, next to the bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.child import ChildError, ask
from benchmarks.common import Result, interleave, ratios
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
from training.engine.compiled import missing_compiler

OVER_FP32 = 2.0
OVER_IPEX = 1.0
SHARE = 0.8

Answers = Mapping[str, list[dict[str, Any]]]
"""Rung to its answers, one a round."""


def chosen_rungs(result: Result) -> list[Rung]:
    """Return the rungs that can be climbed here; a note says which cannot and why."""
    import torch

    rungs = list(RUNGS)
    lacking = missing_compiler(torch.device("cpu"))
    if lacking:
        result.notes.append(f"nothing is compiled, {lacking}")
    if lacking or result.settings["quick"]:  # compiling the network takes a minute
        rungs = [rung for rung in rungs if rung.compile_mode != "model"]
    if not (IPEX.python and IPEX.python.exists()):
        result.notes.append("no comparison with IPEX: `make ipex` makes its environment")
        rungs.remove(IPEX)
    return rungs


def measure_ladder(
    result: Result,
    task: Mapping[str, Any],
    *,
    rungs: list[Rung],
    repeats: int,
    price: float | None,
    announce: Callable[[str], None],
) -> None:
    """Record every rung, the bound, and their ratios.

    Parameters
    ----------
    result
        Gets the figures.
    task
        Store, batch size, crop and seconds of `benchmarks.fitting.worker.climb`.
    rungs
        From the bottom up.
    repeats
        Rounds.
    price
        Of the machine, in dollars an hour; None leaves out what it buys.
    announce
        Told what runs next.
    """
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        rung.name: partial(_climb, task, rung)
        for rung in rungs
        if _works(result, task, rung, announce)
    }
    cases[CEILING] = partial(ask, WORKER, {**task, "do": "ceiling"})
    answers = interleave(cases, repeats, lambda text: announce(f"ladder, {text}"))
    _record(result, answers, int(task["batch_size"]), price)
    _promise(result, promised=not result.settings["quick"])


def _works(
    result: Result, task: Mapping[str, Any], rung: Rung, announce: Callable[[str], None]
) -> bool:
    """Try a rung that needs more than torch: a compiler, which keeps what it made, or a launcher.

    One that fails is left out with a note.
    """
    if rung.compile_mode == "off":
        return True
    announce(f"ladder, first run: {rung.title}")
    try:
        _climb({**task, "seconds": 0}, rung)
    except ChildError as error:
        result.notes.append(f"{rung.title}: left out, {error}")
        return False
    return True


def _climb(task: Mapping[str, Any], rung: Rung) -> dict[str, Any]:
    given = {**task, "do": "climb", "rung": rung.name}
    return ask(WORKER, given, python=rung.python, launcher=rung.launcher)


def _record(result: Result, answers: Answers, batch_size: int, price: float | None) -> None:
    settings: dict[str, dict[str, Any]] = {}
    for name, found in answers.items():
        step = [a["seconds"] / a["steps"] for a in found]
        rates = [batch_size / s for s in step]
        result.add(f"ladder.{name}.rate", "images/s", rates)
        result.add(f"ladder.{name}.step", "ms", [s * 1e3 for s in step])
        if price and name != CEILING:
            bought = [rate * 3600 / price for rate in rates]
            result.add(f"ladder.{name}.bought", "images a dollar", bought)
        if "peak_mib" in found[0]:
            result.add(f"ladder.{name}.peak", "MiB", [a["peak_mib"] for a in found])
            result.add(
                f"ladder.{name}.waited",
                "",
                [a["waited"] / a["seconds"] for a in found],
                note="share of the time that the step waited for its batch",
            )
        told = ("allocator", "engine", "threads", "convolutions")
        settings[name] = {key: found[0][key] for key in told if key in found[0]}
    result.settings["ladder"] = settings


def _promise(result: Result, *, promised: bool) -> None:
    def over(name: str, under: str, at_least: float | None, note: str) -> None:
        rates = [result.figures.get(f"ladder.{rung}.rate") for rung in (FIT.name, under)]
        if rates[0] and rates[1]:
            bound = at_least if promised else None
            values = ratios(rates[0].values, rates[1].values)
            result.add(f"ladder.{name}", "", values, at_least=bound, note=note)

    over("over_fp32", KEPT.name, OVER_FP32, "fit over fp32 with the same allocator")
    over("over_plain", PLAIN.name, None, "fit over fp32 with every default, the allocator's too")
    over("over_fit_fp32", FIT_FP32.name, None, "bf16 over fp32, all else being fit's")
    over("over_ipex", IPEX.name, OVER_IPEX, "the native engine over Intel's extension")
    over("share", CEILING, SHARE, "of the rate of the step's convolutions alone")
