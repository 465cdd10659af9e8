"""The command lines of this package: options are fields of dataclasses, errors are one line.

Option names are spelled here only: code below names a parameter in backticks, and `Command.spell`
replaces it by the option.
"""

from __future__ import annotations

import difflib
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import click
from click.core import ParameterSource

from geoprep.cli import GroupedCommand, GroupedOption, name_options, parameter_of
from geoprep.errors import GeoprepError, SourceError, UsageError
from geoprep.options import Setting, settings_of
from training.engine import is_out_of_memory, limit_spinning
from training.signals import interrupted_by_signals
from training.yaml_files import read_yaml


class Status(IntEnum):
    """Exit status of a command."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
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


def run_command(command: Callable[[], int], line: Command) -> int:
    """Run a command and return its exit status; print expected errors as one line.

    It imports torch, if needed, when it is called. Options of ``line`` replace names in errors.
    """
    limit_spinning()
    gc.set_threshold(10_000)  # imports make many objects and no garbage: a tenth of the start
    # torch's profiler prints on the terminal when it starts and stops, at its highest level: 5.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    try:
        with interrupted_by_signals():
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


def _failed(message: str, status: Status) -> int:
    rank = os.environ.get("RANK")
    print(f"Error{f' (rank {rank})' if rank else ''}: {message}", file=sys.stderr)
    return status
