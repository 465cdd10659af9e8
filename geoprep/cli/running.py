"""Run a command: print one message for an error, and return the exit status."""

from __future__ import annotations

import gc
import logging
import sys
import warnings

import click

from geoprep.cli.commands import cli
from geoprep.errors import GeoprepError, SourceError, UsageError


def run() -> int:
    """Run the command that the arguments name; return its exit status."""
    _keep_libraries_quiet()
    gc.set_threshold(10_000)  # imports make many objects and no garbage: a tenth of the start
    try:
        status = cli.main(standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except GeoprepError as error:
        click.echo(f"Error: {error}", err=True)
        return 2 if isinstance(error, UsageError | SourceError) else 1
    except BrokenPipeError:
        return 141


def _keep_libraries_quiet() -> None:
    """Silence warnings and logs of libraries, unless Python was started with ``-W``."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    logging.getLogger().addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):  # file names need not be UTF-8
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
