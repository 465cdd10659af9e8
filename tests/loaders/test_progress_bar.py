"""A progress bar on a terminal, nothing in a file."""

import io
import sys
from unittest import mock

from loaders.chunks import progress_bar


class Terminal(io.StringIO):
    """Standard error with somebody in front of it."""

    def isatty(self):
        return True


def run(wanted):
    with progress_bar(wanted, "loading tiles") as report:
        if report is not None:
            report(3, 8)
            report(8, 8)
    return report is not None


def test_a_terminal_gets_a_bar_with_counts(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    assert run(None)
    assert "loading tiles" in screen.getvalue()
    assert "8/8" in screen.getvalue()


def test_a_file_gets_none_unless_asked(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not run(None)
    assert not run(False)
    assert run(True)


def test_a_function_is_called_as_it_is():
    note = mock.Mock()
    with progress_bar(note, "loading") as report:
        assert report is note
        report(1, 2)
    note.assert_called_once_with(1, 2)
