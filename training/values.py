"""What a word of a command line, or a value of YAML, means as a value of a type."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from geoprep.errors import UsageError


@dataclass(frozen=True, slots=True)
class Range:
    """Which numbers make sense: at least, more than, at most, less than these."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def problem(self, value: float) -> str | None:
        """Return what is wrong with a number, None where nothing is."""
        bounds = (
            (self.least, "at least", operator.ge),
            (self.above, "more than", operator.gt),
            (self.most, "at most", operator.le),
            (self.below, "less than", operator.lt),
        )
        set_ones = [(bound, word, holds) for bound, word, holds in bounds if bound is not None]
        if all(holds(value, bound) for bound, _, holds in set_ones):
            return None
        return " and ".join(f"{word} {bound:g}" for bound, word, _ in set_ones)


def convert(kind: Any, given: object, flag: str, metavar: str | None = None) -> Any:  # noqa: ANN401 - a type, and a value of it
    """Return what a word, or a value of YAML, means as a value of a type.

    Parameters
    ----------
    kind
        ``int``, ``float``, ``str``, ``bool``, ``Path``, a Literal, None, or a union of them.
    given
        A word; YAML's numbers, booleans and null are taken by how they are written.
    flag, metavar
        For the message.

    Raises
    ------
    UsageError
        It is no such value.
    """
    text = "none" if given is None else str(given)
    for part in _parts(kind):
        try:
            return _convert(part, text)
        except ValueError:
            continue
    number = next((_NUMBERS[part] for part in _parts(kind) if part in _NUMBERS), None)
    literal = any(get_origin(part) is Literal for part in _parts(kind))
    wanted = number if number and not literal else metavar or "|".join(spelt(kind))
    raise UsageError(f"{flag}: {text!r} is not {wanted}")


_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}


def _convert(kind: Any, text: str) -> Any:  # noqa: ANN401 - as above
    """Return a value of one type, none of a union; ValueError where the text is no such value."""
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
    elif kind in (bool, NoneType):
        choices = {"none": None} if kind is NoneType else {"true": True, "false": False}
        text = text.lower()
    else:
        value = kind(text)
        if kind is float and not math.isfinite(value):
            raise ValueError(text)
        return value
    if text not in choices:
        raise ValueError(text)
    return choices[text]


def _parts(kind: Any) -> Iterator[Any]:  # noqa: ANN401 - a type form
    """Yield the members of a union, None first: ``none`` is no name of a file."""
    members = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
    yield from sorted(members, key=lambda member: member is not NoneType)


def spelt(kind: Any) -> Iterator[str]:  # noqa: ANN401 - a type form
    """Yield how to write the values of a type: choices by name, types in capitals, none last."""
    for part in sorted(_parts(kind), key=lambda part: part is NoneType):
        if get_origin(part) is Literal:
            yield from map(str, get_args(part))
        else:
            yield "none" if part is NoneType else part.__name__.upper()
