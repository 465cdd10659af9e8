"""The terminal of results and progress bars, which takes names as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from geoprep.texts import printable


class Terminal(Console):
    """A console of rich for text with names: no markup, emoji or escapes of the terminal in it."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of rich
        super().__init__(**{"markup": False, "emoji": False, "highlight": False} | options)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - those of rich
        """Return a text whose width is that of its visible characters."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the parts to print, without the control characters of names."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=printable(part.text))
