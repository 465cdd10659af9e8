"""Errors that a user can act on: each message names the file and the fix.

The parameter at fault is data of a `UsageError`; other parameters stand in backticks in messages,
such as `pixel_size`. A command line writes its options in the place of both (`spelled`).
"""

import re
from collections.abc import Mapping

from geoprep.texts import printable

__all__ = [
    "GeoprepError",
    "ImageError",
    "LabelError",
    "OutputError",
    "SourceError",
    "StoreError",
    "UsageError",
]


_PARAMETER = re.compile(r"`(\w+)`")


def spelled(message: str, names: Mapping[str, str]) -> str:
    """Return a message with another spelling for each parameter that ``names`` has.

    Examples
    --------
    >>> spelled("`gsd` and `resize` both set the resolution", {"gsd": "--gsd"})
    '--gsd and `resize` both set the resolution'
    """
    return _PARAMETER.sub(lambda named: names.get(named[1], named[0]), message)


class GeoprepError(Exception):
    """Base of all errors that this package raises on purpose.

    Characters that are not valid UTF-8, or that a terminal obeys, are escaped, so that the message
    can be printed and stored.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message.encode("utf-8", "backslashreplace").decode("utf-8")))


class GeoprepWarning(UserWarning):
    """A result that is probably not intended; the message names the file and the fix."""


class UsageError(GeoprepError):
    """The request contradicts itself or has an invalid value (exit code 2).

    Parameters
    ----------
    told
        Name of the parameter at fault, if there is one, and the rest of the message.

    Examples
    --------
    >>> error = UsageError("threshold", "is above `high_threshold`")
    >>> print(error)
    `threshold` is above `high_threshold`
    >>> error.parameter
    'threshold'
    """

    def __init__(self, *told: str) -> None:
        *named, message = told
        self.parameter = named[0] if named else None
        space = "" if message.startswith(":") else " "
        super().__init__(f"`{named[0]}`{space}{message}" if named else message)


class SourceError(GeoprepError):
    """Imagery or labels cannot be found, or an archive is damaged."""


class ImageError(GeoprepError):
    """One image cannot be used: unreadable, not georeferenced, wrong bands or dtype."""


class LabelError(GeoprepError):
    """One label file cannot be used: malformed, or without lines and areas."""


class StoreError(GeoprepError):
    """A store cannot be used: incomplete, damaged, locked, or of another schema."""


class OutputError(GeoprepError):
    """A result cannot be written: the disk is full or fails."""
