"""The end of a command that Ctrl-C or a signal stopped."""

import signal
import sys

_MESSAGE = """
Interrupted. Finished work is kept. Run the same command again to resume.
"""


def interrupted(error: BaseException) -> int:
    """Print that a command was interrupted, and return its exit status; raise other errors.

    The interrupt may be hidden by a failing import. It carries the number of the signal, or none
    for Ctrl-C.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            sys.stderr.write(_MESSAGE)
            return 128 + (cause.args[0] if cause.args else signal.SIGINT)
        cause = cause.__cause__ or cause.__context__
    raise error
