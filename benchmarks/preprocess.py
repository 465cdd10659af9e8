"""How fast a store is built, how much memory it takes, and next to what: one run, in turns.

    python -m benchmarks.preprocess [--chips 64] [--workers 2] [--source DIR] [--quick]

Every build goes into a fresh folder and is timed from finding the files to the last flush of the
disk. It is put next to reading the same pixels with the same workers and dropping them (the bound),
next to itself with another codec and with one worker, and next to the usual way of doing it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.builds import MIB, Memory, Run, build_command, build_plainly, build_store, decode
from benchmarks.chips import KINDS, Chips, linked, real, synthetic
from benchmarks.common import Result, interleave, parser, ratios, showing
from benchmarks.mosaics import measure_mosaics
from benchmarks.pictures import draw, print_tables
from benchmarks.reference import missing
from benchmarks.tables import conclude, print_machine
from geoprep.sources import get_city

SHARE = {"uint16": 0.45, "uint8": 0.40}
"""Least share of the decode-only rate that a build promises."""

OVER_REFERENCE = 5.0
MEMORY_MIB = 1024.0
GROWTH = 1.25
"""Most that the peak at the largest city may exceed the one at the smallest."""

CITY_CHIPS = (25, 100, 200)
QUICK_CITY_CHIPS = (2, 10)
REFERENCE_CHIPS = 8
REAL = Path(__file__).resolve().parents[2] / "shared" / "data"


Runs = Mapping[str, list[Run]]
"""Case to its runs, one per round."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status says only whether it ran."""
    given = _arguments(arguments)
    settings = {
        "chips": given.chips,
        "workers": given.workers,
        "size": given.size,
        "mosaic": given.mosaic,
        "repeats": given.repeats,
        "quick": given.quick,
    }
    result = Result("preprocess", settings)
    print_machine(result)
    with tempfile.TemporaryDirectory(dir=given.work, prefix="preprocess-") as folder:
        work = Path(folder)
        with showing() as announce:
            announce("drawing chips")
            kinds = _chips(given, work, result)
            _measure_rates(result, kinds, given, work / "out.zarr", announce)
            if _memory_is_measured(result):
                _measure_memory(result, kinds, given, work, announce)
                measure_mosaics(
                    result,
                    work,
                    side=given.mosaic,
                    workers=given.workers,
                    repeats=min(given.repeats, 3),
                    promised=not given.quick,
                    announce=announce,
                )
    return conclude(result, given, print_tables, draw)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--chips", type=int, help="chips of each kind (default: 64, quick 8)")
    options.add_argument("--workers", type=int, default=2, help="threads of a build (default: 2)")
    options.add_argument(
        "--source", type=Path, default=REAL, help="real chips, where there are any"
    )
    options.add_argument("--size", type=int, default=1300, help="side of a synthetic chip")
    options.add_argument(
        "--mosaic", type=int, help="side of the large image (default: 20000, quick 1500)"
    )
    options.add_argument(
        "--work", type=Path, help="folder on the disk to measure (default: TMPDIR)"
    )
    given = options.parse_args(arguments)
    given.chips = given.chips or (8 if given.quick else 64)
    given.mosaic = given.mosaic or (1500 if given.quick else 20_000)
    return given


def _chips(given: argparse.Namespace, work: Path, result: Result) -> list[Chips]:
    kinds = [synthetic(work, kind, given.chips, given.size, given.workers) for kind in KINDS]
    found = real(work, given.source, given.chips)
    if found is None:
        result.notes.append(f"no real chips in {given.source}: measured on synthetic ones only")
    else:
        kinds.append(found)
    result.settings["inputs"] = {chips.kind: chips.origin for chips in kinds}
    return kinds


def _measure_rates(
    result: Result,
    kinds: Sequence[Chips],
    given: argparse.Namespace,
    out: Path,
    announce: Callable[[str], None],
) -> None:
    if missing():
        result.notes.append(f"no comparison with the usual way: {missing()} is not installed")
    cases: dict[str, Callable[[], Run]] = {}
    for chips in kinds:
        cases |= _cases(chips, given.workers, out)
    _start_up(result, cases, kinds, announce)
    runs = interleave(cases, given.repeats, announce)
    for chips in kinds:
        own = {name: runs[f"{chips.kind}.{name}"] for name in _names(runs, chips.kind)}
        _record_rates(result, chips.kind, own, promised=not given.quick)
        _record_stages(result, chips.kind, own["build_1w"])


def _cases(chips: Chips, workers: int, out: Path) -> dict[str, Callable[[], Run]]:
    scenes = chips.scenes()
    cases: dict[str, Callable[[], Run]] = {
        "decode": partial(decode, scenes, workers),
        "build": partial(build_store, chips, out, workers=workers),
        "zstd": partial(build_store, chips, out, workers=workers, codec="zstd"),
        "decode_1w": partial(decode, scenes, 1),
        "build_1w": partial(build_store, chips, out, workers=1),
    }
    if not missing():
        cases["reference"] = partial(build_plainly, scenes[:REFERENCE_CHIPS], out)
    return {f"{chips.kind}.{name}": case for name, case in cases.items()}


def _names(runs: Runs, kind: str) -> list[str]:
    return [name.partition(".")[2] for name in runs if name.partition(".")[0] == kind]


def _start_up(
    result: Result,
    cases: dict[str, Callable[[], Run]],
    kinds: Sequence[Chips],
    announce: Callable[[str], None],
) -> None:
    """Run what has a cost the first time only, and record that: files cold, kernels not loaded."""
    for chips in kinds:
        announce(f"first runs: {chips.kind}")
        cases[f"{chips.kind}.decode"]()
        first, second = (cases[f"{chips.kind}.build"]() for _ in range(2))
        result.add(
            f"{chips.kind}.start_up",
            "s",
            [max(0.0, first.seconds - second.seconds)],
            note="a process's first build minus its second: compiling or loading the kernels",
        )
        if f"{chips.kind}.reference" in cases:
            cases[f"{chips.kind}.reference"]()


def _record_rates(result: Result, kind: str, runs: Runs, promised: bool) -> None:
    for name, found in runs.items():
        result.add(f"{kind}.{name}.rate", "chips/s", [run.rate for run in found])
        result.add(f"{kind}.{name}.cpu", "ms of one core per chip", [run.cpu_ms for run in found])
    megabytes = [run.source_bytes / run.seconds / 1e6 for run in runs["build"]]
    result.add(f"{kind}.build.mb", "MB/s", megabytes, note="source pixels, uncompressed")
    _record_shares(result, kind, runs, SHARE.get(kind) if promised else None)
    _record_codecs(result, kind, runs)
    if "reference" in runs:
        over = OVER_REFERENCE if promised and kind in SHARE else None
        result.add(f"{kind}.over_reference", "", _faster(runs, "build", "reference"), at_least=over)
        result.add(f"{kind}.over_reference_1w", "", _faster(runs, "build_1w", "reference"))
        cpu = ratios(*([run.cpu_ms for run in runs[name]] for name in ("reference", "build_1w")))
        result.add(f"{kind}.over_reference_cpu", "", cpu, note="in processor time, 1 worker")


def _faster(runs: Runs, name: str, than: str) -> list[float]:
    """Return how many times the rate of one case is that of another, round by round."""
    return ratios([run.rate for run in runs[name]], [run.rate for run in runs[than]])


def _record_shares(result: Result, kind: str, runs: Runs, at_least: float | None) -> None:
    result.add(
        f"{kind}.share",
        "",
        _faster(runs, "build", "decode"),
        at_least=at_least,
        note="rate of a build over the rate of reading alone, same workers",
    )
    result.add(f"{kind}.share_1w", "", _faster(runs, "build_1w", "decode_1w"))
    result.add(
        f"{kind}.share_cpu",
        "",
        ratios([run.cpu_ms for run in runs["decode"]], [run.cpu_ms for run in runs["build"]]),
        note="the same in processor time, which a busy machine distorts less",
    )
    for name in ("build", "decode"):
        scaling = _faster(runs, name, f"{name}_1w")
        result.add(f"{kind}.{name}.scaling", "", scaling, note="all workers over one")


def _record_codecs(result: Result, kind: str, runs: Runs) -> None:
    for codec, name in (("lz4", "build"), ("zstd", "zstd")):
        run = runs[name][0]  # the same bytes in every round
        result.add(f"{kind}.{codec}.mb_per_chip", "MB", [run.store_bytes / run.chips / 1e6])
        result.add(f"{kind}.{codec}.compression", "", [run.pixel_bytes / run.store_bytes])
    result.add(f"{kind}.zstd.over_lz4", "", _faster(runs, "zstd", "build"), note="of the rates")


def _record_stages(result: Result, kind: str, runs: Sequence[Run]) -> None:
    """Record where the time of one worker goes; what lies outside its tasks comes last."""

    def add(name: str, seconds: Sequence[float]) -> None:
        values = [max(0.0, s) / run.chips * 1e3 for s, run in zip(seconds, runs, strict=True)]
        result.add(f"{kind}.stage.{name}", "ms per chip", values)

    add("find and plan", [run.before_seconds for run in runs])
    for stage in runs[0].stages:
        add(stage, [run.stages[stage] for run in runs])
    inside = [run.before_seconds + sum(run.stages.values()) for run in runs]
    add("flush, tables, rest", [run.seconds - s for run, s in zip(runs, inside, strict=True)])


def _memory_is_measured(result: Result) -> bool:
    try:
        import loaders.memory  # noqa: F401 - asked for before anything is run
    except ImportError as error:
        result.notes.append(f"no memory and no mosaics: {error.name} is not installed")
        return False
    return True


def _measure_memory(
    result: Result,
    kinds: Sequence[Chips],
    given: argparse.Namespace,
    work: Path,
    announce: Callable[[str], None],
) -> None:
    """Build cities of several sizes with the command itself; their slope gives Moscow's time."""
    counts = QUICK_CITY_CHIPS if given.quick else CITY_CHIPS
    repeats = min(given.repeats, 3)
    for chips in kinds[: len(KINDS)]:
        cities = {n: linked(chips, work / f"{chips.kind}-{n}", n) for n in counts}
        cases: dict[str, Callable[[], Memory]] = {
            f"memory, {n} {chips.kind} chips": partial(
                build_command,
                ["--city", city.city.name, "--source", str(city.folder)],
                work / "out.zarr",
                workers=given.workers,
                chips=n,
            )
            for n, city in cities.items()
        }
        runs = interleave(cases, repeats, announce)
        by_count = dict(zip(counts, runs.values(), strict=True))
        _record_memory(result, chips.kind, by_count, promised=not given.quick)
        if chips.kind == "uint8":
            _record_moscow(result, chips, by_count)


def _record_memory(
    result: Result, kind: str, runs: dict[int, list[Memory]], promised: bool
) -> None:
    bound = MEMORY_MIB if promised else None
    for count, found in runs.items():
        values = [run.pss / MIB for run in found]
        result.add(f"{kind}.pss.{count}", "MiB", values, at_most=bound)
        result.add(f"{kind}.rss.{count}", "MiB", [run.rss / MIB for run in found])
    least, most = runs[min(runs)], runs[max(runs)]
    result.add(
        f"{kind}.pss.growth",
        "",
        ratios([run.pss for run in most], [run.pss for run in least]),
        at_most=GROWTH if promised else None,
        note=f"peak at {max(runs)} chips over peak at {min(runs)}",
    )


def _record_moscow(result: Result, chips: Chips, runs: dict[int, list[Memory]]) -> None:
    whole = get_city("moscow").chips
    seconds, slopes = [], []
    for one_round in zip(*runs.values(), strict=True):
        slope, start = np.polyfit(list(runs), [run.seconds for run in one_round], 1)
        slopes.append(slope * 1e3)
        seconds.append(start + slope * whole)
    basis = f"{whole} chips, by the slope of {sorted(runs)} {chips.origin}"
    result.add("moscow.slope", "ms per chip", slopes, note="of the whole command, wall time")
    result.add("moscow.seconds", "s", seconds, note=basis)
    for kind in (chips.kind, "real"):
        for codec in ("lz4", "zstd"):
            if (per_chip := result.figures.get(f"{kind}.{codec}.mb_per_chip")) is not None:
                note = f"{whole} x {result.settings['inputs'][kind]}"
                total = [per_chip.median * whole / 1e3]
                result.add(f"moscow.{codec}.gb_as_{kind}", "GB", total, note=note)


if __name__ == "__main__":
    raise SystemExit(main())
