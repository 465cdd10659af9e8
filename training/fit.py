"""``python -m training.fit``: tiles in, checkpoints out. The loop itself is `training.loop`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from training.cli import parse
from training.command import run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit status.

    0 all epochs were trained, 2 something is wrong with the request, 1 something else went wrong,
    130 or 143 it was stopped by Ctrl-C or SIGTERM, and saved.
    """

    def fit() -> int:
        given = parse(sys.argv[1:] if arguments is None else arguments)
        from training.start import start  # here: --help and typing errors need not wait for torch

        return start(given)

    return run_command(fit)


if __name__ == "__main__":
    sys.exit(main())
