"""Training rates: settings added one by one, and two processes against one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.child import ask
from benchmarks.common import Result, ratios
from benchmarks.fitting.runs import IPEX_PYTHON, Rows, column, command_line, fit, read_rows, steady
from geoprep.store import StoreReader

STEADY = (
    *("--epochs", "3", "--val-every", "3", "--crops-per-tile", "1", "--pictures", "0"),
    # A low learning rate: otherwise rounding alone makes the losses of one and two ranks differ.
    *("--save-every", "1h", "--schedule", "constant", "--lr", "1e-4"),
)
"""Options of all timed runs: the first epoch compiles, the last one validates after its steps."""

RANKS = 2
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
DIFFERENCE = 0.05
"""Upper bound of the relative difference of losses: BatchNorm sees half a batch per rank."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A set of training options to compare.

    Attributes
    ----------
    name, title
        Name in figures and title in tables.
    options
        Options of `training.fit`.
    keep_memory
        True to make glibc's allocator keep freed memory.
    python
        Python interpreter.
    """

    name: str
    title: str
    options: tuple[str, ...]
    keep_memory: bool = True
    python: Path = Path(sys.executable)


_FP32 = ("--engine", "native", "--precision", "fp32", "--compile", "off")
PLAIN = Rung("plain", "fp32, not compiled, default allocator", _FP32, keep_memory=False)
KEPT = Rung("kept", "+ freed memory kept", _FP32)
FIT = Rung("fit", "+ bf16, loss compiled = fit", ("--engine", "native"))
IPEX = Rung("ipex", "fit on IPEX", ("--engine", "ipex"), python=IPEX_PYTHON)
RUNGS = (PLAIN, KEPT, FIT, IPEX)
"""The first three add one setting each; IPEX is compared with the third. Settings without a
measurable effect are left out: layout, fused optimizer, compiled loss."""

CEILING = "convolutions"
"""Name of the upper bound: only the convolutions of a step, forward and backward."""

OVER = {
    "over_fp32": (KEPT.name, 2.0, "fit over fp32 with the same allocator"),
    "over_plain": (PLAIN.name, None, "fit over fp32 with the default allocator"),
    "over_ipex": (IPEX.name, 1.0, "the native engine over Intel's extension"),
    "share": (CEILING, 0.8, "of the rate of the convolutions alone"),
}
"""Figure to the rung that fit is compared with, its lower bound, and a note."""


def measure_rung(rung: Rung, store: Path, work: Path, options: Sequence[str]) -> dict[str, float]:
    """Return images/s, share of time spent waiting for batches, and peak memory in MiB of a run."""
    out = work / "run"
    task = {"words": command_line(store, out, [*STEADY, *options, *rung.options])}
    target = "benchmarks.fitting.runs:fit_here"
    answer = ask(target, task | {"keep_memory": rung.keep_memory}, rung.python)
    rows = read_rows(out)
    rates = {"rate": steady(rows, "images_per_s"), "waited": steady(rows, "data_wait")}
    return rates | {"peak": answer["peak"] / 2**20}


def measure_ladder(
    result: Result, store: Path, work: Path, rungs: Sequence[Rung] = RUNGS, seconds: float = 3.0
) -> None:
    """Record every available rung, the upper bound, and their ratios."""
    of = result.settings
    step = ["--batch-size", str(of["batch_size"]), "--crop", str(of["crop"])]
    bound = {name: of[name] for name in ("batch_size", "crop")}
    bound |= {"bands": len(StoreReader.open(store).meta.bands), "seconds": seconds}
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        rung.name: partial(measure_rung, rung, store, work, step)
        for rung in rungs
        if rung.python.exists()
    }
    cases[CEILING] = partial(ask, "benchmarks.fitting.convolutions:ceiling", bound)
    if IPEX in rungs and IPEX.name not in cases:
        result.notes.append("no comparison with IPEX: `make ipex` creates its environment")
    found = result.turns(cases)
    rates = {name: [one["rate"] for one in answers] for name, answers in found.items()}
    for name, answers in found.items():
        at = f"ladder.{name}"
        result.add(f"{at}.rate", "images/s", rates[name])
        result.add(f"{at}.step", "ms", [of["batch_size"] / rate * 1e3 for rate in rates[name]])
        if name != CEILING:
            result.add(f"{at}.peak", "MiB", [one["peak"] for one in answers])
            result.add(f"{at}.waited", "", [one["waited"] for one in answers])
    for name, (under, at_least, note) in OVER.items():
        if FIT.name in rates and under in rates:
            values = ratios(rates[FIT.name], rates[under])
            result.add(f"ladder.{name}", "", values, at_least=at_least, note=note)


def measure_ranks(result: Result, store: Path, work: Path) -> None:
    """Record the rates of one and of two processes, and the difference of their losses."""
    of = result.settings

    def rows(ranks: int, launcher: Sequence[str] = ()) -> Rows:
        size = ["--batch-size", str(of["batch_size"] // ranks), "--crop", str(of["crop"])]
        return fit(store, work / "run", [*STEADY, *size, *FIT.options], launcher)

    cases = {"one": partial(rows, 1), "two": partial(rows, RANKS, TORCHRUN)}
    found = result.turns(cases, min(of["repeats"], 2))
    for name, runs in found.items():
        rates = [steady(each, "images_per_s") for each in runs]
        result.add(f"ranks.{name}.rate", "images/s", rates)
    if len(found) < len(cases):
        return
    over = ratios(result["ranks.two.rate"].values, result["ranks.one.rate"].values)
    note = (
        f"rate of {RANKS} processes over that of one, on the same cores, with the same global batch"
    )
    result.add("ranks.over_one", "", over, note=note)
    differences = [difference(*pair) for pair in zip(found["one"], found["two"], strict=True)]
    note = "largest relative difference of an epoch's loss"
    result.add("ranks.difference", "", differences, at_most=DIFFERENCE, note=note)


def difference(one: Rows, two: Rows) -> float:
    """Return the largest relative difference of an epoch's loss."""
    pairs = zip(column(one, "loss"), column(two, "loss"), strict=True)
    return max(abs(b - a) / a for a, b in pairs)
