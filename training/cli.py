"""The command lines of this package: options are fields of dataclasses, errors are one line.

Option names are spelled here only: code below names a parameter in backticks, and `Command.spell`
replaces it by the option.
"""

from __future__ import annotations

import difflib
import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from enum import IntEnum
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from geoprep.cli import GroupedCommand, GroupedOption, name_options, parameter_of
from geoprep.errors import GeoprepError, SourceError, UsageError
from geoprep.options import Setting, settings_of


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
        sections: Sequence[type],
        introduction: str,
        closing: str = "",
        *,
        common: Sequence[str] = (),
        takes_file: bool = False,
    ) -> None:
        self.settings: dict[str, Setting] = {}
        parameters: list[click.Parameter] = []
        for section in sections:
            title = (section.__doc__ or "").partition(":")[0]
            for setting in settings_of(section).values():
                if setting.name not in self.settings:  # else inherited from another section
                    self.settings[setting.name] = setting
                    parameters.append(parameter_of(setting, title))
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
