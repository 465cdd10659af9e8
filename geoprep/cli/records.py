"""Commands whose options are the fields of dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from geoprep.cli.help import GroupedCommand, name_options, parameter_of
from geoprep.options import Setting, settings_of


class RecordCommand(GroupedCommand):
    """A command line made of dataclasses, whose fields are `option` or `argument`.

    Each is a section of ``--help``, titled by its docstring (``Title: text.``); a class that is
    derived from others adds its own fields as the last one.

    Parameters
    ----------
    name
        Name of the command.
    sections
        The dataclasses.
    introduction, closing
        Text of the help above and below the options, whose lines stay as they are.
    action
        Runs the command with the settings that were given, by name, and returns the exit status.
    common
        Settings that ``--help`` lists, where ``--help-all`` lists every one. Default: all.
    more
        Further options.
    """

    ending = ""
    """Last lines of the help."""

    def __init__(
        self,
        name: str,
        sections: Sequence[type],
        introduction: str,
        closing: str = "",
        *,
        action: Callable[[dict[str, Any]], int],
        common: Sequence[str] = (),
        more: Sequence[click.Parameter] = (),
    ) -> None:
        self.settings: dict[str, Setting] = {}
        parameters: list[click.Parameter] = []
        for section in sections:
            title = (section.__doc__ or "").partition(":")[0]
            for setting in settings_of(section).values():
                if setting.name not in self.settings:  # else inherited from another section
                    self.settings[setting.name] = setting
                    parameters.append(parameter_of(setting, title))
        self._action = action
        super().__init__(
            name,
            callback=self._run,
            params=[*parameters, *more],
            help=_verbatim(introduction),
            epilog=_verbatim(closing + self.ending),
            common=common,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
            options_metavar="[options]",
        )

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

    def _run(self, **_: object) -> int:
        return self._action(self.given(click.get_current_context()))


def _verbatim(text: str) -> str:
    """Return a text whose lines click leaves as they are."""
    return "\n\n".join(f"\b\n{part}" for part in text.strip().split("\n\n") if part)
