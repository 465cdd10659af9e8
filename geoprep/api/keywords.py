"""Keywords of functions that records declare: in the signature, in the docstring, and checked."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import Field, fields
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

_OPTIONS = "    **options\n"


def options(record: type, *only: str) -> list[Field[Any]]:
    """Return the fields of a record, or some of them."""
    return [one for one in fields(record) if not only or one.name in only]


def with_options(declared: Iterable[Field[Any]]) -> Callable[[F], F]:
    """Return a decorator that replaces ``**options`` of a function by declared keywords."""
    declared = list(declared)

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type
            )
            for one in declared
        ]
        signature = signature.replace(parameters=[*named, *more])

        @functools.wraps(function)
        def checked(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401 - the function's
            signature.bind(*arguments, **keywords)
            return function(*arguments, **keywords)

        documented = [one for one in declared if one.metadata]
        texts = (f"{one.name}\n{textwrap.indent(_help_of(one), ' ' * 4)}\n" for one in documented)
        entries = textwrap.indent("".join(texts), " " * 4)
        checked.__doc__ = (function.__doc__ or "").replace(_OPTIONS, entries)
        checked.__signature__ = signature  # type: ignore[attr-defined]  # as inspect documents
        return checked  # type: ignore[return-value]  # the same function

    return decorate


def _help_of(one: Field[Any]) -> str:
    """Return the help of an option, which turns a keyword off that is on by default."""
    text: str = one.metadata["choice"].help
    text = f"False: {text[0].lower()}{text[1:]}" if one.default is True else text
    return textwrap.fill(text, 88)


def taken(given: dict[str, Any], record: type[R], *only: str) -> R:
    """Return a record of those options that are its fields, which are taken out."""
    names = set(only) or {one.name for one in fields(record)}  # type: ignore[arg-type]  # a dataclass
    return record(**{name: given.pop(name) for name in names & given.keys()})
