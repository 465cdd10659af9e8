"""Show the advice of `geoprep evaluate` on several data sets, for people who know them to judge.

    python -m benchmarks.advice STORE=RUN ... [--json FILE]

Each run is evaluated on the split val of its store, as by `geoprep evaluate RUN STORE --baseline`.
Scores of the model and of the random forest are those of the same sample of pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Result, announce, command, rounded, status
from benchmarks.tables import print_machine, print_table
from geoprep.errors import UsageError
from geoprep.options import argument, option
from training import evaluate_model


@dataclass(frozen=True, kw_only=True)
class AdviceOptions:
    """Options: of `benchmarks.advice`."""

    pairs: tuple[str, ...] = argument("Stores, each with a run to evaluate.", "STORE=RUN")
    json: Path | None = option(None, "Write scores and advice to this JSON file.", "FILE")


@command(AdviceOptions)
def main(given: AdviceOptions) -> int:
    """Evaluate each run, print a table of all, and return the exit status."""
    pairs = [(pair, *pair.rpartition("=")[::2]) for pair in given.pairs]
    if wrong := next((pair for pair, store, _ in pairs if not store), None):
        raise UsageError(f"{wrong}: expected STORE=RUN, such as roofs.zarr=runs/roofs")
    result, rows = Result("advice", vars(given)), []
    print_machine(result)
    for pair, store, run in pairs:
        with status:
            announce(pair)
            evaluation = evaluate_model(run, store, baseline=True, progress=False)
        scores = [evaluation["baseline"].get(name, math.nan) for name in ("model", "forest")]
        scores.append(scores[0] - scores[1])
        for name, score in zip(("model", "forest", "difference"), scores, strict=True):
            result.add(f"{pair}.{name}", "", [score])
        result.notes += (f"{pair}: {step}" for step in evaluation["next_steps"])
        advice = "\n".join(evaluation["next_steps"]) or "none"
        rows.append([f"{Path(store).stem}, {Path(run).name}", *map(rounded, scores), advice])
    titles = ("data set, run", "model", "random forest", "difference", "advice")
    print_table("IoU of roads, or mean IoU of classes; split val", titles, rows)
    if given.json:
        result.write(given.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
