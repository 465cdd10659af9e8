"""Progress of predictions on the terminal, and the summary at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from training.inference import VIEWS
from training.prediction.job import ImageOutcome
from training.prediction.predictor import Predictor, ProgressCallback


class _Megapixels(ProgressColumn):
    """Finished and total megapixels, and megapixels per second."""

    def render(self, task: Task) -> Text:
        total = task.total or 0
        text = f"{task.completed / 1e6:,.1f}/{total / 1e6:,.1f} Mpx"
        return Text(f"{text} {task.speed / 1e6:.2f} Mpx/s" if task.speed else text)


class Screen(Progress):
    """A progress bar for the current image, and a line for each finished one."""

    def __init__(self, *, quiet: bool, spell: Callable[[str], str] = str) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            _Megapixels(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=quiet,
        )
        self._lines = Console(highlight=False, soft_wrap=True)
        self._spell = spell

    def begin(self, target: Path, pixels: int) -> ProgressCallback:
        """Show a new bar; return its progress callback."""
        for old in self.task_ids:
            self.remove_task(old)
        task = self.add_task(target.name, total=pixels)
        return lambda completed: self.update(task, completed=completed)

    def done(self, outcome: ImageOutcome) -> None:
        """Show the outcome of an image."""
        self.say(describe(outcome))

    def say(self, line: str) -> None:
        """Show a line."""
        self._lines.print(self._spell(line), markup=False)


def describe(outcome: ImageOutcome) -> str:
    """Return the line on a finished image: outcome, path, and size and time or the reason."""
    reasons = {
        "failed": outcome.error,
        "busy": "another process predicts it",
        "complete": "already complete",
    }
    name = outcome.address if outcome.error else outcome.target
    return f"{outcome.state:9} {name}: {reasons.get(outcome.state) or _size_and_time(outcome)}"


def _size_and_time(outcome: ImageOutcome) -> str:
    source, stats = outcome.source, outcome.stats
    assert source is not None
    assert stats is not None
    parts = [f"{source.width} x {source.height} pixels"]
    if source.gsd_m is not None:
        parts.append(f"of {source.gsd_m[0]:.3g} x {source.gsd_m[1]:.3g} m")
    if source.resampled:
        parts.append(f"(resampled from {source.lengths[1]} x {source.lengths[0]})")
    return " ".join([*parts, f"in {stats.seconds:.1f} s"])


def counts(outcomes: Sequence[ImageOutcome]) -> str:
    """Return how many images were predicted, complete, busy and failed."""
    of = Counter(outcome.state for outcome in outcomes)
    busy = f"{of['busy']} by another process, " if of["busy"] else ""
    made = of["predicted"] + of["resumed"]
    return f"{made} predicted, {of['complete']} already complete, {busy}{of['failed']} failed"


def ground_rate(outcomes: Iterable[ImageOutcome], seconds: float) -> str:
    """Return the predicted area per hour in km2; empty if no image is georeferenced."""
    ground = sum(
        o.stats.image_pixels * o.source.gsd_m[0] * o.source.gsd_m[1] / 1e6
        for o in outcomes
        if o.stats is not None and o.source is not None and o.source.gsd_m is not None
    )
    return f"{ground / seconds * 3600:,.0f} km2/h" if ground else ""


def summary(outcomes: Sequence[ImageOutcome], predictor: Predictor) -> list[str]:
    """Return lines with the rates of all predictions made, and the counts of outcomes."""
    works = [o.stats for o in outcomes if o.stats is not None and o.stats.image_pixels]
    if not works:
        return [counts(outcomes)]
    seconds = sum(work.seconds for work in works)
    forward = sum(work.forward_seconds for work in works)
    network = sum(work.network_pixels for work in works) / 1e6
    image = sum(work.image_pixels for work in works) / 1e6
    views, area = len(VIEWS[predictor.options.tta]), ground_rate(outcomes, seconds)
    lines = [
        f"{network / seconds:.2f} Mpx/s through the model, reading and writing included "
        f"({forward / seconds:.0%} of the time in the model)",
        f"{image / seconds:.2f} Mpx/s of image: windows with an overlap of "
        f"{predictor.options.overlap} put {network / views / image - 1:.0%} more pixels through "
        "the model"
        + (f", {views} views {views} times as many" if views > 1 else "")
        + (f"; {area}" if area else ""),
    ]
    compiling = sum(work.first_seconds for work in works if work.compiled)
    if compiling > 0.1 * seconds:
        lines.append(f"{compiling:.1f} s of it for first batches, which compiled the model")
    return [*lines, counts(outcomes)]
