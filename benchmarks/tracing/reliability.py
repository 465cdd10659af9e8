"""Whether roads exist as often as their confidence says: figures, and a plot.

    python -m benchmarks.tracing.reliability CITY.json ... --plot FILE

Draws the figures of documents that `geoprep score --json` wrote; their names are the titles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.common import Result, command
from benchmarks.tables import STYLE
from geoprep.options import argument, option
from geoprep.roads import RoadGraph, in_crs, reliability

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


@dataclass(frozen=True, kw_only=True)
class ReliabilityOptions:
    """Options: of `benchmarks.tracing.reliability`."""

    documents: tuple[Path, ...] = argument("Documents of cities.", "CITY.json")
    plot: Path = option(Path("confidence.png"), "Draw to this file (.png, .svg, .pdf).", "FILE")


@command(ReliabilityOptions)
def main(given: ReliabilityOptions) -> int:
    """Draw the plot; return 0, or 1 if a document cannot be read."""
    read = {path.stem: json.loads(path.read_text())["confidence"] for path in given.documents}
    draw_reliability(given.plot, read)
    return 0


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


def draw_reliability(path: Path, confidences: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the share of edges that exist over their mean confidence.

    Markers grow with the number of edges; bars are one standard error to either side.

    Parameters
    ----------
    path
        File to write; its suffix sets the format.
    found
        Title to ``confidence`` of `geoprep score --json`.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(STYLE):
        canvas = Figure(figsize=(5.2, 5.0), dpi=120, layout="constrained")
        axis = canvas.subplots()
        axis.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="calibrated")
        for (title, confidence), colour in zip(confidences.items(), _COLOURS, strict=False):
            bins = [part for part in confidence["bins"] if part["edges"]]
            mean, exist = ([part[name] for part in bins] for name in ("mean_confidence", "exist"))
            error = confidence["expected_calibration_error"]
            label = f"{title}: {confidence['edges']} edges, calibration error {error:.2f}"
            count = [part["edges"] for part in bins]
            axis.plot(mean, exist, color=colour, linewidth=1, label=label)
            bars = [_likely(*pair) for pair in zip(exist, count, strict=True)]
            axis.vlines(mean, *zip(*bars, strict=True), color=colour, linewidth=1, alpha=0.5)
            axis.scatter(mean, exist, s=[8 + n for n in count], color=colour, zorder=3, alpha=0.7)
        axis.set(xlim=(0.15, 1.03), ylim=(-0.03, 1.03))
        axis.set(xlabel="mean confidence of edges", ylabel="share of edges that exist")
        axis.set_title("Edges that exist, by confidence")
        canvas.legend(frameon=False, loc="outside lower center")
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path)


def _likely(share: float, count: int) -> tuple[float, float]:
    """Return a share less and plus one standard error (Agresti and Coull)."""
    middle = (share * count + 1) / (count + 2)
    error = (middle * (1 - middle) / (count + 2)) ** 0.5
    return min(middle - error, share), max(middle + error, share)


if __name__ == "__main__":
    raise SystemExit(main())
