"""The command lines of this package: options are fields of dataclasses, errors are one line.

Option names are spelled here only: code below names a parameter in backticks, and `Command.spell`
replaces it by the option.
"""

from __future__ import annotations

import difflib
import gc
import math
import operator
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, field, fields
from enum import IntEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from geoprep.cli import GroupedCommand, GroupedOption, name_options
from geoprep.errors import GeoprepError, SourceError, UsageError

T = TypeVar("T")


def option(
    default: T,
    text: str,
    metavar: str | None = None,
    *,
    check: Callable[[Any], object] | None = None,
    **bounds: float,
) -> T:
    """Return a dataclass field that is an option of the command line.

    Parameters
    ----------
    default
        Its value if the option is not given.
    text
        Its help.
    metavar
        Placeholder for its value in ``--help``; None derives it from the field's type.
    check
        Called with a value; raises `UsageError` if the value is invalid.
    **bounds
        Valid range of a number: ``least``, ``above``, ``most`` or ``below``.
    """
    metadata = {"help": text, "metavar": metavar}
    described: T = field(default=default, metadata=metadata | {"check": check, "bounds": bounds})
    return described


def argument(text: str, metavar: str, **default: Any) -> Any:  # noqa: ANN401 - of the field's type
    """Return a dataclass field that is a positional argument of the command line.

    It takes one word, or several if the field's type is a tuple. ``default=()`` makes it optional.
    """
    return field(metadata={"help": text, "metavar": metavar, "positional": True}, **default)


class Status(IntEnum):
    """Exit status of a command."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    INTERRUPTED = 130
    BROKEN_PIPE = 141


STATUSES = """\
Exit status: 0 success, 1 failure, 2 invalid options or input, 129, 130 or 143 stopped by SIGHUP,
Ctrl-C or SIGTERM.
"""
"""Last lines of every ``--help``."""


_BOUNDS = {
    "least": ("at least", operator.ge),
    "above": ("more than", operator.gt),
    "most": ("at most", operator.le),
    "below": ("less than", operator.lt),
}
_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}


class Setting(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A field of a dataclass, an `option` or `argument`, as an option and a key of a YAML file.

    Its type is ``int``, ``float``, ``str``, ``bool``, ``Path``, a Literal, None, a union of them,
    or for an argument a tuple of one of them.
    """

    def __init__(self, item: Field[Any], kind: Any) -> None:  # noqa: ANN401 - a type form
        metadata = item.metadata
        self.name, self.default, self.help = item.name, item.default, metadata["help"]
        self.positional = "positional" in metadata
        self.several = get_origin(kind) is tuple
        self.flag = f"--{item.name.replace('_', '-')}"
        self.check, self.bounds = metadata.get("check"), metadata.get("bounds", {})
        kind = get_args(kind)[0] if self.several else kind
        self.kinds = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
        self.metavar = metadata["metavar"] or "|".join(map(_type_name, self.kinds))

    def value(self, given: Any) -> Any:  # noqa: ANN401 - of YAML or Python, and of the field
        """Return a value of YAML or Python as the setting's; raise UsageError if it is invalid."""
        if not self.several:
            return self.convert(given)
        return tuple(map(self.convert, [given] if isinstance(given, str) else given))

    def convert(
        self,
        value: Any,  # noqa: ANN401 - a word of the command line, or as above
        param: click.Parameter | None = None,
        ctx: click.Context | None = None,
    ) -> Any:  # noqa: ANN401 - of the field's type
        """Return the value of a word; raise UsageError if it is of another type or out of range."""
        words: tuple[str, ...] = ("none",) if value is None else (str(value),)
        if isinstance(value, bool):  # YAML reads a bare `off`, `no`, `on` or `yes` as one
            words = ("true", "on", "yes") if value else ("false", "off", "no")
        # In reverse order: `none` is None before it is the name of a file.
        found = [v for kind in reversed(self.kinds) for word in words for v in _parsed(kind, word)]
        if not found:
            numbers = [_NUMBERS.get(kind) for kind in self.kinds if kind is not NoneType]
            wanted = numbers[0] if len(numbers) == 1 and numbers[0] else self.metavar
            shown = words[1] if isinstance(value, bool) else words[0]
            raise UsageError(f"`{self.name}`: {shown!r} is not {wanted}")
        if isinstance(found[0], int | float):
            bounds = [(*_BOUNDS[name], bound) for name, bound in self.bounds.items()]
            if not all(holds(found[0], bound) for _, holds, bound in bounds):
                wanted = " and ".join(f"{word} {bound:g}" for word, _, bound in bounds)
                raise UsageError(f"`{self.name}` {value}: must be {wanted}")
        if self.check is not None and found[0] is not None:
            self.check(found[0])
        return found[0]

    def parameter(self, section: str) -> click.Parameter:
        """Return the parameter of click, listed in a section of ``--help``."""
        if self.positional:
            return _Argument(
                [self.name],
                type=self,
                nargs=-1 if self.several else 1,
                required=self.default is MISSING,
                metavar=self.metavar + " ..." * self.several,
                section=section,
                text=self.help,
            )
        flag = self.kinds == (bool,)
        return GroupedOption(
            [self.flag, self.name],
            section=section,
            default=self.default,
            show_default=not flag and self.default is not None,
            help=self.help,
            is_flag=flag,
            **({} if flag else {"type": self, "metavar": self.metavar}),
        )


class _Argument(click.Argument):
    """A positional argument that ``--help`` lists with a text."""

    def __init__(self, *args: Any, section: str, text: str, **kwargs: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*args, **kwargs)
        self.section, self.text = section, text

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return self.make_metavar(ctx), self.text


def _type_name(kind: Any) -> str:  # noqa: ANN401 - a type form
    """Return the placeholder for values of a type: its choices, or its name in capitals."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    name: str = kind.__name__.upper()
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


class Command(GroupedCommand):
    """A command line made of dataclasses, whose fields are `option` or `argument`.

    Each is a section of ``--help``, titled by its docstring (``Title: text.``); a class that is
    derived from others adds its own fields as the last one. ``--help`` lists
    the ``common`` settings, ``--help-all`` every one. If it ``takes_file``, ``--config FILE`` gives
    settings in YAML, which options override.
    """

    def __init__(
        self,
        name: str,
        sections: Sequence[type[Any]],
        introduction: str,
        closing: str = "",
        *,
        common: Sequence[str] = (),
        takes_file: bool = False,
    ) -> None:
        self.settings: dict[str, Setting] = {}
        parameters: list[click.Parameter] = []
        for section in sections:
            kinds = get_type_hints(section)
            for item in fields(section):
                if item.name in self.settings:  # inherited from another section
                    continue
                setting = self.settings[item.name] = Setting(item, kinds[item.name])
                title = (section.__doc__ or "").partition(":")[0]
                parameters.append(setting.parameter(title))
        if takes_file:
            text = "YAML file of settings, named as the options; options override it."
            file = GroupedOption(["--config"], section="Run", metavar="FILE", help=text)
            parameters.append(file)
        super().__init__(
            name,
            params=parameters,
            help=_verbatim(introduction),
            epilog=_verbatim(closing + STATUSES),
            common=(*(common or self.settings), "config"),
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
            options_metavar="[options]",
        )

    def spell(self, message: str) -> str:
        """Return a message with parameters in backticks replaced by options of this command.

        `` `batch_size` `` becomes ``--batch-size`` if there is such an option; other names stay.
        """
        for setting in self.settings.values():
            if setting.positional:
                message = message.replace(f"`{setting.name}`", setting.metavar)
        return name_options(message, click.Context(self))

    def parse(self, arguments: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the settings that were given, by name; settings that were not are left out."""
        words = list(sys.argv[1:] if arguments is None else arguments)
        try:
            context = self.make_context(self.name, words)
        except click.ClickException as error:
            raise UsageError(f"{error.format_message()} See --help") from error
        except click.exceptions.Exit as done:
            raise SystemExit(done.exit_code) from None
        given = {
            name: value
            for name, value in context.params.items()
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and value != ()
        }
        path = given.pop("config", None)
        return given if path is None else self._read(path) | given

    def _read(self, path: str) -> dict[str, Any]:
        """Return the settings of a YAML file."""
        values = read_yaml(path, "config")
        if not isinstance(values, dict | None):
            raise UsageError(f"`config` {path} holds no settings: write lines such as `lr: 2e-4`")
        return self.parse_values(values or {}, f"{path}: ")

    def parse_values(self, values: Mapping[Any, Any], where: str = "") -> dict[str, Any]:
        """Return settings by name, checked as those of the command line."""
        given = {}
        for written, value in values.items():
            name = str(written).replace("-", "_")
            if name not in self.settings:
                near = difflib.get_close_matches(name, sorted(self.settings), n=1, cutoff=0.5)
                hint = f": did you mean {near[0]}?" if near else "; see --help-all"
                raise UsageError(f"{where}unknown setting {name!r}{hint}")
            given[name] = self.settings[name].value(value)
        return given


def _verbatim(text: str) -> str:
    """Return a text whose lines click leaves as they are."""
    return "\n\n".join(f"\b\n{part}" for part in text.strip().split("\n\n"))


def read_yaml(path: str, parameter: str) -> Any:  # noqa: ANN401 - a file may hold anything
    """Return the content of the YAML file that a parameter names."""
    import yaml

    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"`{parameter}` {path} cannot be read: {reason}") from error


def write_file(path: Path, sections: Iterable[type[Any]], values: Mapping[str, Any]) -> None:
    """Write settings as YAML, by section, in a form that ``--config`` reads."""
    import yaml

    lines = ["# Settings of this run: `--config` takes this file."]
    for section in sections:
        part = {f.name: values[f.name] for f in fields(section) if f.name in values}
        lines += [f"\n# {section.__doc__}", yaml.safe_dump(part, sort_keys=False).rstrip()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


SPINS = "10000"
"""Rounds for which idle threads of GNU OpenMP spin before they sleep, some tens of microseconds."""


def limit_spinning() -> None:
    """Let idle threads spin for a moment, then sleep, unless the environment says how they wait.

    Threads that sleep at once are woken hundreds of times in a step. Threads that spin on take
    processor time from other processes, so on a machine with twice as many of those as processors
    they sleep at once. Call this before torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        crowded = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
        os.environ.setdefault("GOMP_SPINCOUNT", "0" if crowded else SPINS)


def run_command(command: Callable[[], int], line: Command) -> int:
    """Run a command and return its exit status; print expected errors as one line.

    It imports torch, if needed, when it is called. Options of ``line`` replace names in errors.
    """
    limit_spinning()
    gc.set_threshold(10_000)  # imports make many objects and no garbage: a tenth of the start
    # torch's profiler prints on the terminal when it starts and stops, at its highest level: 5.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    try:
        with _signals():
            return command()
    except GeoprepError as error:
        usage = isinstance(error, UsageError | SourceError)
        return _failed(line.spell(str(error)), Status.REFUSED if usage else Status.FAILED)
    except BrokenPipeError:
        return Status.BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _failed(f"{where}{error.strerror or error}", Status.FAILED)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        first = (str(error).splitlines() or ["no memory left"])[0]
        fix = ": use a smaller --batch-size" if "batch_size" in line.settings else ""
        return _failed(f"out of memory ({first}){fix}", Status.FAILED)
    except KeyboardInterrupt as stopped:
        print("\nInterrupted.", file=sys.stderr)
        return 128 + (stopped.args[0] if stopped.args else signal.SIGINT)


_MESSAGES = re.compile(r"out[ _]of[ _](\w+_)?memory|alloc_failed|can't allocate memory", re.I)
"""Messages of the backends of torch that have no memory left."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a device or the host has no memory left."""
    if type(error).__name__ in ("MemoryError", "OutOfMemoryError"):  # the latter is torch's
        return True
    return isinstance(error, RuntimeError) and _MESSAGES.search(str(error)) is not None


@contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt as Ctrl-C does, unless they are ignored or handled."""

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    # A rank that waits for others inside torch has to die at once.
    alone = threading.current_thread() is threading.main_thread() and "RANK" not in os.environ
    numbers = (signal.SIGTERM, signal.SIGHUP) if alone else ()
    taken = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _failed(message: str, status: Status) -> int:
    rank = os.environ.get("RANK")
    print(f"Error{f' (rank {rank})' if rank else ''}: {message}", file=sys.stderr)
    return status
