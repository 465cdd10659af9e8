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
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

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
    about = {"help": text, "metavar": metavar, "flags": flags, "check": check, "bounds": bounds}
    described: T = field(default=default, metadata=about)
    return described


def argument(text: str, metavar: str, **default: Any) -> Any:  # noqa: ANN401 - of the field's type
    """Return a field for what has no flag: one word, or several where its type is a tuple.

    ``default=()`` is for what may be left out.
    """
    return field(metadata={"help": text, "metavar": metavar, "positional": True}, **default)


_BOUNDS = {
    "least": ("at least", operator.ge),
    "above": ("more than", operator.gt),
    "most": ("at most", operator.le),
    "below": ("less than", operator.lt),
}
_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}


class Setting:
    """A field of a dataclass as words on a command line or in a file.

    Parameters
    ----------
    item
        An `option` or `argument`.
    kind
        Its type: ``int``, ``float``, ``str``, ``bool``, ``Path``, a Literal, None, a union of
        them, or for an argument a tuple of one of them.
    """

    def __init__(self, item: Field[Any], kind: Any) -> None:  # noqa: ANN401 - a type form
        about = item.metadata
        self.name, self.default, self.help = item.name, item.default, about["help"]
        self.positional = "positional" in about
        self.several = get_origin(kind) is tuple
        self.flags = (f"--{item.name.replace('_', '-')}", *about.get("flags", ()))
        self.check, self.bounds = about.get("check"), about.get("bounds", {})
        kind = get_args(kind)[0] if self.several else kind
        self.kinds = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
        self.metavar = about["metavar"] or "|".join(map(_spelt, self.kinds))
        self.shown = self.metavar if self.positional else self.flags[0]

    def value(self, text: str) -> Any:  # noqa: ANN401 - of the field's type
        """Return what a word means.

        Raises
        ------
        UsageError
            It is no such value, or makes no sense.
        """
        # The last one first: `none` is no name of a file.
        found = [value for kind in reversed(self.kinds) for value in _readings(kind, text)]
        if not found:
            numbers = [_NUMBERS.get(kind) for kind in self.kinds if kind is not NoneType]
            wanted = numbers[0] if len(numbers) == 1 and numbers[0] else self.metavar
            raise UsageError(f"{self.shown}: {text!r} is not {wanted}")
        value = found[0]
        if isinstance(value, int | float):
            wanted = [(*_BOUNDS[name], bound) for name, bound in self.bounds.items()]
            if not all(holds(value, bound) for _, holds, bound in wanted):
                bounds = " and ".join(f"{word} {bound:g}" for word, _, bound in wanted)
                raise UsageError(f"{self.shown} {text}: must be {bounds}")
        if self.check is not None and value is not None:
            self.check(value)
        return value

    def words(self, value: Any) -> list[str]:  # noqa: ANN401 - of YAML
        """Return a value of YAML as it is written on the command line."""
        if self.positional:
            return [str(part) for part in ([value] if isinstance(value, str) else value)]
        text = "none" if value is None else str(value)
        if self.kinds == (bool,) and text.lower() in ("true", "false"):
            return [self.flags[0]] * (text.lower() == "true")
        return [f"{self.flags[0]}={text}"]

    def add_to(self, group: Any) -> None:  # noqa: ANN401 - argparse's
        """Add it to a parser."""
        how: dict[str, Any] = {"help": self.help.replace("%", "%%")}
        if self.kinds == (bool,):
            group.add_argument(*self.flags, dest=self.name, action="store_true", **how)
            return
        how |= {"metavar": self.metavar, "type": self.value}
        if self.positional:
            if self.several:
                how["nargs"] = "+" if self.default is MISSING else "*"
            group.add_argument(self.name, **how)
            return
        if self.default is not None:
            how["help"] += f" (default: {str(self.default).replace('%', '%%')})"
        group.add_argument(*self.flags, dest=self.name, **how)


def _spelt(kind: Any) -> str:  # noqa: ANN401 - a type form
    """Return how to write the values of one type: choices by name, types in capitals."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    name: str = kind.__name__.upper()
    return "none" if kind is NoneType else name


def _readings(kind: Any, text: str) -> Iterator[Any]:  # noqa: ANN401 - a type form, and a value
    """Yield what a word means as a value of one type, nothing where it is none."""
    if get_origin(kind) is Literal:
        yield from (choice for choice in get_args(kind) if str(choice) == text)
    elif kind is NoneType:
        yield from [None] * (text.lower() == "none")
    else:
        try:
            value = kind(text)
        except ValueError:
            return
        if kind is not float or math.isfinite(value):
            yield value


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
        self._parser = _Parser(
            prog=name,
            description=introduction,
            epilog=f"{closing}{STATUSES}",
            formatter_class=partial(
                argparse.RawDescriptionHelpFormatter, width=100, max_help_position=30
            ),
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        self._settings: dict[str, Setting] = {}
        for section in sections:
            title, _, text = (section.__doc__ or "").rstrip(".").partition(": ")
            group, kinds = self._parser.add_argument_group(title, text), get_type_hints(section)
            for item in fields(section):
                setting = self._settings[item.name] = Setting(item, kinds[item.name])
                setting.add_to(group)
        self._flags = {flag for each in self._settings.values() for flag in each.flags} | {"--help"}
        if takes_file:
            text = "Settings in YAML, with the names of the options; flags win."
            self._parser.add_argument("--config", metavar="FILE", help=text)
            self._flags.add("--config")
        positional = [each for each in self._settings.values() if each.positional]
        words = [each.metavar + " ..." * each.several for each in positional]
        self._parser.usage = f"%(prog)s {' '.join(words)} [options]"

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
        for word in words:
            flag = word.split("=", 1)[0]
            if word.startswith("--") and flag not in self._flags and word != "--":
                raise UsageError(f"unknown option {flag}{_nearest(flag, self._flags)}")
        given = self._parsed(words)
        path = given.pop("config", None)
        return given if path is None else self._parsed(self._words_of(path)) | given

    def _parsed(self, words: Sequence[str]) -> dict[str, Any]:
        given = vars(self._parser.parse_intermixed_args(words))
        return {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}

    def _words_of(self, path: str) -> list[str]:
        """Return the settings of a YAML file as words of a command line."""
        import yaml

        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"--config {path} cannot be read: {reason}") from error
        if not isinstance(values, dict | None):
            raise UsageError(f"--config {path} holds no settings: write lines such as `lr: 2e-4`")
        words = []
        for written, value in (values or {}).items():
            name = str(written).replace("-", "_")
            if name not in self._settings:
                near = _nearest(name, self._settings)
                raise UsageError(f"{path}: unknown setting {name!r}{near}")
            words += self._settings[name].words(value)
        return words


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing its usage and ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; --help shows how")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
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
        first = (str(error).splitlines() or ["no more of it"])[0]
        signs = ("out of memory", "can't allocate memory")  # of torch's RuntimeErrors
        if isinstance(error, RuntimeError) and not any(s in str(error).lower() for s in signs):
            raise
        return _failed(f"out of memory ({first}): take a smaller --batch-size", Status.FAILED)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return Status.INTERRUPTED


def _failed(message: str, status: Status) -> int:
    rank = os.environ.get("RANK")
    print(f"Error{f' (rank {rank})' if rank else ''}: {message}", file=sys.stderr)
    return status
