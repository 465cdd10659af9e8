"""Measure the speed and memory of store builds, compared with a reference pipeline.

    python -m benchmarks.preprocess [--chips 64] [--workers 2] [--source DIR] [--quick]
    python -m benchmarks.preprocess --large --repeats 1

Every build writes to a new folder and is timed from finding the files to the last flush to disk. It
is compared with only reading the same pixels with the same workers (the upper bound), with another
codec, with one worker, and with the reference pipeline of `benchmarks.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import rasterio.shutil

from benchmarks.builds import (
    MIB,
    TimedRun,
    build_command,
    build_store,
    build_with_reference,
    decode,
)
from benchmarks.child import GEOPREP, measure
from benchmarks.chips import (
    KINDS,
    REAL,
    Chips,
    draw_chips,
    draw_mosaic,
    find_real_chips,
    link_chips,
)
from benchmarks.common import CommonOptions, Result, announce, command, ratios
from benchmarks.tables import Table, conclude, measured
from geoprep.options import option

SHARE = {"uint16": 0.45, "uint8": 0.40}
"""Lower bound of a build's rate as a share of the decode-only rate."""

OVER_REFERENCE = 5.0
MEMORY_MIB = 1024.0
GROWTH = 1.25
"""Upper bound of the peak memory of the largest city over that of the smallest."""

CITY_CHIPS = (25, 100, 200)
QUICK_CITY_CHIPS = (2, 10)
REFERENCE_CHIPS = 8
LARGE = {
    "JPEG 2000, uint16, 5,120 x 5,120": ("jp2", 5120, ""),
    "the same, limits given": ("jp2", 5120, "--rescale 200,3000 --nodata none"),
    "mosaic, uint8, 12,000 x 12,000": ("tif", 12_000, ""),
    "mosaic, uint8, 20,000 x 20,000": ("tif", 20_000, ""),
}
"""Row of a large image to its suffix, side and options of the build."""

Runs = Mapping[str, list[TimedRun]]
"""Case to its timed runs, one per round."""


@dataclass(frozen=True, kw_only=True)
class PreprocessOptions(CommonOptions):
    """Options: of `benchmarks.preprocess`."""

    chips: int | None = option(
        None, "Number of chips of each dtype. Default: 64, quick 8.", "N", least=1
    )
    workers: int = option(2, "Number of threads of a build.", "N", least=1)
    source: Path | None = option(None, "Folder with real chips. Default: shared/data.", "FOLDER")
    size: int = option(1300, "Side of a synthetic chip in pixels.", "PIXELS", least=1)
    large: bool = option(False, "Measure a JPEG 2000 scene and large mosaics, in place of chips.")


@command(PreprocessOptions)
def main(given: PreprocessOptions) -> int:
    """Run the benchmark; return 0 if it ran, even if bounds were missed."""
    with measured("preprocess", given) as (result, work):
        if given.large:
            _measure_large(result, work)
            return conclude(result, given, tables(result, []))
        kinds = _chips(given, work, result)
        for chips in kinds:
            _measure_rates(result, chips, work / "out.zarr")
        for chips in kinds[: len(KINDS)]:
            _measure_memory(result, chips, work)
    return conclude(result, given, tables(result, kinds))


def _chips(given: PreprocessOptions, work: Path, result: Result) -> list[Chips]:
    announce("drawing chips")
    count, source = given.chips or (8 if given.quick else 64), given.source or REAL
    kinds = [draw_chips(work, kind, count, given.size, given.workers) for kind in KINDS]
    real = find_real_chips(work, source, count)
    if real is None:
        result.notes.append(f"no real chips in {source}: only synthetic chips are measured")
    else:
        kinds.append(real)
    result.notes += [f"{chips.kind}: {chips.origin}" for chips in kinds]
    return kinds


def _measure_rates(result: Result, chips: Chips, out: Path) -> None:
    scenes, workers, kind = chips.scenes(), result.settings["workers"], chips.kind
    cases: dict[str, Callable[[], TimedRun]] = {
        "decode": partial(decode, scenes, workers),
        "build": partial(build_store, chips, out, workers=workers),
        "zstd": partial(build_store, chips, out, workers=workers, codec="zstd"),
        "decode_1w": partial(decode, scenes, 1),
        "build_1w": partial(build_store, chips, out, workers=1),
        "reference": partial(build_with_reference, scenes[:REFERENCE_CHIPS], out),
    }
    announce(f"first runs: {kind}")
    for name in ("decode", "build", "reference"):
        cases[name]()  # warms the page cache and compiles the kernels
    runs = result.turns(cases)
    for name, timed in runs.items():
        result.add(f"{kind}.{name}.rate", "chips/s", [run.rate for run in timed])
    _record_ratios(result, kind, runs)
    for codec, name in (("lz4", "build"), ("zstd", "zstd")):
        run = runs[name][0]  # the same bytes in every round
        result.add(f"{kind}.{codec}.mb_per_chip", "MB", [run.store_bytes / run.chips / 1e6])


def _record_ratios(result: Result, kind: str, runs: Runs) -> None:
    """Record the ratios of rates of pairs of cases, per round."""
    for name, over, under, least in (
        ("share", "build", "decode", SHARE.get(kind)),
        ("share_1w", "build_1w", "decode_1w", None),
        ("zstd.over_lz4", "zstd", "build", None),
        ("over_reference", "build", "reference", OVER_REFERENCE if kind in SHARE else None),
        ("over_reference_1w", "build_1w", "reference", None),
    ):
        if under in runs:
            values = ratios(*([run.rate for run in runs[case]] for case in (over, under)))
            note = f"rate of {over} over that of {under}"
            result.add(f"{kind}.{name}", "", values, at_least=least, note=note)


def _measure_memory(result: Result, chips: Chips, work: Path) -> None:
    """Record the memory of ``build-zarr`` for several city sizes."""
    of, kind = result.settings, chips.kind
    counts = QUICK_CITY_CHIPS if of["quick"] else CITY_CHIPS
    cities = {n: link_chips(chips, work / f"{kind}-{n}", n) for n in counts}
    cases = {
        f"memory, {n} {kind} chips": partial(
            build_command,
            ["--city", city.city.name, "--source", str(city.folder)],
            work / "out.zarr",
            of["workers"],
        )
        for n, city in cities.items()
    }
    runs = result.turns(cases, min(of["repeats"], 3))
    if len(runs) < len(cases):
        return
    by_count = dict(zip(counts, runs.values(), strict=True))
    peaks = {n: [pss / MIB for _, pss in rounds] for n, rounds in by_count.items()}
    for n, mebibytes in peaks.items():
        result.add(f"{kind}.pss.{n}", "MiB", mebibytes, at_most=MEMORY_MIB)
    note = f"peak at {counts[-1]} chips over peak at {counts[0]}"
    growth = ratios(peaks[counts[-1]], peaks[counts[0]])
    result.add(f"{kind}.pss.growth", "", growth, at_most=GROWTH, note=note)


def _measure_large(result: Result, work: Path) -> None:
    """Record seconds and memory of commands on one large image."""
    for number, (row, (name, side, words)) in enumerate(LARGE.items()):
        side, store = side // 20 if result.settings["quick"] else side, work / f"{number}.zarr"
        image = work / f"{side}.{name}"
        if not image.exists():
            announce(f"drawing {image.name}")
            dtype, driver = {"jp2": ("uint16", "JP2OpenJPEG"), "tif": ("uint8", "GTiff")}[name]
            drawn = draw_mosaic(work / "drawn.tif", side, dtype)
            how = (
                {"QUALITY": 100, "REVERSIBLE": True}
                if name == "jp2"
                else {"TILED": True, "COMPRESS": "LZW"}
            )
            rasterio.shutil.copy(drawn, image, driver=driver, **how)
        build = f"build-zarr --images {image} {words} --workers {result.settings['workers']} --out"
        for told in (
            f"{build} {store}",
            f"preview {store} --out {work}/sheet.png",
            f"export {store} --scene all --what image --out {work}/exported",
        ):
            stage, command_line = told.split()[0], [*GEOPREP, *told.split(), "--overwrite"]
            for runs in result.turns({f"{row}, {stage}": partial(measure, command_line)}).values():
                seconds, peaks = zip(*runs, strict=True)
                result.add(f"{row}.{stage}.seconds", "s", seconds)
                result.add(f"{row}.{stage}.pss", "MiB", [pss / MIB for pss in peaks])


def tables(result: Result, chips: Sequence[Chips]) -> list[Table]:
    """Return the tables of the report."""
    kinds, workers = {part.kind: part.kind for part in chips}, result.settings["workers"]
    rates = {"decode": "decode.rate", "build": "build.rate", "with zstd": "zstd.rate"}
    rates |= {"decode, 1 worker": "decode_1w.rate", "build, 1 worker": "build_1w.rate"}
    rates |= {"reference pipeline": "reference.rate"}
    shares = {"over decoding alone": "share", "1 worker": "share_1w"}
    shares |= {
        "over the reference": "over_reference",
        "1 worker, over the reference": "over_reference_1w",
    }
    codecs = {"lz4": "lz4.mb_per_chip", "zstd": "zstd.mb_per_chip", "rate": "zstd.over_lz4"}
    names = [name.rpartition(".") for name in result.figures]
    peaks = {start: start for start, _, _ in names if start.endswith(".pss")}
    sizes = {end: end for start, _, end in names if start in peaks and end.isdigit()}
    large = {
        f"{name}, {unit}": f"{name}.{figure}"
        for name in ("build-zarr", "preview", "export")
        for unit, figure in (("s", "seconds"), ("MiB", "pss"))
    }
    return [
        Table("Large images", {row: row for row in LARGE}, large),
        Table(f"Rates, {workers} workers, chips/s", kinds, rates),
        Table("Rate of a build over other rates", kinds, shares),
        Table("MB per chip, and zstd's rate over lz4's", kinds, codecs),
        Table("Peak PSS of the command by chips, MiB", peaks, sizes),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
