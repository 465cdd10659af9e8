"""Whether roads exist as often as their confidence says."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.common import Result
from geoprep.roads.network import RoadGraph, in_crs
from geoprep.roads.scoring.scenes import reliability


def measure_reliability(
    result: Result, prefix: str, pairs: Iterable[tuple[RoadGraph, RoadGraph]]
) -> None:
    """Record the share of edges that exist by their mean confidence, and the calibration error.

    Parameters
    ----------
    pairs
        Ground truth and traced network of every scene.
    """
    measured = reliability((in_crs(truth, traced.crs or ""), traced) for truth, traced in pairs)
    if measured is None:
        return
    for part in measured.bins:
        if part.edges:
            note = f"{part.edges} edges of mean confidence {part.mean_confidence:.2f}"
            name = f"{prefix}.{part.low:.1f}-{part.high:.1f}.exist"
            result.add(name, "%", [100 * part.exist], note=note)
    error, note = 100 * measured.expected_calibration_error, f"{measured.edges} edges"
    result.add(f"{prefix}.expected_calibration_error", "%", [error], note=note)


def steps(result: Result, prefix: str) -> dict[str, str]:
    """Return the ranges of confidence that have edges, and the starts of their figures' names."""
    names = [name for name in result.figures if name.startswith(f"{prefix}.")]
    starts = [name.removesuffix(".exist") for name in names if name.endswith(".exist")]
    return {name.removeprefix(f"{prefix}."): name for name in starts}
