"""Texts: names in a terminal, in a spreadsheet and in messages, and YAML as it is written."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from yaml import SafeLoader

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


def counted(count: float, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> counted(1, "epoch"), counted(1200, "epoch"), counted(2.0, "epoch")
    ('1 epoch', '1,200 epochs', '2 epochs')
    """
    return f"{count:,}".removesuffix(".0") + f" {noun}{'s' * (count != 1)}"


def suggestion(wanted: str, known: Iterable[str]) -> str:
    """Return a question for messages if a name resembles one of those that are known.

    Examples
    --------
    >>> suggestion("Buildings", ["building", "road"]), suggestion("lake", ["building", "road"])
    (': did you mean building?', '')
    """
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(wanted.lower(), names, n=1, cutoff=0.5)
    return f": did you mean {names[near[0]]}?" if near else ""


@functools.cache
def yaml_loader() -> type[SafeLoader]:
    """Return a safe loader of YAML that reads keys as they are written, and refuses equal ones.

    As in YAML 1.2, numbers are decimal: ``128:2`` is text, not minutes and seconds.

    Examples
    --------
    >>> import yaml
    >>> yaml.load("{1: 2, no: 3, stages: 128:2}", Loader=yaml_loader())
    {'1': 2, 'no': 3, 'stages': '128:2'}
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: ANN401
            names = []
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    key.tag = "tag:yaml.org,2002:str"
                    names.append(key.value)
            for name in names:
                if names.count(name) > 1:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{name} is given twice", node.start_mark
                    )
            return super().construct_mapping(node, deep)

    def decimal(match: re.Pattern[str]) -> re.Pattern[str]:
        return re.compile(rf"(?!.*:)(?:{match.pattern})", match.flags)

    Loader.yaml_implicit_resolvers = {
        first: [
            (tag, decimal(match) if tag.endswith((":int", ":float")) else match)
            for tag, match in rules
        ]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader
