"""Run a command: print one message for an error, and return the exit status."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Sequence
from enum import IntEnum

import click

from geoprep.cli.interrupts import interrupted
from geoprep.cpus import started_rank
from geoprep.errors import GeoprepError, SourceError, UsageError
from geoprep.texts import printable


class Status(IntEnum):
    """Exit status of a command; 128 and the number of the signal that stopped it."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    BROKEN_PIPE = 141


def run(
    command: click.Command, arguments: Sequence[str] | None = None, name: str | None = None
) -> int:
    """Run a command, print an expected error as one message, and return the exit status.

    Parameters
    ----------
    command
        The command. It returns its exit status, or anything else for success.
    arguments
        Words of the command line. None: those of this process.
    name
        What the help calls the program. None: the name of the command.
    """
    gc.set_threshold(10_000)  # imports make many objects and no garbage: a tenth of the start
    try:
        status = command.main(arguments, name or command.name, standalone_mode=False)
        return status if isinstance(status, int) else Status.DONE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except GeoprepError as error:
        unusable = isinstance(error, UsageError | SourceError)
        return _failed(str(error), Status.REFUSED if unusable else Status.FAILED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _failed(f"{where}{error.strerror or error}", Status.FAILED)
    except SystemExit as end:
        if end.code != 1:  # that of click and rich where the reader of the output has ended
            raise
        return Status.BROKEN_PIPE
    except BaseException as error:
        return interrupted(error)


def _failed(message: str, status: Status) -> int:
    started = started_rank()
    of_rank = "" if started is None else f" (rank {started.rank})"
    click.echo(f"Error{of_rank}: {printable(message)}", err=True)
    return status


def keep_libraries_quiet() -> None:
    """Silence warnings and logs of libraries, unless Python was started with ``-W``."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    logging.getLogger().addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):  # file names need not be UTF-8
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
