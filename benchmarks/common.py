"""Shared parts of all benchmarks: options, scratch folder, alternating runs, recorded figures."""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

import geoprep
from benchmarks.child import ChildError
from geoprep.cli.records import RecordCommand
from geoprep.cli.running import run
from geoprep.cpus import usable_cpus
from geoprep.errors import GeoprepError, UsageError
from geoprep.options import option

T = TypeVar("T")
Given = TypeVar("Given")
Main = Callable[[Given], int]

LIBRARIES = ("numpy", "numba", "zarr", "zarrs", "numcodecs", "rasterio", "shapely", "torch")
ISA = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve")
"""Instruction sets that affect the speed of image code and training, as in /proc/cpuinfo."""

# rich assumes 80 columns for a file or a pipe: too few for figures with their range.
console = Console(width=None if sys.stdout.isatty() else 120)
status = console.status("")
"""Status line in a terminal; `announce` sets its text."""


def announce(text: str) -> None:
    """Show on the status line what runs next."""
    status.update(text)


def rounds(default: int) -> Any:  # noqa: ANN401 - as `option`
    """Return the option of the number of rounds."""
    return option(default, "Number of rounds, of which the median is reported.", "N", least=1)


def some_of(names: Iterable[str], text: str, default: str = "all") -> Any:  # noqa: ANN401 - as `option`
    """Return an option that takes some of the names, separated by commas; None if not given."""
    known = ", ".join(names)

    def parse(given: str) -> tuple[str, ...]:
        chosen = tuple(given.split(","))
        for name in chosen:
            if name not in known.split(", "):
                raise UsageError("only", f"{name} is unknown: use some of {known}")
        return chosen

    return option(None, f"{text}: {known}. Default: {default}.", "NAME,...", parse=parse)


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options: those of every benchmark."""

    quick: bool = option(False, "Small sizes, to check that the benchmark works.")
    json: Path | None = option(None, "Write every figure to this JSON file.", "FILE")
    work: Path | None = option(
        None, "Folder for scratch files, created if missing. Default: TMPDIR.", "FOLDER"
    )
    repeats: int = rounds(5)


def command(options: type[Given]) -> Callable[[Main[Given]], Callable[..., int]]:
    """Return a decorator that makes a command of a function that takes a record of options.

    Relative paths are those of the folder it was called in, since child processes run in another.
    It has the name and the introduction of the options' module. For its exit status and messages
    see `geoprep.cli.running.run`.
    """
    module = sys.modules[options.__module__]
    name = module.__spec__.name if module.__spec__ else module.__name__

    def decorate(main: Main[Given]) -> Callable[..., int]:
        def measure(given: Mapping[str, Any]) -> int:
            return main(
                options(**{k: v.absolute() if isinstance(v, Path) else v for k, v in given.items()})
            )

        line = RecordCommand(name, (options,), module.__doc__ or "", action=measure)

        @functools.wraps(main)
        def called(arguments: Sequence[str] | None = None) -> int:
            return run(line, arguments, f"python -m {name}")

        return called

    return decorate


def run_parts(
    result: Result, parts: Mapping[str, Callable[[], object]], only: Sequence[str]
) -> None:
    """Measure the chosen parts; a part that fails adds a note, and the others still run.

    The record is written after each part, so that a run that is stopped keeps what it measured.
    """
    for name, measure in parts.items():
        if name in only:
            try:
                measure()
            except GeoprepError as error:
                result.notes.append(f"{name} failed: {error}")
            if result.settings.get("json"):
                result.write(result.settings["json"])


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity, with a value per round.

    Attributes
    ----------
    unit
        Unit such as ``chips/s``; empty for ratios.
    values
        One value per round, at least one.
    at_least, at_most
        Bounds that the median should keep; None for no bound.
    note
        Explanation for the reader.
    """

    unit: str
    values: tuple[float, ...]
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def median(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest value."""
        return min(self.values), max(self.values)

    @property
    def met(self) -> bool | None:
        """True if the median keeps its bounds; None if there are none."""
        if self.at_least is None and self.at_most is None:
            return None
        low = float("-inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return low <= self.median <= high

    def __str__(self) -> str:
        """Return median and range, ``36.1 (34.0-38.2)``, or a single value."""
        low, high = (rounded(value) for value in self.spread)
        if low == high:
            return low
        return f"{rounded(self.median)} ({low}-{high})"

    @property
    def promise(self) -> str:
        """The bounds and whether they were met, as text for a table; empty if there are none."""
        bounds = [("at least", self.at_least), ("at most", self.at_most)]
        texts = ", ".join(f"{word} {rounded(bound)}" for word, bound in bounds if bound is not None)
        return texts and f"{texts}: {'[green]met[/]' if self.met else '[red]missed[/]'}"

    def to_json(self) -> dict[str, Any]:
        """Return the figure as JSON values."""
        low, high = self.spread
        derived = {"median": self.median, "min": low, "max": high, "met": self.met}
        return {**asdict(self), **derived, "values": list(self.values)}


def rounded(value: float) -> str:
    """Return a number with three significant digits, or with all digits before the point."""
    for limit, digits in ((100, 0), (10, 1), (0.1, 2)):
        if abs(value) >= limit:
            return f"{value:,.{digits}f}"
    return f"{value:.3g}"


def machine() -> dict[str, Any]:
    """Return processor, memory, load, Python and library versions of this machine."""
    import psutil

    model, flags = _processor()
    return {
        "processor": model,
        "cores": usable_cpus(),
        "isa": [name for name in ISA if name in flags],
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": {"geoprep": geoprep.__version__}  # which need not be installed
        | {name: version(name) for name in LIBRARIES if find_spec(name)},
    }


def _processor() -> tuple[str, list[str]]:
    lines: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        lines.setdefault(name.strip().lower(), value.strip())
    flags = lines.get("flags") or lines.get("features") or ""
    return lines.get("model name") or platform.processor() or "unknown", flags.split()


@dataclass
class Result:
    """All figures of one run, with settings and machine; figures of a quick run have no bounds."""

    benchmark: str
    settings: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=machine)
    figures: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))

    def add(
        self,
        name: str,
        unit: str,
        values: Iterable[float],
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        note: str = "",
    ) -> Figure:
        """Record a figure under a dotted name, ``uint8.build.rate``, and return it."""
        if name in self.figures:
            raise ValueError(f"{name} is measured twice")
        if self.settings.get("quick"):
            at_least = at_most = None
        figure = Figure(unit, tuple(float(v) for v in values), at_least, at_most, note)
        self.figures[name] = figure
        return figure

    def __getitem__(self, name: str) -> Figure:
        return self.figures[name]

    def turns(
        self, cases: Mapping[str, Callable[[], T]], repeats: int | None = None
    ) -> dict[str, list[T]]:
        """Run every case once per round; every second round in reverse, so that drift cancels out.

        Parameters
        ----------
        cases
            Name to a function that measures itself. If its child process fails, a note is added
            and the case is left out; the others continue.
        repeats
            Number of rounds; None for that of the settings.

        Returns
        -------
        dict
            Name to one result per round, in the order of the rounds.
        """
        repeats = repeats or self.settings["repeats"]
        results: dict[str, list[T]] = {name: [] for name in cases}
        for number in range(repeats):
            for name in list(results)[:: -1 if number % 2 else 1]:
                announce(f"round {number + 1} of {repeats}: {name}")
                try:
                    results[name].append(cases[name]())
                except ChildError as error:
                    self.notes.append(f"{name} is left out: {error}")
                    del results[name]
        return results

    def write(self, path: Path) -> None:
        """Write the record as JSON."""
        figures = {name: figure.to_json() for name, figure in self.figures.items()}
        text = json.dumps({**vars(self), "figures": figures}, indent=2, default=str)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratio of two figures in every round."""
    return [a / b for a, b in zip(over, under, strict=True)]
