"""Fields of the dataclasses that hold settings: default, help and valid values in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, TypeVar

T = TypeVar("T")


def option(
    default: T,
    text: str,
    metavar: str | None = None,
    *,
    flags: Sequence[str] = (),
    deprecated: Sequence[str] = (),
    check: Callable[[Any], object] | None = None,
    **bounds: float,
) -> T:
    """Return a dataclass field that is an option of the command line.

    Parameters
    ----------
    default
        Its value if the option is not given.
    text
        Its help; without text the option is accepted but not listed in ``--help``.
    metavar
        Placeholder for its value in ``--help``; None derives it from the field's type.
    flags
        Further names that stay valid.
    deprecated
        Former names, such as ``--old-name``: accepted with a warning, not listed in ``--help``.
        A YAML file may use them as well (``old_name``).
    check
        Called with a value; raises `UsageError` if the value is invalid.
    **bounds
        Valid range of a number: ``least``, ``above``, ``most`` or ``below``.
    """
    metadata = {"help": text, "metavar": metavar, "flags": flags, "deprecated": deprecated}
    described: T = field(default=default, metadata=metadata | {"check": check, "bounds": bounds})
    return described


def argument(
    text: str,
    metavar: str,
    *,
    deprecated: Sequence[str] = (),
    **default: Any,  # noqa: ANN401 - of the field's type
) -> Any:  # noqa: ANN401 - of the field's type
    """Return a dataclass field that is a positional argument of the command line.

    It takes one word, or several if the field's type is a tuple. ``default=()`` makes it optional.

    Parameters
    ----------
    text, metavar
        As for `option`.
    deprecated
        Former options, such as ``--old-name``, that set this argument, with a warning.
    """
    metadata = {"help": text, "metavar": metavar, "positional": True, "deprecated": deprecated}
    return field(metadata=metadata, **default)
