"""Names of files, scenes and classes as data: in a terminal, and in a cell of a spreadsheet."""

import re
from typing import TypeVar

T = TypeVar("T")

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys, but for line breaks and tabs."""


def printable(text: str) -> str:
    r"""Return a text without characters that a terminal obeys; they are shown as escapes.

    Examples
    --------
    >>> print(printable("red \x1b[31m"))
    red \x1b[31m
    """
    return _CONTROLS.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


def csv_cell(value: T) -> T | str:
    """Return a value as a cell of a CSV file: a text that a spreadsheet would compute is quoted.

    Examples
    --------
    >>> csv_cell("=1+1"), csv_cell("north"), csv_cell(-1.5)
    ("'=1+1", 'north', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else value
