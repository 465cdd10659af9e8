"""Commands whose options are the fields of dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click
from click.core import ParameterSource

from geoprep.cli.help import GroupedCommand, name_options, parameter_of
from geoprep.options import Setting, option, settings_of


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """Run: of commands with a progress bar."""

    quiet: bool = option(False, "Show no progress bar.")


@dataclass(frozen=True, kw_only=True)
class Json:
    """Run: of commands whose result can be a JSON document."""

    as_json: bool = option(
        False, "Print the result as one JSON document on standard output.", flag="--json"
    )


class RecordCommand(GroupedCommand):
    """A command line made of dataclasses, whose fields are `option` or `argument`.

    Each is a section of ``--help``, titled by its docstring (``Title: text.``); a class that is
    derived from others adds its own fields as the last one.

    Parameters
    ----------
    name
        Name of the command.
    sections
        The dataclasses; or some fields of one, by name, and their heading: (class, heading, names).
    introduction, closing
        Text of the help above and below the options.
    action
        Runs the command with the settings that were given, by name, and returns the exit status;
        None for success.
    common
        Settings that ``--help`` lists, where ``--help-all`` lists every one. Default: all.
    more
        Further options.
    short_help
        Its line in the list of commands. Default: the first sentence.
    wrapped
        Whether click breaks the lines of the texts, except behind its mark; else they stay.
    """

    ending = ""
    """Last lines of the help."""

    def __init__(
        self,
        name: str,
        sections: Sequence[type | tuple[type, str, Sequence[str]]],
        introduction: str,
        closing: str = "",
        *,
        action: Callable[[dict[str, Any]], int | None],
        common: Sequence[str] = (),
        more: Sequence[click.Parameter] = (),
        short_help: str | None = None,
        wrapped: bool = False,
    ) -> None:
        self._sections, self._more = sections, more
        self._params: list[click.Parameter] = []
        self._action = action
        as_written = inspect.cleandoc if wrapped else _verbatim
        super().__init__(
            name,
            callback=self._run,
            help=as_written(introduction),
            epilog=as_written(closing + self.ending),
            common=common,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
            options_metavar="[options]",
            short_help=short_help,
        )

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """The options by name."""
        return {setting.name: setting for setting, _ in self._declared}

    @cached_property
    def _declared(self) -> list[tuple[Setting, str]]:
        """Every option and the heading that it stands under."""
        found: dict[str, tuple[Setting, str]] = {}
        for section in self._sections:
            record, heading, names = section if isinstance(section, tuple) else (section, "", ())
            title = (record.__doc__ or "").partition(":")[0]
            for name, setting in settings_of(record).items():
                if (not names or name in names) and name not in found:  # else of another section
                    found[name] = setting, heading or setting.declared.section or title
        return list(found.values())

    @property
    def params(self) -> list[click.Parameter]:
        """The parameters, made when they are asked for: a list of commands needs none."""
        if not self._params:
            self._params = [*(parameter_of(*one) for one in self._declared), *self._more]
        return self._params

    @params.setter
    def params(self, given: list[click.Parameter]) -> None:  # as click does at first
        self._params = given

    def spell(self, message: str) -> str:
        """Return a message with parameters in backticks replaced by options of this command.

        `` `batch_size` `` becomes ``--batch-size`` if there is such an option; other names stay.
        """
        return name_options(message, click.Context(self))

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the settings that were given, by name; settings that were not are left out."""
        with self.make_context(self.name, list(arguments)) as context:
            return self.given(context)

    def given(self, context: click.Context) -> dict[str, Any]:
        """Return the settings that the words of a command line gave."""
        return {
            name: value
            for name, value in context.params.items()
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and value != ()
        }

    def _run(self, **_: object) -> int | None:
        return self._action(self.given(click.get_current_context()))


def _verbatim(text: str) -> str:
    """Return a text whose lines click leaves as they are."""
    return "\n\n".join(f"\b\n{part}" for part in text.strip().split("\n\n") if part)
