"""Measure training speed by settings and by number of processes.

    python -m benchmarks.training [STORE] [--quick] [--json FILE]

Every case runs `python -m training.fit` in a separate process: ResNet34-UNet, focal + dice loss,
tiles from a store. Rates are those of its metrics.csv. See also ``training.fit --profile`` (time
breakdown per step), and `benchmarks.inference` (prediction).
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.child import ROOT, measure
from benchmarks.common import CommonOptions, Result, command, ratios, rounds, some_of
from benchmarks.loading.data import LoadingSizes, synthetic_store
from benchmarks.tables import Table, conclude, measured
from geoprep.options import argument

IPEX_PYTHON = ROOT / ".venv-ipex" / "bin" / "python"

Rows = list[dict[str, str]]
"""Rows of a run's metrics.csv, one per epoch."""

STEADY = (
    *("--epochs", "3", "--val-every", "3", "--crops-per-tile", "1", "--pictures", "0"),
    # A low learning rate: otherwise rounding alone makes the losses of one and two ranks differ.
    *("--save-every", "1h", "--schedule", "constant", "--lr", "1e-4", "--model", "resnet34-unet"),
)
"""Options of all runs: the first epoch compiles, the last one validates after its steps."""

RANKS = 2
DIFFERENCE = 0.05
"""Upper bound of the relative difference of losses: BatchNorm sees half a batch per rank."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run to compare: its title in tables, options of `training.fit`, and how it is started."""

    title: str
    options: tuple[str, ...]
    launcher: tuple[str, ...] = ()
    python: Path = Path(sys.executable)
    ranks: int = 1


_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
CASES = {
    "fp32": Case(
        "fp32, not compiled", ("--engine", "native", "--precision", "fp32", "--compile", "off")
    ),
    "fit": Case("training.fit with its defaults", ("--engine", "native")),
    "ipex": Case("the same on IPEX", ("--engine", "ipex"), python=IPEX_PYTHON),
    "ranks": Case(
        "the same in two processes, torchrun", ("--engine", "native"), _TORCHRUN, ranks=RANKS
    ),
}
OVER = {
    "over_fp32": ("fit", "fp32", 1.8),
    "over_ipex": ("fit", "ipex", 1.0),
    "over_one": ("ranks", "fit", None),
}
"""Figure to a case, the case that its rate is compared with, and the lower bound."""


SIZES = LoadingSizes(scenes=12, batch_size=8)
QUICK = LoadingSizes(scenes=6, scene_side=256, batch_size=2, crop=64)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(CommonOptions):
    """Options: of `benchmarks.training`."""

    repeats: int = rounds(3)
    store: Path | None = argument(
        "Store to train on. Default: that of a synthetic city.", "STORE", default=None
    )
    only: tuple[str, ...] | None = some_of(CASES, "Measure these cases")


@command(TrainingOptions)
def main(given: TrainingOptions) -> int:
    """Run the benchmark; return 0 if it ran, even if bounds were missed."""
    sizes = QUICK if given.quick else SIZES
    step = {"batch_size": sizes.batch_size, "crop": sizes.crop}
    with measured("training", given, **step, only=given.only or tuple(CASES)) as (result, work):
        measure_cases(result, given.store or synthetic_store(work, sizes), work)
    return conclude(result, given, tables(result))


@dataclass(frozen=True, slots=True)
class Fitted:
    """Metrics of a training run by epoch, and the peak memory of its processes (PSS) in bytes."""

    rows: Rows
    peak: int

    def column(self, name: str) -> list[float]:
        """Return a column of the metrics, one number per epoch; NaN where it is empty."""
        return [float(row[name] or "nan") for row in self.rows]

    def steady(self, name: str) -> float:
        """Return the median of a column over all epochs except the first, which compiles."""
        return statistics.median(self.column(name)[1:])


def fit(store: Path, out: Path, options: Sequence[str], case: Case = CASES["fit"]) -> Fitted:
    """Train with the command; return its metrics and peak memory.

    Raises
    ------
    ChildError
        The command failed.
    """
    command = [str(case.python), *case.launcher, "-m", "training.fit", str(store)]
    where = ["--out", str(out), "--overwrite", "--quiet"]
    _, peak = measure([*command, *where, *options, *case.options], interval=0.1)
    with (out / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return Fitted(list(csv.DictReader(file)), peak)


def measure_cases(result: Result, store: Path, work: Path) -> None:
    """Record rate, memory and waiting of every case, and ratios of rates."""
    of = result.settings
    calls = {}
    for name in of["only"]:
        case = CASES[name]
        if not case.python.exists():
            result.notes.append(f"{name} is left out: `make {name}` creates its environment")
            continue
        size = ["--batch-size", str(of["batch_size"] // case.ranks), "--crop", str(of["crop"])]
        calls[name] = partial(fit, store, work / "run", [*STEADY, *size], case)
    runs = result.turns(calls)
    for name, fitted in runs.items():
        rates = [run.steady("images_per_s") for run in fitted]
        result.add(f"{name}.rate", "images/s", rates)
        result.add(f"{name}.step", "ms", [of["batch_size"] / rate * 1e3 for rate in rates])
        result.add(f"{name}.peak", "MiB", [run.peak / 2**20 for run in fitted])
        result.add(f"{name}.waited", "", [run.steady("data_wait") for run in fitted])
    for figure, (name, under, least) in OVER.items():
        if name in runs and under in runs:
            over = ratios(result[f"{name}.rate"].values, result[f"{under}.rate"].values)
            note = f"rate of {name} over that of {under}"
            result.add(f"{name}.{figure}", "", over, at_least=least, note=note)
    if "ranks" in runs and "fit" in runs:
        pairs = zip(runs["fit"], runs["ranks"], strict=True)
        note = "largest relative difference of an epoch's loss from one process"
        differences = [difference(one, two) for one, two in pairs]
        result.add("ranks.difference", "", differences, at_most=DIFFERENCE, note=note)


def difference(one: Fitted, other: Fitted) -> float:
    """Return the largest relative difference of an epoch's loss."""
    losses = zip(one.column("loss"), other.column("loss"), strict=True)
    return max(abs(b - a) / a for a, b in losses)


def tables(result: Result) -> list[Table]:
    """Return the table of the report."""
    of = result.settings
    step = f"ResNet34-UNet, {of['batch_size']} x {of['crop']} x {of['crop']}"
    columns = {"images/s": "rate", "ms per step": "step", "peak MiB": "peak", "waited": "waited"}
    rows = {case.title: name for name, case in CASES.items()}
    return [Table(f"Training, {step}", rows, columns)]


if __name__ == "__main__":
    raise SystemExit(main())
