"""Commands whose options are the fields of dataclasses."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click
from click.core import ParameterSource

from geoprep.cli.help import name_options, parameter_of
from geoprep.errors import GeoprepError, GeoprepWarning
from geoprep.options import Setting, option, settings_of
from geoprep.texts import printable

_ALL = f"{__name__}.all"
"""Key of the context: whether the help lists all options."""
RUN = "Run"
"""Last section of the help text: options that do not change results."""


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """Run: of commands with a progress bar."""

    quiet: bool = option(False, "Show no progress bar, and nothing per scene unless it failed.")


@dataclass(frozen=True, kw_only=True)
class Json:
    """Run: of commands whose result can be a JSON document."""

    as_json: bool = option(
        False, "Print the result as one JSON document on standard output.", flag="--json"
    )


class RecordCommand(click.Command):
    """A command line made of dataclasses, whose fields are `option` or `argument`.

    Each is a section of ``--help``, titled by its docstring (``Title: text.``); a class that is
    derived from others adds its own fields as the last one. Parameters in backticks in errors and
    warnings are shown as options.

    Parameters
    ----------
    name
        Name of the command.
    sections
        The dataclasses; or some fields of one, by name, and their heading: (class, heading, names).
    introduction, closing
        Text of the help above and below the options; paragraphs with indented lines keep theirs.
    action
        Runs the command with the settings that were given, by name, and returns the exit status;
        None for success.
    common
        Settings that ``--help`` lists, where ``--help-all`` lists every one. Default: all.
    more
        Further options.
    short_help
        Its line in the list of commands. Default: the first sentence.
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
    ) -> None:
        self._sections, self._more = sections, more
        self._params: list[click.Parameter] = []
        self._action = action
        self.common = tuple(common)
        super().__init__(
            name,
            callback=self._run,
            help=_paragraphs(introduction),
            epilog=_paragraphs(f"{closing}\n{self.ending}"),
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

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with ``--help-all`` if there is more than ``--help`` lists."""
        found = super().get_params(ctx)
        if not self.common:
            return found
        every = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            help="Show all options and exit.",
            callback=_show_all,
        )
        return [*found, every]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; name options instead of parameters in errors."""
        try:
            return super().parse_args(ctx, args)
        except GeoprepError as error:
            error.args = (name_options(str(error), ctx),)
            raise

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - whatever the command returns
        """Run the command; name options instead of parameters in its warnings and errors."""

        def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:  # noqa: ANN401 - warnings'
            if issubclass(category, GeoprepWarning):
                click.echo(f"warning: {name_options(printable(str(message)), ctx)}", err=True)
            else:
                others(message, category, *rest)

        with warnings.catch_warnings():
            others = warnings.showwarning
            warnings.simplefilter("always", GeoprepWarning)
            warnings.showwarning = show  # type: ignore[assignment]  # passes the others on
            try:
                return super().invoke(ctx)
            except GeoprepError as error:
                error.args = (name_options(str(error), ctx),)
                raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections in the order of their first option, those for running at the end."""
        sections: dict[str, list[tuple[str, str]]] = {}
        left_out = 0
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            listed = isinstance(parameter, click.Option) or hasattr(parameter, "section")
            if record is not None and listed:
                of_help = "--help" in parameter.opts or "--help-all" in parameter.opts
                always = of_help or isinstance(parameter, click.Argument)
                shown = always or parameter.name in self.common or ctx.meta.get(_ALL)
                if self.common and not shown:
                    left_out += 1
                    continue
                default = RUN if of_help else "Options"
                section = getattr(parameter, "section", default)
                names, text = record
                text = name_options(text, ctx).replace("]  [", "; ")
                sections.setdefault(section, []).append((names, text))
        if len(sections) == 1:
            sections = {"Options": next(iter(sections.values()))}
        elif RUN in sections:
            sections[RUN] = sections.pop(RUN)
        for name, rows in sections.items():
            with formatter.section(name):
                formatter.write_dl(rows)
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{left_out} more options: {ctx.command_path} --help-all")

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


def _show_all(ctx: click.Context, _option: click.Parameter, given: bool) -> None:
    """Print the help with all options, and exit."""
    if given:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _paragraphs(text: str) -> str:
    """Return a text of which click leaves the paragraphs with indented lines as they are."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"\b\n{part}" if "\n " in f"\n{part}" else part for part in parts)
