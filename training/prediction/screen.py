"""Progress of predictions on the terminal, and the summary at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from geoprep.executors.terminal import Terminal
from geoprep.storage.addresses import shown_address
from training.prediction.predictor import ImageOutcome, ProgressCallback, elapsed


class _Megapixels(ProgressColumn):
    """Finished and total megapixels, and megapixels per second."""

    def render(self, task: Task) -> Text:
        total = task.total or 0
        text = f"{task.completed / 1e6:,.1f}/{total / 1e6:,.1f} Mpx"
        return Text(f"{text} {task.speed / 1e6:.2f} Mpx/s" if task.speed else text)


class Screen(Progress):
    """A progress bar for each current image, and a line for each finished one.

    If ``quiet``, images have lines only if they failed. ``send`` takes outcomes and lines in place
    of the terminal.
    """

    def __init__(
        self,
        *,
        quiet: bool,
        spell: Callable[[str], str] = str,
        send: Callable[[ImageOutcome | str], object] | None = None,
    ) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Megapixels(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Terminal(stderr=True),
            transient=True,
            disable=quiet,
        )
        self._lines = Terminal()
        self._spell, self._send, self._quiet = spell, send or self._print, quiet

    def begin(self, target: Path, pixels: int) -> ProgressCallback:
        """Show a new bar; return its progress callback."""
        task = self.add_task(target.name, total=pixels)
        return lambda completed: self.update(task, completed=completed)

    def say(self, what: ImageOutcome | str) -> None:
        """Show a line, or that on the outcome of an image, whose bar is removed."""
        if isinstance(what, ImageOutcome):
            for bar in [task for task in self.tasks if task.description == what.target.name]:
                self.remove_task(bar.id)
        self._send(what)

    def _print(self, what: ImageOutcome | str) -> None:
        if self._quiet and isinstance(what, ImageOutcome) and not what.error:
            return
        line = what if isinstance(what, str) else describe(what)
        # Above the bar, if both are on a terminal.
        above = self.live.is_started and self._lines.is_terminal
        console = self.console if above else self._lines
        console.print(self._spell(line), soft_wrap=True)


def describe(outcome: ImageOutcome) -> str:
    """Return the line on a finished image: outcome, path, and size and time or the reason."""
    name = shown_address(outcome.address) if outcome.error else outcome.target
    if outcome.error:
        text = outcome.error.removeprefix(f"{name}: ")
    elif outcome.stats is None or outcome.source is None:
        reasons = {"busy": "another process predicts it", "complete": "already complete"}
        reasons["outside"] = "does not intersect the area"
        text = reasons[outcome.state]
    else:
        source, gsd = outcome.source, outcome.source.gsd_m
        (height, width), (down, right) = source.shape, source.scales
        down, right = (down, right) if source.on_image else (1.0, 1.0)
        text = f"{width} x {height} pixels"
        text += "" if gsd is None else f" of {gsd[0] / right:.3g} x {gsd[1] / down:.3g} m"
        if source.on_image and gsd is not None:
            text += f" (predicted at {gsd[0]:.3g} x {gsd[1]:.3g} m)"
        elif source.resampled:
            text += f" (resampled from {source.lengths[1]} x {source.lengths[0]})"
        text += f" in {outcome.stats.seconds:.1f} s"
    return f"{outcome.state:9} {name}: {text}"


def summary(
    outcomes: Iterable[ImageOutcome], seconds: float | None = None, processes: int = 1
) -> list[str]:
    """Return a line with the rates of all predictions made, and one with the counts of outcomes.

    ``seconds`` is the time of several ``processes`` together, their start included; None for that
    of the predictions.
    """
    outcomes = list(outcomes)
    lines = []
    if works := [(o.stats, o.source) for o in outcomes if o.stats and o.source]:
        alone = elapsed([stats for stats, _ in works])
        share = sum(stats.forward_seconds for stats, _ in works) / alone / processes
        seconds = alone if seconds is None else seconds
        rate = sum(stats.network_pixels for stats, _ in works) / 1e6 / seconds
        sizes = [(stats.image_pixels, source.gsd_m or (0, 0)) for stats, source in works]
        hourly = sum(pixels * x * y for pixels, (x, y) in sizes) / 1e6 / seconds * 3600
        lines.append(
            f"{rate:.2f} Mpx/s through the model{f', {hourly:,.0f} km2/h' if hourly else ''}, "
            f"reading and writing included ({share:.0%} of the time in the model)"
        )
    of = Counter(outcome.state for outcome in outcomes)
    busy = f"{of['busy']} by another process, " if of["busy"] else ""
    busy += f"{of['outside']} outside the area, " if of["outside"] else ""
    predicted = of["predicted"] + of["resumed"]
    done = f"{predicted} predicted, {of['complete']} already complete, {busy}{of['failed']} failed"
    return [*lines, done]
