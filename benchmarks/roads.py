"""Measure accuracy and speed of vectorizing predictions into road networks.

    python -m benchmarks.roads [--quick] [--json FILE] [--large] [--real DIR] [--end-to-end ...]

- ``ceiling``: perfect speed masks, burned from labels at native resolution, traced with default
  options and scored against those labels by APLS: the upper bound for any model. Chips of Vegas,
  and a synthetic city with a motorway, bridges and ramps.
- ``errors``: simulated predictions with gaps, blobs and ragged edges
  (`benchmarks.tracing.simulated`), traced plain (only centre lines and graph), cleaned, and
  repaired (cleaned, with gap closing).
- ``rate``: square kilometres per hour of one core, by processor time, with reading.
- ``--large``: also the peak memory for a prediction of 20,000 x 20,000 pixels.
- ``--end-to-end``: only the steps from images to road networks, on held-out scenes of the demo's
  city, with a given model or one trained first (`benchmarks.tracing.end_to_end`): APLS,
  APLS_time, TOPO, excess length and heading error of lines, km2/h. One run per level: 650 is
  0.3 m, 325 is 0.6 m.

      python -m benchmarks.roads --end-to-end --level 650
      python -m benchmarks.roads --end-to-end --level 325 --model demo/run
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import rasterio
from affine import Affine
from rasterio.windows import Window

from benchmarks.child import ask
from benchmarks.chips import REAL
from benchmarks.common import CommonOptions, Result, command, rounds
from benchmarks.memory import resident
from benchmarks.tables import Table, conclude, measured
from benchmarks.tracing.simulated import Chip, chips, simulate_prediction
from geoprep.options import option
from geoprep.roads.centrelines.bands import ArrayBands
from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.network import in_crs
from geoprep.roads.options import Tracing
from geoprep.roads.scoring.apls import apls
from geoprep.roads.tracing.steps import trace
from geoprep.roads.tracing.vectorization import vectorize
from geoprep.sources.cities import get_city
from geoprep.synth import synthesise

LEAST_APLS: Final = 97.5
LEAST_APLS_TIME: Final = 96.0
LEAST_RATE: Final = 8_800.0
"""Lower bound in km2/h at 0.3 m: twenty times the rate of predicting."""
MOST_GIB: Final = 2.0
_LARGE: Final = 20_000
_GSD_M: Final = 0.3
_BLOCK: Final = 512

_NO_CLEANING = {"spur_m": 0, "min_area_m2": 0, "min_hole_m2": 0, "min_length_m": 0}
WAYS: Final = {
    "plain": Tracing(close_gaps=False, motorway_mph=1e6, **_NO_CLEANING),
    "cleaned": Tracing(close_gaps=False),
    "repaired": Tracing(),
}
"""Name to tracing options of predictions with errors."""


@dataclass(frozen=True, kw_only=True)
class RoadsOptions(CommonOptions):
    """Options: of `benchmarks.roads`."""

    repeats: int = rounds(3)
    large: bool = option(False, "Also measure 20,000 x 20,000 pixels.")
    real: Path | None = option(None, "Folder with AOI_2_Vegas. Default: shared/data.", "FOLDER")
    end_to_end: bool = option(False, "Only measure the steps from images to scored road networks.")
    level: int = option(650, "Tile side to train on, in pixels.", "PIXELS", least=1)
    model: Path | None = option(None, "Checkpoint or run. Default: train one.", "PATH")
    area: Path | None = option(
        None, "Folder of its city in SpaceNet's layout. Default: synthetic.", "FOLDER"
    )


@command(RoadsOptions)
def main(given: RoadsOptions) -> int:
    """Run the benchmark; return 0 if it ran, even if bounds were missed."""
    with measured("roads", given) as (result, work):
        if given.end_to_end:
            from benchmarks.tracing.end_to_end import measure_end_to_end  # imports torch

            measure_end_to_end(result, work)
        else:
            _measure(result, given, work)
    rows = {name: name for name in ("ceiling.city", "ceiling.vegas")}
    rows |= {f"errors, {name}": f"errors.{name}" for name in WAYS}
    columns = {"APLS, %": "apls", "APLS_time, %": "apls_time"}
    return conclude(result, given, [Table("Scores", rows, columns)])


def _measure(result: Result, given: RoadsOptions, work: Path) -> None:
    city = get_city("moscow")
    area = synthesise(work, city, scenes=2 if given.quick else 24, seed=3)
    cases = {"city": list(chips(area))}
    vegas = (given.real or REAL) / "AOI_2_Vegas"
    if vegas.is_dir():
        cases["vegas"] = list(chips(vegas))
    else:
        result.notes.append(f"{vegas} does not exist: no figures of Vegas")
    for name, several in cases.items():
        _ceiling(result, name, several)
    everything = [chip for several in cases.values() for chip in several]
    maps = _errors(result, everything, given.repeats)
    _rate(result, maps, work, given.large, given.repeats)


def _ceiling(result: Result, name: str, several: Sequence[Chip]) -> None:
    """Record the scores of perfect masks."""
    scores = np.mean([_scores(chip, chip.mask, WAYS["repaired"]) for chip in several], axis=0)
    note = f"mean over {len(several)} chips"
    result.add(f"ceiling.{name}.apls", "%", [scores[0]], at_least=LEAST_APLS, note=note)
    result.add(f"ceiling.{name}.apls_time", "%", [scores[1]], at_least=LEAST_APLS_TIME, note=note)


def _scores(chip: Chip, raster: RoadRaster, options: Tracing) -> tuple[float, float]:
    """Return APLS and APLS_time, in per cent, of the road network of a raster."""
    traced = trace(raster, options)
    truth = in_crs(chip.truth, traced.crs or "")
    return 100 * apls(truth, traced).score, 100 * apls(truth, traced, weight="time").score


def _errors(result: Result, several: Sequence[Chip], seeds: int) -> list[RoadRaster]:
    """Record the scores of simulated predictions per seed; return the last predictions."""
    scores_of: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    maps: list[RoadRaster] = []
    for seed in range(10, 10 + seeds):  # not the seeds that default options were tuned on
        maps = [simulate_prediction(chip, seed) for chip in several]
        pairs = list(zip(several, maps, strict=True))
        for name, options in WAYS.items():
            scores = np.mean([_scores(chip, raster, options) for chip, raster in pairs], axis=0)
            scores_of[name].append((float(scores[0]), float(scores[1])))
    for name, values in scores_of.items():
        result.add(f"errors.{name}.apls", "%", [length for length, _ in values])
        result.add(f"errors.{name}.apls_time", "%", [time for _, time in values])
    pays = [a[0] - b[0] for a, b in zip(scores_of["repaired"], scores_of["cleaned"], strict=True)]
    result.add("errors.repair_gains.apls", "%", pays, at_least=0.0)
    return maps


def _rate(
    result: Result, maps: Sequence[RoadRaster], work: Path, large: bool, repeats: int
) -> None:
    """Record the rate for a prediction of 4096 x 4096 pixels, and memory of a large one."""
    path = work / "prediction.tif"
    write_prediction(path, maps, 4096, _GSD_M, seed=0)
    vectorizing_seconds(path)  # imports libraries, compiles
    area = (4096 * _GSD_M) ** 2 / 1e6
    rates = [area / vectorizing_seconds(path) * 3600 for _ in range(repeats)]
    result.add("rate.vectorize", "km2/h", rates, at_least=LEAST_RATE, note="one core, 0.3 m")
    if large:
        write_prediction(path, maps, _LARGE, _GSD_M, seed=0)
        area = (_LARGE * _GSD_M) ** 2 / 1e6
        rate = area / vectorizing_seconds(path) * 3600
        result.add("large.vectorize", "km2/h", [rate], note="20,000 x 20,000 pixels")
        most = ask("benchmarks.roads:peak", {"path": str(path)})["peak"]
        result.add("large.peak", "GiB", [most / 2**30], at_most=MOST_GIB)


def write_prediction(
    path: Path, maps: Sequence[RoadRaster], side: int, gsd_m: float, seed: int
) -> None:
    """Write a prediction like ``training.predict``, of randomly chosen chips side by side.

    Parameters
    ----------
    side
        Side in pixels.
    gsd_m
        Pixel size in metres.
    """
    rng = np.random.default_rng(seed)
    bands = [one.bands.values for one in maps if isinstance(one.bands, ArrayBands)]
    count, high, wide = bands[0].shape
    profile = {"width": side, "height": side, "count": count, "dtype": "uint8", "nodata": 255}
    profile |= {"tiled": True, "blockxsize": _BLOCK, "blockysize": _BLOCK, "compress": "zstd"}
    profile |= {"crs": "EPSG:32637", "transform": Affine(gsd_m, 0, 4e5, 0, -gsd_m, 6.2e6)}
    with rasterio.open(path, "w", driver="GTiff", interleave="band", **profile) as file:
        file.descriptions = [*(f"road, bin {i}" for i, _ in maps[0].speed_classes), "road"]
        file.update_tags(
            CLASSES=json.dumps([{"band": i, "mph": m} for i, m in maps[0].speed_classes])
        )
        for top in range(0, side, high):
            for left in range(0, side, wide):
                size = min(high, side - top), min(wide, side - left)
                chosen = bands[rng.integers(len(bands))][:, : size[0], : size[1]]
                file.write(chosen, window=Window(left, top, size[1], size[0]))


def vectorizing_seconds(path: Path) -> float:
    """Return the processor seconds of vectorizing a prediction, with reading."""
    before = time.process_time()
    vectorize([path], workers=1)
    return time.process_time() - before


def peak(path: str) -> dict[str, int]:
    """Vectorize a prediction in this process; return its peak memory in bytes."""
    vectorize([Path(path)], workers=1)
    return {"peak": resident()}


if __name__ == "__main__":
    raise SystemExit(main())
