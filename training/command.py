"""What the commands of this package have in common: errors are one line, exit statuses the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from geoprep.errors import GeoprepError, SourceError, UsageError


def run_command(command: Callable[[], int]) -> int:
    """Run a command and return its exit status; what a user can act on is one line.

    Parameters
    ----------
    command
        Returns an exit status, or raises.
    """
    try:
        return command()
    except GeoprepError as error:
        rank = os.environ.get("RANK")
        print(f"Error{f' (rank {rank})' if rank else ''}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError | SourceError) else 1
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 141
