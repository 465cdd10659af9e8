"""What a person sees while maps are made, and the summary at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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
from training.prediction.job import Outcome
from training.prediction.mapping import Mapper, Report


class _Megapixels(ProgressColumn):
    """Pixels done, of how many, and how many per second."""

    def render(self, task: Task) -> Text:
        total = task.total or 0
        text = f"{task.completed / 1e6:,.1f}/{total / 1e6:,.1f} Mpx"
        return Text(f"{text} {task.speed / 1e6:.2f} Mpx/s" if task.speed else text)


class Screen(Progress):
    """A bar for the image at work, and a line for each that is finished with.

    Parameters
    ----------
    quiet
        No bar; the lines stay.
    """

    def __init__(self, *, quiet: bool) -> None:
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

    def begin(self, target: Path, pixels: int) -> Report:
        """Return the callback for the progress of one image."""
        for old in self.task_ids:
            self.remove_task(old)
        task = self.add_task(target.name, total=pixels)
        return lambda done: self.update(task, completed=done)

    def done(self, outcome: Outcome) -> None:
        """Show what became of an image."""
        self.say(describe(outcome))

    def say(self, line: str) -> None:
        """Show a line."""
        self._lines.print(line, markup=False)


def describe(outcome: Outcome) -> str:
    """Return a line on an image that is finished with."""
    told = {
        "failed": outcome.error,
        "theirs": "another process makes it",
        "kept": "complete already",
    }
    name = outcome.address if outcome.error else outcome.target
    return f"{outcome.state:9} {name}: {told.get(outcome.state) or _made(outcome)}"


def _made(outcome: Outcome) -> str:
    source, stats = outcome.source, outcome.stats
    assert source is not None
    assert stats is not None
    parts = [f"{source.width} x {source.height} pixels"]
    if source.gsd_m is not None:
        parts.append(f"of {source.gsd_m[0]:.3g} x {source.gsd_m[1]:.3g} m")
    if source.resampled:
        parts.append(f"(resampled from {source.lengths[1]} x {source.lengths[0]})")
    return " ".join([*parts, f"in {stats.seconds:.1f} s"])


def counts(outcomes: Sequence[Outcome]) -> str:
    """Return how many maps were made, were there, are someone else's, and failed."""
    of = Counter(outcome.state for outcome in outcomes)
    others = f"{of['theirs']} of another process, " if of["theirs"] else ""
    made = of["mapped"] + of["continued"]
    return f"{made} mapped, {of['kept']} complete already, {others}{of['failed']} failed"


def ground_rate(outcomes: Iterable[Outcome], seconds: float) -> str:
    """Return the ground that was mapped per hour; empty where nothing has a place on it."""
    ground = sum(
        o.stats.image_pixels * o.source.gsd_m[0] * o.source.gsd_m[1] / 1e6
        for o in outcomes
        if o.stats is not None and o.source is not None and o.source.gsd_m is not None
    )
    return f"{ground / seconds * 3600:,.0f} km2/h" if ground else ""


def summary(outcomes: Sequence[Outcome], mapper: Mapper) -> list[str]:
    """Return rates over all maps made, what overlap and views cost, and how many failed."""
    works = [o.stats for o in outcomes if o.stats is not None and o.stats.image_pixels]
    if not works:
        return [counts(outcomes)]
    seconds = sum(work.seconds for work in works)
    forward = sum(work.forward_seconds for work in works)
    network = sum(work.network_pixels for work in works) / 1e6
    image = sum(work.image_pixels for work in works) / 1e6
    views, area = len(VIEWS[mapper.options.tta]), ground_rate(outcomes, seconds)
    lines = [
        f"{network / seconds:.2f} Mpx/s through the network, reading and writing included "
        f"({forward / seconds:.0%} of the time in it)",
        f"{image / seconds:.2f} Mpx/s of image: windows and their overlap of "
        f"{mapper.options.overlap} put {network / views / image - 1:.0%} more through the network"
        + (f", {views} views {views} times" if views > 1 else "")
        + (f"; {area}" if area else ""),
    ]
    compiling = sum(work.first_seconds for work in works if work.compiled)
    if compiling > 0.1 * seconds:
        lines.append(f"{compiling:.1f} s of it for first batches, which compiled the network")
    return [*lines, counts(outcomes)]
