"""The ``geoprep`` command: arguments in, text and exit statuses out. It decides nothing.

Face: :func:`main`. Rooms are imported inside the commands, so that ``--help`` loads none of them.
"""

import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

__all__ = ["cli", "main"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the group of commands, of click's type
    if name == "cli":
        from geoprep.cli.commands import cli

        return cli
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_INTERRUPTED = """
Interrupted. What was finished is kept: run the same command again to carry on.
"""


def main() -> None:
    """Run the command line; errors are one message, exit statuses those of the help texts."""
    hidden: list[BaseException] = []
    sys.excepthook = _without_interrupts(hidden)
    sys.unraisablehook = _interrupt_again
    try:
        # Inside, since importing takes a tenth of a second in which Ctrl-C can be pressed too.
        from geoprep.cli.running import run

        status = run()
    except BaseException as error:
        if not _is_interrupt(error) and not hidden:
            raise
        sys.stderr.write(_INTERRUPTED)
        status = 130
    sys.exit(status)


def _without_interrupts(hidden: list[BaseException]) -> Callable[..., None]:
    """Return a hook for errors that keeps Ctrl-C off the screen and notes it.

    NumPy's C interface prints what ends its import, and raises an ImportError with no cause.
    """

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            hidden.append(error)
        else:
            sys.__excepthook__(kind, error, trace)

    return hook


def _interrupt_again(lost: "sys.UnraisableHookArgs") -> None:
    """Send Ctrl-C once more where Python could not raise it: in a callback, such as an import's."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        main_thread = threading.main_thread().ident
        # Not here, where it would be lost again; and a signal, since the main thread may sleep.
        timer = threading.Timer(0.01, signal.pthread_kill, (main_thread, signal.SIGINT))
        timer.daemon = True
        timer.start()
    else:
        sys.__unraisablehook__(lost)


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an error began as Ctrl-C, which a module that is being imported may hide."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False
