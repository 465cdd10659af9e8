"""Records whose values a file states: their types are checked, whatever wrote the file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def typed(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return a dataclass of plain values; lists become tuples where it has these.

    Raises ValueError, which names the field, for values of another type and missing or unknown
    fields.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Level:
    ...     side: int
    ...     names: tuple[str, ...] = ()
    >>> typed(Level, {"side": 650, "names": ["image"]})
    Level(side=650, names=('image',))
    >>> typed(Level, {"side": "../650"})
    Traceback (most recent call last):
    ValueError: side is '../650'
    """
    hints = get_type_hints(cls)
    kept = {name: _value(value, hints.get(name, Any), name) for name, value in values.items()}
    try:
        return cls(**kept)
    except TypeError as error:  # a field is missing or unknown
        raise ValueError(str(error)) from error


def require(record: object, rules: Mapping[str, bool]) -> None:
    """Raise ValueError for the first field of a record whose rule is broken."""
    for name, is_kept in rules.items():
        if not is_kept:
            raise ValueError(f"{name} is {getattr(record, name)!r:.80}")


def _value(value: Any, hint: Any, name: str) -> Any:  # noqa: ANN401 - of any type
    """Return a value that is of a type, or raise ValueError."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        for part in parts:
            with suppress(ValueError):
                return _value(value, part, name)
    elif kind is tuple and isinstance(value, list | tuple):
        kinds = parts[:1] * len(value) if parts[-1] is ... else parts
        if len(kinds) == len(value):
            return tuple(_value(*pair, name) for pair in zip(value, kinds, strict=True))
    elif (
        kind is Any
        or (kind is Literal and value in parts)
        or type(value) is kind
        or (kind is float and type(value) is int)
    ):
        return value
    raise ValueError(f"{name} is {value!r:.80}")
