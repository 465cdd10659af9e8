"""How the command line presents the options of a record: one `choice` per field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from geoprep.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One option: heading and text of the help, placeholder and parser of its value.

    An option has the name of its field, unless it has another one. One that is ``sparse`` is left
    out of a store's attributes at its default.
    """

    section: str
    help: str
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    sparse: bool = False
    option: str | None = None


def choice(
    default: Any,  # noqa: ANN401 - of any type
    section: str,
    text: str,
    **more: Any,  # noqa: ANN401 - of `Choice`
) -> Any:  # noqa: ANN401 - as `dataclasses.field`
    """Return a field of a dataclass that is an option; its type is that of the value."""
    made = Choice(section=section, help=text, **more)
    return field(default=default, metadata={"choice": made})


def value_type(kind: Any) -> Any:  # noqa: ANN401 - types
    """Return the type of an option's value from that of its field, without None."""
    return get_args(kind)[0] if type(None) in get_args(kind) else kind


_types = lru_cache(get_type_hints)


def check_choices(options: object, record: type) -> None:
    """Raise UsageError if a field of a record has a value that its `Literal` does not list."""
    for name, kind in _types(record).items():
        value, known = getattr(options, name), get_args(value_type(kind))
        if get_origin(value_type(kind)) is Literal and value is not None and value not in known:
            raise UsageError(f"`{name}` {value!r} is unknown: use one of {', '.join(known)}")
