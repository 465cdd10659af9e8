"""The step's rates: settings from rung to rung, two ranks beside one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.child import ask
from benchmarks.common import Result, ratios
from benchmarks.fitting.runs import IPEX_PYTHON, Rows, column, fit, read_rows, steady, words_of
from geoprep.store import StoreReader

STEADY = (
    *("--epochs", "3", "--val-every", "3", "--crops-per-tile", "1", "--pictures", "0"),
    # Learning slowly, or rounding alone would soon have led two ranks apart.
    *("--save-every", "1h", "--schedule", "constant", "--lr", "1e-4"),
)
"""Of all runs that are timed: the first epoch compiles, and the last validates after its steps."""

RANKS = 2
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
DIFFERENCE = 0.05
"""Most by which the loss of an epoch may differ: BatchNorm sees half the batch in each rank."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to set up the step.

    Attributes
    ----------
    name, title
        In records and for people.
    options
        Of `training.fit`.
    keep_memory
        Whether glibc's allocator is told to keep what is freed.
    python
        The interpreter.
    """

    name: str
    title: str
    options: tuple[str, ...]
    keep_memory: bool = True
    python: Path = Path(sys.executable)


_FP32 = ("--engine", "native", "--precision", "fp32", "--compile", "off")
PLAIN = Rung("plain", "fp32, nothing compiled, the system's allocator", _FP32, keep_memory=False)
KEPT = Rung("kept", "+ memory kept", _FP32)
FIT = Rung("fit", "+ bf16, loss compiled = fit", ("--engine", "native"))
IPEX = Rung("ipex", "fit on IPEX", ("--engine", "ipex"), python=IPEX_PYTHON)
RUNGS = (PLAIN, KEPT, FIT, IPEX)
"""The first three are a ladder; IPEX stands beside the third. What made no difference that could be
measured has no rung: layout, fused optimizer, compiled loss (docs/benchmarks.md)."""

CEILING = "convolutions"
"""Name of the bound: the convolutions of the step, forward and backward, and nothing else."""

OVER = {
    "over_fp32": (KEPT.name, 2.0, "fit over fp32 with the same allocator"),
    "over_plain": (PLAIN.name, None, "fit over fp32 with the system's allocator"),
    "over_ipex": (IPEX.name, 1.0, "the native engine over Intel's extension"),
    "share": (CEILING, 0.8, "of the rate of the step's convolutions alone"),
}
"""Figure to the rung that fit is put over, what is promised, and a note."""


def climb(rung: Rung, store: Path, work: Path, options: Sequence[str]) -> dict[str, float]:
    """Return images/s, the share of the time waited for batches, and peak MiB of a run."""
    out = work / "run"
    task = {"words": words_of(store, out, [*STEADY, *options, *rung.options])}
    target = "benchmarks.fitting.runs:fit_here"
    told = ask(target, task | {"keep_memory": rung.keep_memory}, rung.python)
    rows = read_rows(out)
    rates = {"rate": steady(rows, "images_per_s"), "waited": steady(rows, "data_wait")}
    return rates | {"peak": told["peak"] / 2**20}


def measure_ladder(
    result: Result, store: Path, work: Path, rungs: Sequence[Rung] = RUNGS, seconds: float = 3.0
) -> None:
    """Record every rung that there is here, the bound, and their ratios."""
    of = result.settings
    step = ["--batch-size", str(of["batch_size"]), "--crop", str(of["crop"])]
    bound = {name: of[name] for name in ("batch_size", "crop")}
    bound |= {"bands": len(StoreReader.open(store).meta.bands), "seconds": seconds}
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        rung.name: partial(climb, rung, store, work, step) for rung in rungs if rung.python.exists()
    }
    cases[CEILING] = partial(ask, "benchmarks.fitting.convolutions:ceiling", bound)
    if IPEX in rungs and IPEX.name not in cases:
        result.notes.append("no comparison with IPEX: `make ipex` makes its environment")
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
    """Record the rates of one process and of two, and by how much their losses differ."""
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
    note = f"{RANKS} processes over one, on the same cores, for the same global batch"
    result.add("ranks.over_one", "", over, note=note)
    differences = [difference(*pair) for pair in zip(found["one"], found["two"], strict=True)]
    note = "largest relative difference of an epoch's loss"
    result.add("ranks.difference", "", differences, at_most=DIFFERENCE, note=note)


def difference(one: Rows, two: Rows) -> float:
    """Return the largest relative difference of an epoch's loss."""
    pairs = zip(column(one, "loss"), column(two, "loss"), strict=True)
    return max(abs(b - a) / a for a, b in pairs)
