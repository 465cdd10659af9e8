"""The command lines of this package: options from fields of dataclasses, errors in one line.

`Command` parses the command line and YAML files with the same names; `run_command` runs a command
and returns its exit status. Option names are spelled here only: code below names a parameter in
backticks, and `Command.spell` replaces it by the option.
"""

from __future__ import annotations

import argparse
import difflib
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from geoprep.errors import GeoprepError, SourceError, UsageError
from training.fields import argument as argument
from training.fields import option as option


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


class Setting:
    """A field of a dataclass as an option of the command line and a key of a YAML file.

    Parameters
    ----------
    item
        An `option` or `argument`.
    kind
        Its type: ``int``, ``float``, ``str``, ``bool``, ``Path``, a Literal, None, a union of
        them, or for an argument a tuple of one of them.
    """

    def __init__(self, item: Field[Any], kind: Any) -> None:  # noqa: ANN401 - a type form
        metadata = item.metadata
        self.name, self.default, self.help = item.name, item.default, metadata["help"]
        self.positional = "positional" in metadata
        self.several = get_origin(kind) is tuple
        self.flags = (f"--{item.name.replace('_', '-')}", *metadata.get("flags", ()))
        self.deprecated: tuple[str, ...] = tuple(metadata.get("deprecated", ()))
        self.check, self.bounds = metadata.get("check"), metadata.get("bounds", {})
        kind = get_args(kind)[0] if self.several else kind
        self.kinds = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
        self.metavar = metadata["metavar"] or "|".join(map(_type_name, self.kinds))
        self.shown = self.metavar if self.positional else self.flags[0]

    def value(self, text: str) -> Any:  # noqa: ANN401 - of the field's type
        """Return the value of a word of the command line.

        Raises
        ------
        UsageError
            The word is not of the setting's type, or the value is out of range.
        """
        # In reverse order: `none` is None before it is the name of a file.
        values = [value for kind in reversed(self.kinds) for value in _parsed(kind, text)]
        if not values:
            numbers = [_NUMBERS.get(kind) for kind in self.kinds if kind is not NoneType]
            wanted = numbers[0] if len(numbers) == 1 and numbers[0] else self.metavar
            raise UsageError(f"{self.shown}: {text!r} is not {wanted}")
        value = values[0]
        if isinstance(value, int | float):
            wanted = [(*_BOUNDS[name], bound) for name, bound in self.bounds.items()]
            if not all(holds(value, bound) for _, holds, bound in wanted):
                bounds = " and ".join(f"{word} {bound:g}" for word, _, bound in wanted)
                raise UsageError(f"{self.shown} {text}: must be {bounds}")
        if self.check is not None and value is not None:
            self.check(value)
        return value

    def words(self, value: Any) -> list[str]:  # noqa: ANN401 - of YAML
        """Return a value of YAML as words of a command line."""
        if self.positional:
            return [str(part) for part in ([value] if isinstance(value, str) else value)]
        text = "none" if value is None else str(value)
        if self.kinds == (bool,) and text.lower() in ("true", "false"):
            return [self.flags[0]] * (text.lower() == "true")
        if isinstance(value, bool):
            # YAML reads a bare `off`, `no`, `on` or `yes` as a truth value.
            written = ("on", "yes", "true") if value else ("off", "no", "false")
            choices = (word for word in written for kind in self.kinds if word in get_args(kind))
            text = next(choices, written[0])
        return [f"{self.flags[0]}={text}"]

    def add_to(self, group: Any) -> argparse.Action:  # noqa: ANN401 - argparse's
        """Add the setting to a parser."""
        action: argparse.Action
        text = self.help.replace("%", "%%") or argparse.SUPPRESS
        keywords: dict[str, Any] = {"help": text}
        if self.kinds == (bool,):
            keywords["action"] = "store_true"
            action = group.add_argument(*self.flags, dest=self.name, **keywords)
            return action
        keywords |= {"metavar": self.metavar, "type": self.value}
        if self.positional:
            if self.several:
                keywords["nargs"] = "+" if self.default is MISSING else "*"
            action = group.add_argument(self.name, **keywords)
            return action
        if self.default is not None and self.help:
            keywords["help"] += f" (default: {str(self.default).replace('%', '%%')})"
        action = group.add_argument(*self.flags, dest=self.name, **keywords)
        return action


def _type_name(kind: Any) -> str:  # noqa: ANN401 - a type form
    """Return the placeholder for values of a type: its choices, or its name in capitals."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    name: str = kind.__name__.upper()
    return "none" if kind is NoneType else name


def _parsed(kind: Any, text: str) -> Iterator[Any]:  # noqa: ANN401 - a type form, and a value
    """Yield the value of a word as one type; nothing if it is not of that type."""
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
        What a user types, such as ``python -m training.fit``.
    sections
        Dataclasses whose fields are `option` or `argument`. Each is a group of ``--help``, titled
        by its docstring (``Title: text.``).
    introduction, closing
        Text above and below the options in ``--help``.
    common
        Names of the settings that ``--help`` lists; ``--help-all`` lists all. Empty: both list all.
    takes_file
        Offer ``--config FILE``: settings in YAML, which options override.
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
        self.name = name
        self._parser = _Parser(
            prog=name,
            description=introduction,
            epilog=f"{closing}{STATUSES}",
            formatter_class=partial(
                argparse.RawDescriptionHelpFormatter, width=100, max_help_position=30
            ),
            allow_abbrev=False,
            add_help=False,
            argument_default=argparse.SUPPRESS,
        )
        shown, every = ("common options", "all options") if common else ("all options", "the same")
        for flags, text, only in ((("-h", "--help"), shown, True), (("--help-all",), every, False)):
            self._parser.add_argument(
                *flags,
                action=_ShowHelp,
                text=partial(self.help, common=only),
                help=f"Show {text} and exit.",
            )
        self._settings: dict[str, Setting] = {}
        self._uncommon: list[argparse.Action] = []
        for section in sections:
            title, _, text = (section.__doc__ or "").rstrip(".").partition(": ")
            group, kinds = self._parser.add_argument_group(title, text), get_type_hints(section)
            for item in fields(section):
                setting = self._settings[item.name] = Setting(item, kinds[item.name])
                action = setting.add_to(group)
                if common and item.name not in common:
                    self._uncommon.append(action)
        self._flags = {flag for each in self._settings.values() for flag in each.flags}
        self._flags |= {"--help", "--help-all"}
        self._deprecated = {old: s for s in self._settings.values() for old in s.deprecated}
        if takes_file:
            text = "YAML file of settings, named as the options; options override it."
            self._parser.add_argument("--config", metavar="FILE", help=text)
            self._flags.add("--config")
        positional = [each for each in self._settings.values() if each.positional]
        words = [each.metavar + " ..." * each.several for each in positional]
        self._parser.usage = f"%(prog)s {' '.join(words)} [options]"

    def help(self, *, common: bool = False) -> str:
        """Return the text of ``--help-all``, or with ``common`` that of ``--help``."""
        if not (common and self._uncommon):
            return self._parser.format_help()
        texts = [action.help for action in self._uncommon]
        listed = sum(text != argparse.SUPPRESS for text in texts)
        epilog, groups = self._parser.epilog, self._parser.groups()
        titles = [group.description for group in groups]
        try:
            for action in self._uncommon:
                action.help = argparse.SUPPRESS
            for group in groups:  # without its description, an empty group is not listed
                group.description = None
            more = f"{listed} more options: {self._parser.prog} --help-all\n\n"
            self._parser.epilog = f"{more}{epilog}"
            return self._parser.format_help()
        finally:
            self._parser.epilog = epilog
            for action, text in zip(self._uncommon, texts, strict=True):
                action.help = text
            for group, title in zip(groups, titles, strict=True):
                group.description = title

    def spell(self, message: str) -> str:
        """Return a message with parameters in backticks replaced by options of this command.

        `` `batch_size` `` becomes ``--batch-size`` if there is such an option; other names stay.
        """
        return re.sub(r"`(\w+)`", self._shown, message)

    def _shown(self, name: re.Match[str]) -> str:
        setting, flag = self._settings.get(name[1]), f"--{name[1].replace('_', '-')}"
        if setting is None:
            return flag if flag in self._flags else name[0]
        return setting.shown

    def parse(self, arguments: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the settings that were given, by name; settings that were not are left out.

        Parameters
        ----------
        arguments
            Words of the command line; None for those of this process.

        Raises
        ------
        UsageError
            A setting is unknown, of the wrong type or out of range, or a file cannot be read.
        """
        renamed = map(self._renamed, sys.argv[1:] if arguments is None else arguments)
        words = [word for word in renamed if word is not None]
        for word in words:
            flag = word.split("=", 1)[0]
            if word.startswith("--") and flag not in self._flags and word != "--":
                raise UsageError(f"unknown option {flag}{_nearest(flag, self._flags)}")
        given = self._parse_words(words)
        path = given.pop("config", None)
        return given if path is None else self._parse_words(self._words_of(path)) | given

    def _renamed(self, word: str) -> str | None:
        """Return a word with a deprecated option replaced; None if nothing is left of it."""
        old, equals, value = word.partition("=")
        setting = self._deprecated.get(old)
        if setting is None:
            return word
        _warn(f"{old} is deprecated, use {setting.shown}")
        if setting.positional:
            return value or None
        return f"{setting.flags[0]}{equals}{value}"

    def _parse_words(self, words: Sequence[str]) -> dict[str, Any]:
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
        return self._words_of_values(values or {}, f"{path}: ")

    def parse_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments as settings, checked as those of the command line.

        Parameters
        ----------
        values
            Settings by name. A tuple or list is several words.

        Raises
        ------
        UsageError
            A setting is unknown, of the wrong type or out of range.
        """
        try:
            return self._parse_words(self._words_of_values(values, ""))
        except UsageError as error:
            names = {each.shown: f"`{name}`" for name, each in self._settings.items()}
            pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
            message = re.sub(rf"({pattern})\b", lambda found: names[found[1]], str(error))
            raise UsageError(message.removesuffix("; see --help")) from error

    def _words_of_values(self, values: Mapping[Any, Any], where: str) -> list[str]:
        words = []
        for written, value in values.items():
            name = str(written).replace("-", "_")
            former = self._deprecated.get(f"--{name.replace('_', '-')}")
            if former is not None:
                _warn(f"{where}{written} is deprecated, use {former.name}")
                name = former.name
            if name not in self._settings:
                near = _nearest(name, self._settings)
                raise UsageError(f"{where}unknown setting {name!r}{near}")
            words += self._settings[name].words(value)
        return words


def _warn(message: str) -> None:
    print(f"Warning: {message}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of printing its usage and ending the process."""

    def groups(self) -> list[Any]:
        """Return the groups of options, of which argparse has no public list."""
        return list(self._action_groups)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see --help")


class _ShowHelp(argparse.Action):
    """Prints a help text and ends the process."""

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        text: Callable[[], str],
        **given: Any,  # noqa: ANN401 - argparse's
    ) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **given)
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(self._text(), end="")
        parser.exit()


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f": did you mean {near[0]}?" if near else "; see --help-all"


def write_file(path: Path, sections: Iterable[type[Any]], values: Mapping[str, Any]) -> None:
    """Write settings as YAML, by section, in a form that ``--config`` reads.

    Parameters
    ----------
    path
        The file.
    sections
        As for `Command`.
    values
        Settings by name, as plain values; names that are missing here are left out.
    """
    import yaml

    lines = ["# Settings of this run: `--config` takes this file."]
    for section in sections:
        part = {f.name: values[f.name] for f in fields(section) if f.name in values}
        lines += [f"\n# {section.__doc__}", yaml.safe_dump(part, sort_keys=False).rstrip()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def wait_passively() -> None:
    """Let idle threads of GNU OpenMP sleep, unless the environment already sets how they wait.

    By default they spin, which takes processor time from other processes: with ten busy processes
    on two cores a step took 1.8 to 3.2 times as long, and 3.6 times the processor time (measured).
    Call this before torch is imported.
    """
    if "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def run_command(command: Callable[[], int], line: Command | None = None) -> int:
    """Run a command and return its exit status; print expected errors as one line.

    Parameters
    ----------
    command
        Returns an exit status, or raises. It imports torch, if needed, when it is called.
    line
        The command line, whose options replace parameter names in errors; None leaves them.
    """
    wait_passively()
    # torch's profiler prints on the terminal when it starts and stops, at its highest level: 5.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    spell = str if line is None else line.spell
    try:
        return command()
    except GeoprepError as error:
        usage = isinstance(error, UsageError | SourceError)
        return _failed(spell(str(error)), Status.REFUSED if usage else Status.FAILED)
    except BrokenPipeError:
        return Status.BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _failed(f"{where}{error.strerror or error}", Status.FAILED)
    except (MemoryError, RuntimeError) as error:
        first = (str(error).splitlines() or ["no memory left"])[0]
        signs = ("out of memory", "can't allocate memory")  # of torch's RuntimeErrors
        if isinstance(error, RuntimeError) and not any(s in str(error).lower() for s in signs):
            raise
        return _failed(f"out of memory ({first}): use a smaller --batch-size", Status.FAILED)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return Status.INTERRUPTED


def _failed(message: str, status: Status) -> int:
    rank = os.environ.get("RANK")
    print(f"Error{f' (rank {rank})' if rank else ''}: {message}", file=sys.stderr)
    return status
