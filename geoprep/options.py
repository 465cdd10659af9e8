"""Options, declared once: fields of frozen dataclasses, with default, help and valid values.

A field that is an `option` is a keyword of public functions (`with_options`), an option of a
command (`geoprep.cli`), a key of YAML files and an entry of the reference. Its values are checked
alike wherever they come from.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from geoprep.errors import UsageError
from geoprep.texts import suggestion

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

BOUNDS: Final = {
    "least": ("at least", operator.ge),
    "above": ("more than", operator.gt),
    "most": ("at most", operator.le),
    "below": ("less than", operator.lt),
}
_NUMBERS: Final[Mapping[Any, str]] = {int: "a whole number", float: "a number"}
_OPTIONS: Final = "    **options\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Declaration of an option besides its name, type and default.

    Attributes
    ----------
    help
        Its meaning and unit.
    metavar
        Placeholder of its value. None: made from its type.
    section
        Heading of the help that it stands under. None: that of its record.
    flag
        Its name on the command line. None: ``--`` and its name.
    parse
        Makes a value of text. None: its type does.
    check
        Raises `UsageError` for a value that is not valid.
    sparse
        Whether it is left out of a store's attributes at its default.
    positional
        Whether it is an argument of the command line.
    required
        Whether the command line must have it, although functions have a default.
    bounds
        Valid range of a number: ``least``, ``above``, ``most`` or ``below``.
    """

    help: str
    metavar: str | None = None
    section: str | None = None
    flag: str | None = None
    parse: Callable[[str], Any] | None = None
    check: Callable[[Any], object] | None = None
    sparse: bool = False
    positional: bool = False
    required: bool = False
    bounds: Mapping[str, float] = field(default_factory=dict)


def option(
    default: Any,  # noqa: ANN401 - of the field's type; MISSING: the option is required
    text: str,
    metavar: str | None = None,
    *,
    section: str | None = None,
    flag: str | None = None,
    parse: Callable[[str], Any] | None = None,
    check: Callable[[Any], object] | None = None,
    sparse: bool = False,
    required: bool = False,
    **bounds: float,
) -> Any:  # noqa: ANN401 - as `dataclasses.field`
    """Return a field of a dataclass that is an option; see `Option`.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Cutting:
    ...     side: int = option(256, "Side in pixels.", "PIXELS", least=1)
    >>> settings_of(Cutting)["side"].value("512")
    512
    """
    declared = Option(
        help=text, metavar=metavar, section=section, flag=flag, parse=parse, check=check,
        sparse=sparse, required=required or default is MISSING, bounds=bounds,
    )  # fmt: skip
    return field(default=default, metadata={"option": declared})


def overwrite_option() -> Any:  # noqa: ANN401 - as `option`
    """Return the field of every record with a file to write; see `geoprep.outputs`."""
    return option(False, "Replace files that exist.")


def workers_option() -> Any:  # noqa: ANN401 - as `option`
    """Return the field of every record of work that threads share."""
    return option(None, "Number of worker threads. Default: one per core.", "N", least=1)


def argument(text: str, metavar: str, **default: Any) -> Any:  # noqa: ANN401 - of the field's type
    """Return a field of a dataclass that is a positional argument of the command line.

    It takes one word, or several if the field's type is a tuple. ``default=()`` makes it optional.
    """
    declared = Option(help=text, metavar=metavar, positional=True)
    return field(metadata={"option": declared}, **default)


class Setting:
    """An option with its name, type and default: converts and checks its values.

    The type is ``int``, ``float``, ``str``, ``bool``, ``Path``, a Literal, None, a union of them,
    or a tuple of one of them, of an argument or option with several values.
    """

    def __init__(self, item: Field[Any], kind: Any) -> None:  # noqa: ANN401 - a type form
        self.declared: Option = item.metadata["option"]
        self.name, self.default, self.help = item.name, item.default, self.declared.help
        self.positional, self.bounds = self.declared.positional, self.declared.bounds
        # An option with a parser takes all values of a tuple from one word.
        self.several = get_origin(kind) is tuple and self.declared.parse is None
        self.flag = self.declared.flag or f"--{item.name.replace('_', '-')}"
        kind = get_args(kind)[0] if self.several else kind
        self.kinds = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
        shown = [kind for kind in self.kinds if kind is not NoneType or self.default is not None]
        self.metavar = self.declared.metavar or "|".join(map(_type_name, shown))

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of its Literals; empty if its type has others."""
        named = [kind for kind in self.kinds if kind is not NoneType]
        literal = all(get_origin(kind) is Literal for kind in named)
        return tuple(value for kind in named for value in get_args(kind)) if literal else ()

    @property
    def range(self) -> str:
        """The valid range in words; empty if any number is valid."""
        if self.bounds.keys() == {"least", "most"}:
            return f"from {self.bounds['least']:g} to {self.bounds['most']:g}"
        return " and ".join(f"{BOUNDS[name][0]} {bound:g}" for name, bound in self.bounds.items())

    def value(self, given: Any) -> Any:  # noqa: ANN401 - of YAML or Python, and of the field
        """Return a value of YAML, of Python or of a command line as the option's.

        Raises
        ------
        UsageError
            It is of another type, or not valid.
        """
        if not self.several:
            return self.convert(given)
        several = [given] if isinstance(given, str | os.PathLike) else given
        return tuple(map(self.convert, several))

    def convert(self, given: Any) -> Any:  # noqa: ANN401 - as of `value`
        """Return one word or value as the option's; see `value`."""
        if isinstance(given, list | tuple) and self.metavar.endswith(",..."):
            given = ",".join(map(str, given))  # as YAML and Python write a list
        if isinstance(given, str) and not given.strip():
            raise UsageError(self.name, "is empty. Is a shell variable not set?")
        if self.declared.parse is not None and isinstance(given, str):
            value = self.declared.parse(given)
        elif Any in self.kinds:
            value = given
        else:
            words: tuple[str, ...] = ("none",) if given is None else (str(given),)
            if isinstance(given, bool):  # YAML reads a bare `off`, `no`, `on` or `yes` as one
                words = ("true", "on", "yes") if given else ("false", "off", "no")
            # In reverse order: `none` is None before it is the name of a file.
            found = [v for k in reversed(self.kinds) for word in words for v in _parsed(k, word)]
            if not found:
                shown = words[1] if isinstance(given, bool) else words[0]
                if self.choices:
                    raise self._unknown(shown)
                numbers = [_NUMBERS.get(kind) for kind in self.kinds if kind is not NoneType]
                wanted = numbers[0] if len(numbers) == 1 and numbers[0] else self.metavar
                raise UsageError(self.name, f": {shown!r} is not {wanted}")
            value = found[0]
        self.check(value)
        return value

    def _unknown(self, value: object) -> UsageError:
        unset = NoneType in self.kinds and self.default is not None  # as the metavar has it
        known = ", ".join(map(str, (*self.choices, *["none"] * unset)))
        return UsageError(self.name, f"{value!r} is unknown: use one of {known}")

    def check(self, value: Any) -> None:  # noqa: ANN401 - of the option's type
        """Raise UsageError if a value of the option's type is not valid."""
        if value is None:
            return
        if self.choices and value not in self.choices:
            raise self._unknown(value)
        if self.bounds and isinstance(value, int | float):
            held = (BOUNDS[name][1](value, bound) for name, bound in self.bounds.items())
            if not (math.isfinite(value) and all(held)):
                raise UsageError(self.name, f"{value}: must be {self.range}")
        if self.declared.check is not None:
            self.declared.check(value)


def _type_name(kind: Any) -> str:  # noqa: ANN401 - a type form
    """Return the placeholder for values of a type: its choices, or its name in capitals."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    name: str = getattr(kind, "__name__", "VALUE").upper()
    return {NoneType: "none", bool: "true|false"}.get(kind, name)


def _parsed(kind: Any, text: str) -> Iterator[Any]:  # noqa: ANN401 - a type form, and a value
    """Yield the value of a word as one type; nothing if it is not of that type."""
    if get_origin(kind) is Literal or kind is bool:
        choices = (True, False) if kind is bool else get_args(kind)
        yield from (choice for choice in choices if str(choice).lower() == text.lower())
    elif kind is NoneType:
        yield from [None] * (text.lower() == "none")
    else:
        try:
            value = kind(text)
        except ValueError:
            return
        if kind is not float or math.isfinite(value):
            yield value


@functools.cache
def settings_of(record: type) -> dict[str, Setting]:
    """Return the options of a record by name, in its order; other fields are left out."""
    kinds = get_type_hints(record)
    declared = [item for item in fields(record) if "option" in item.metadata]
    return {item.name: Setting(item, kinds[item.name]) for item in declared}


def checked_values(
    settings: Mapping[str, Setting], values: Mapping[Any, Any], where: str = ""
) -> dict[str, Any]:
    """Return options by name, from those of YAML or Python; ``where`` begins errors of names.

    Raises
    ------
    UsageError
        An option is unknown, or its value is not valid.
    """
    given = {}
    for written, value in values.items():
        name = str(written).replace("-", "_")
        if name not in settings:
            hint = suggestion(name, sorted(settings)) or "; see --help-all"
            raise UsageError(f"{where}unknown setting {name!r}{hint}")
        given[name] = settings[name].value(value)
    return given


def check_options(options: object, record: type) -> None:
    """Raise UsageError if an option of a record has a value that is not valid."""
    for name, setting in settings_of(record).items():
        setting.check(getattr(options, name))


def local_output(text: str) -> Path:
    """Return the path of an output; raise UsageError for an address such as ``s3://bucket``."""
    if "://" in text:
        raise UsageError(
            "out",
            f"{text}: this command writes to local folders only. Copy the result afterwards, "
            "for example with aws s3 cp --recursive",
        )
    return Path(text)


def any_output(text: str) -> str | Path:
    """Return the path of an output, or its ``s3://`` address as text."""
    return text if text.startswith("s3://") else local_output(text)


def made(record: type[R], given: dict[str, Any]) -> R:
    """Return a record of those options that are its fields, which are taken out, by name.

    Options are converted and checked as on a command line; other fields have the value given.
    """
    names = {item.name for item in fields(record)}  # type: ignore[arg-type]  # a dataclass
    own = {name: given.pop(name) for name in names & given.keys()}
    settings = settings_of(record)  # type: ignore[arg-type]  # classes are hashable
    options = {name: own.pop(name) for name in settings.keys() & own.keys()}
    return record(**checked_values(settings, options), **own)


def options_of(record: type, *only: str) -> list[Field[Any]]:
    """Return the fields of a record, or some of them."""
    return [item for item in fields(record) if not only or item.name in only]


def with_options(declared: Iterable[Field[Any]]) -> Callable[[F], F]:
    """Return a decorator that replaces ``**options`` of a function by declared keywords.

    They are in its signature and in its docstring, and unknown ones are refused. Parameters that
    the function has itself are documented too.
    """
    declared = list(declared)

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if item.default is MISSING else item.default,
                annotation=item.type,
            )
            for item in declared
            if item.name not in signature.parameters
        ]
        signature = signature.replace(parameters=[*own, *keywords])

        @functools.wraps(function)
        def checked(*arguments: Any, **given: Any) -> Any:  # noqa: ANN401 - the function's
            signature.bind(*arguments, **given)
            return function(*arguments, **given)

        documented = [item for item in declared if item.metadata]
        texts = (
            f"{item.name}\n{textwrap.indent(_help_of(item), ' ' * 4)}\n" for item in documented
        )
        entries = textwrap.indent("".join(texts), " " * 4)
        checked.__doc__ = (function.__doc__ or "").replace(_OPTIONS, entries)
        checked.__signature__ = signature  # type: ignore[attr-defined]  # as inspect documents
        return checked  # type: ignore[return-value]  # the same function

    return decorate


def _help_of(item: Field[Any]) -> str:
    """Return the help of an option, which turns a keyword off that is on by default."""
    text: str = item.metadata["option"].help
    text = f"False: {text[0].lower()}{text[1:]}" if item.default is True else text
    literal = re.sub(r"\S*\*\S*?(?=[.,;)]*(?:\s|$))", r"``\g<0>``", text)  # patterns of files
    return textwrap.fill(literal, 88)
