"""The ``geoprep`` command: it parses arguments, calls functions and prints their results.

:func:`main` is the entry point. Packages are imported inside the commands, to keep ``--help`` fast.
"""

import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geoprep.cli.help import GroupedCommand, GroupedOption, name_options

__all__ = ["GroupedCommand", "GroupedOption", "cli", "main", "name_options"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - classes and functions of click's types
    if name == "cli":
        from geoprep.cli.commands import cli

        return cli
    if name in __all__:
        from geoprep.cli import help as options

        return getattr(options, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_noticed = threading.Event()
_INTERRUPTED = """
Interrupted. Finished work is kept. Run the same command again to resume.
"""


def main() -> None:
    """Run the command line. Errors are one message; the help texts list the exit statuses."""
    hidden: list[BaseException] = []
    sys.excepthook = _without_interrupts(hidden)
    sys.unraisablehook = _interrupt_again
    try:
        # Imported here, so that Ctrl-C during the import is handled as well.
        from geoprep.cli.running import run

        status = run()
    except BaseException as error:
        _noticed.set()
        if not _is_interrupt(error) and not hidden:
            raise
        sys.stderr.write(_INTERRUPTED)
        status = 130
    sys.exit(status)


def _without_interrupts(hidden: list[BaseException]) -> Callable[..., None]:
    """Return an excepthook that records Ctrl-C in a list instead of printing it."""
    # NumPy's C interface prints the exception that ends its import, then raises ImportError.

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            hidden.append(error)
        else:
            sys.__excepthook__(kind, error, trace)

    return hook


def _interrupt_again(lost: "sys.UnraisableHookArgs") -> None:
    """Send Ctrl-C again if Python could not raise it, as in a callback of an import."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    main_thread = threading.main_thread().ident or 0
    _noticed.clear()

    def insist() -> None:  # from a thread and repeatedly, since it would be lost in this hook
        while not _noticed.wait(0.05):
            signal.pthread_kill(main_thread, signal.SIGINT)

    threading.Thread(target=insist, daemon=True).start()


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an error was caused by Ctrl-C, perhaps hidden by a failing import."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False
