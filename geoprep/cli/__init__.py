"""The ``geoprep`` command: it parses arguments, calls functions and prints their results.

:func:`main` is the entry point. Packages are imported inside the commands, to keep ``--help`` fast.
"""

import sys

from geoprep.cli.interrupts import interrupted


def main() -> None:
    """Run the command line. Errors are one message; the help texts list the exit statuses."""
    try:
        # Imported here, so that Ctrl-C during the import is handled as well.
        from geoprep.cli.running import keep_libraries_quiet, run

        keep_libraries_quiet()
        from geoprep.cli.commands import cli

        status = run(cli)
    except BaseException as error:
        status = interrupted(error)
    sys.exit(status)
