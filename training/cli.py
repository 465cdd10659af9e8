"""The command lines of this package: settings are fields of dataclasses, errors are one line.

A field says its default, its line of ``--help`` and what values make sense; the same words are
understood on the command line and in a YAML file. `run_command` knows every exit status.
"""

from __future__ import annotations

import argparse
import difflib
import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints

from geoprep.errors import GeoprepError, SourceError, UsageError

T = TypeVar("T")


class Status(IntEnum):
    """What a command tells the shell."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    INTERRUPTED = 130
    BROKEN_PIPE = 141


STATUSES = """\
Exits with 0 when all is done, 1 when something failed, 2 when the request cannot be carried out as
it is written, and 129, 130 or 143 when a hang-up, Ctrl-C or SIGTERM stopped it.
"""
"""For the end of every ``--help``."""


def option(
    default: T,
    text: str,
    metavar: str | None = None,
    *,
    flags: Sequence[str] = (),
    check: Callable[[Any], object] | None = None,
    **bounds: float,
) -> T:
    """Return a field for an option of the command line.

    Parameters
    ----------
    default
        Its value where nothing is said.
    text
        Its line of ``--help``.
    metavar
        What to write for its value; None spells out its type.
    flags
        Further names, such as ``--network``.
    check
        Called with a value; raises `UsageError` where it makes no sense.
    **bounds
        ``least``, ``above``, ``most`` or ``below``: which numbers make sense.
    """
    about = {
        "help": text,
        "metavar": metavar,
        "flags": tuple(flags),
        "check": check,
        "bounds": bounds,
    }
    described: T = field(default=default, metadata=about)
    return described


def argument(text: str, metavar: str, **default: Any) -> Any:  # noqa: ANN401 - of the field's type
    """Return a field for what has no flag: one word, or several where its type is a tuple.

    ``default=()`` is for what may be left out.
    """
    about = {"help": text, "metavar": metavar, "bounds": {}, "positional": True}
    return field(metadata=about, **default)


_BOUNDS = {
    "least": ("at least", operator.ge),
    "above": ("more than", operator.gt),
    "most": ("at most", operator.le),
    "below": ("less than", operator.lt),
}


def _out_of(bounds: Mapping[str, float], value: float) -> str | None:
    """Return what a number should be, None where it is."""
    wanted = [(*_BOUNDS[name], bound) for name, bound in bounds.items()]
    if all(holds(value, bound) for _, holds, bound in wanted):
        return None
    return " and ".join(f"{word} {bound:g}" for word, _, bound in wanted)


def convert(kind: Any, given: object, flag: str, metavar: str | None = None) -> Any:  # noqa: ANN401 - a type, and a value of it
    """Return what a word, or a value of YAML, means as a value of a type.

    The type is ``int``, ``float``, ``str``, ``bool``, ``Path``, a Literal, None, or a union of
    them. YAML's numbers, booleans and null are taken by how they are written.

    Raises
    ------
    UsageError
        It is no such value; the message begins with the flag.
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


class Command:
    """A command line made of dataclasses.

    Parameters
    ----------
    name
        As a person types it, such as ``python -m training.fit``.
    sections
        Dataclasses whose fields are `option` or `argument`: a group of ``--help`` each, under
        what their docstring says (``Title: text.``).
    introduction, closing
        Above and below the options in ``--help``.
    takes_file
        Offer ``--config FILE``: settings in YAML, which flags override.
    """

    def __init__(
        self,
        name: str,
        sections: Sequence[type[Any]],
        introduction: str,
        closing: str = "",
        *,
        takes_file: bool = False,
    ) -> None:
        self.name = name
        self.sections = tuple(sections)
        self._fields = {f.name: f for section in sections for f in fields(section)}
        self._kinds = {k: v for section in sections for k, v in hints(section).items()}
        self._parser = _Parser(
            prog=name,
            description=introduction,
            epilog=f"{closing}{STATUSES}",
            formatter_class=partial(
                argparse.RawDescriptionHelpFormatter, width=100, max_help_position=30
            ),
            usage=f"%(prog)s {' '.join(_positionals(self._fields.values()))} [options]",
            allow_abbrev=False,
        )
        for section in sections:
            title, _, text = (section.__doc__ or "").rstrip(".").partition(": ")
            group = self._parser.add_argument_group(title, text)
            for item in fields(section):
                self._add(group, item)
        if takes_file:
            text = "Settings in YAML, with the names of the options; flags win."
            self._parser.add_argument("--config", metavar="FILE", help=text)

    def help(self) -> str:
        """Return what ``--help`` prints."""
        return self._parser.format_help()

    def parse(self, arguments: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the settings that a person gave, by name; what has not been said is left out.

        None stands for the words of this process.

        Raises
        ------
        UsageError
            A setting is unknown, of the wrong type or out of its range, or a file is unreadable.
        """
        words = list(sys.argv[1:] if arguments is None else arguments)
        self._refuse_unknown_flags(words)
        given = vars(self._parser.parse_intermixed_args(words))
        path = given.pop("config", None)
        read = {} if path is None else self.read_file(path)
        said = {name: self._value(name, text) for name, text in given.items() if _is_said(text)}
        return read | said

    def read_file(self, path: str) -> dict[str, Any]:
        """Return the settings of a YAML file.

        Raises
        ------
        UsageError
            It cannot be read, or a setting in it is unknown or makes no sense.
        """
        import yaml

        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"--config {path} cannot be read: {reason}") from error
        if not isinstance(values, dict | None):
            raise UsageError(f"--config {path} holds no settings: write lines such as `lr: 2e-4`")
        named = {str(name).replace("-", "_"): value for name, value in (values or {}).items()}
        for name in named:
            if name not in self._fields:
                raise UsageError(f"{path}: unknown setting {name!r}{_nearest(name, self._fields)}")
        return {name: self._value(name, value) for name, value in named.items()}

    def _add(self, group: Any, item: Field[Any]) -> None:  # noqa: ANN401 - argparse's
        about, kind = item.metadata, self._kinds[item.name]
        text = about["help"].replace("%", "%%")
        shared = {"help": text, "default": None}
        metavar = about["metavar"] or "|".join(spelt(kind))
        if "positional" in about:
            nargs = None
            if get_origin(kind) is tuple:
                nargs = "+" if item.default is MISSING else "*"
            extra = {} if nargs is None else {"nargs": nargs}
            group.add_argument(item.name, metavar=metavar, **shared, **extra)
            return
        flags = (_flag(item.name), *about["flags"])
        if kind is bool:
            group.add_argument(*flags, dest=item.name, action="store_true", **shared)
            return
        if item.default is not None and item.default is not MISSING:
            shared["help"] = f"{text} (default: {str(item.default).replace('%', '%%')})"
        group.add_argument(*flags, dest=item.name, metavar=metavar, **shared)

    def _value(self, name: str, given: Any) -> Any:  # noqa: ANN401 - of the field's type
        item, kind = self._fields[name], self._kinds[name]
        flag = item.metadata["metavar"] if "positional" in item.metadata else _flag(name)
        if get_origin(kind) is tuple:
            every = [given] if isinstance(given, str) else given
            return tuple(convert(get_args(kind)[0], text, flag) for text in every)
        value = convert(kind, given, flag, item.metadata["metavar"])
        if isinstance(value, int | float) and not isinstance(value, bool):
            problem = _out_of(item.metadata["bounds"], value)
            if problem:
                raise UsageError(f"{flag} {given}: must be {problem}")
        check = item.metadata.get("check")
        if check is not None and value is not None:
            check(value)
        return value

    def _refuse_unknown_flags(self, words: Iterable[str]) -> None:
        known = self._parser.flags()
        for word in words:
            flag = word.split("=", 1)[0]
            if word.startswith("--") and flag not in known and word != "--":
                raise UsageError(f"unknown option {flag}{_nearest(flag, known)}")


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing its usage and ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; --help shows how")

    def flags(self) -> list[str]:
        """Return all flags."""
        return [flag for action in self._actions for flag in action.option_strings]


def _positionals(items: Iterable[Field[Any]]) -> Iterator[str]:
    for item in items:
        if "positional" in item.metadata:
            several = "tuple" in str(item.type)
            yield f"{item.metadata['metavar']}{' ...' if several else ''}"


def _is_said(value: object) -> bool:
    return value is not None and value != []


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f": did you mean {near[0]}?" if near else "; --help lists them all"


def write_file(path: Path, sections: Iterable[type[Any]], values: Mapping[str, Any]) -> None:
    """Write settings as YAML, by section, so that ``--config`` takes them.

    Parameters
    ----------
    path
        Of the file.
    sections
        As for `Command`.
    values
        By name, plain; those that are not there are left out.
    """
    import yaml

    lines = ["# Settings of this run: `--config` takes this file."]
    for section in sections:
        part = {f.name: values[f.name] for f in fields(section) if f.name in values}
        lines += [f"\n# {section.__doc__}", yaml.safe_dump(part, sort_keys=False).rstrip()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def wait_passively() -> None:
    """Have the threads of GNU OpenMP sleep while they wait, unless the environment says how.

    By themselves they spin. Beside other busy processes that takes the processor from those who
    have work: with ten others on two cores a step took 1.8 to 3.2 times as long, and 3.6 times the
    processor time (measured). To be called before torch is loaded.
    """
    if "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def run_command(command: Callable[[], int]) -> int:
    """Run a command and return its exit status; what a person can act on is one line.

    Parameters
    ----------
    command
        Returns an exit status, or raises. Imports torch, if it does, when it is called.
    """
    wait_passively()
    # torch's profiler says on the terminal when it starts and stops, as its highest level: 5.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    try:
        return command()
    except GeoprepError as error:
        usage = isinstance(error, UsageError | SourceError)
        return _failed(str(error), Status.REFUSED if usage else Status.FAILED)
    except BrokenPipeError:
        return Status.BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _failed(f"{where}{error.strerror or error}", Status.FAILED)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        first = (str(error).splitlines() or ["no more of it"])[0]
        return _failed(f"out of memory ({first}): take a smaller --batch-size", Status.FAILED)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return Status.INTERRUPTED


def _failed(message: str, status: Status) -> int:
    rank = os.environ.get("RANK")
    print(f"Error{f' (rank {rank})' if rank else ''}: {message}", file=sys.stderr)
    return status


def _is_out_of_memory(error: Exception) -> bool:
    """Whether this is a want of memory, which torch tells of as a RuntimeError."""
    return isinstance(error, MemoryError) or any(
        sign in str(error).lower() for sign in ("out of memory", "can't allocate memory")
    )
