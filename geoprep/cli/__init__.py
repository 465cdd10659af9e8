"""The ``geoprep`` command: arguments in, text and exit statuses out. It decides nothing.

Face: :func:`main`. Rooms are imported inside the commands, so that ``--help`` loads none of them.
"""

from geoprep.cli.commands import main

__all__ = ["main"]
