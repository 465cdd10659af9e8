"""The ``geoprep`` command: it parses arguments, calls functions and prints their results.

:func:`main` is the entry point. Packages are imported inside the commands, to keep ``--help`` fast.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geoprep.cli.help import GroupedCommand, GroupedOption, name_options, parameter_of

__all__ = ["GroupedCommand", "GroupedOption", "cli", "main", "name_options", "parameter_of"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - classes and functions of click's types
    if name == "cli":
        from geoprep.cli.commands import cli

        return cli
    if name in __all__:
        from geoprep.cli import help as options

        return getattr(options, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_INTERRUPTED = """
Interrupted. Finished work is kept. Run the same command again to resume.
"""


def main() -> None:
    """Run the command line. Errors are one message; the help texts list the exit statuses."""
    try:
        # Imported here, so that Ctrl-C during the import is handled as well.
        from geoprep.cli.running import run

        status = run()
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        sys.stderr.write(_INTERRUPTED)
        status = 130
    sys.exit(status)


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an error was caused by Ctrl-C, perhaps hidden by a failing import."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False
