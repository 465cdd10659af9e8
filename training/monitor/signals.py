"""Ctrl-C, SIGTERM and a hang-up become a wish that the loop grants after the step at hand."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self


class Stopped(Exception):  # noqa: N818 - no error: the run was saved and ended as it was asked to
    """A run was asked to stop and has been saved.

    Parameters
    ----------
    number
        Of the signal.
    """

    def __init__(self, number: int) -> None:
        by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        super().__init__(f"stopped by {by}")
        self.exit_code = 128 + number


class StopSignals:
    """Takes note of signals while it is entered; a second one ends at once.

    A signal that is ignored, as ``nohup`` has it, stays so.

    Attributes
    ----------
    number
        Of the signal that came, 0 for none.
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.number:
            raise KeyboardInterrupt
        self.number = number
