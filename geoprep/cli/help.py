"""Options of commands: sections of the help text, option names in error messages."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import MISSING
from typing import Any

import click

from geoprep.errors import GeoprepError, GeoprepWarning, spelled
from geoprep.options import Setting
from geoprep.texts import printable

_ALL = f"{__name__}.all"
"""Key of the context: whether the help lists all options."""
RUN = "Run"
"""Last section of the help text: options that do not change results."""


class GroupedOption(click.Option):
    """An option in a section of the help."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*args, **kwargs)
        self.section = section


class GroupedCommand(click.Command):
    """A command whose options are listed by section; ``--help`` lists the ``common`` ones only.

    Parameters in backticks in errors are shown as options.
    """

    def __init__(self, *args: Any, common: Sequence[str] = (), **kwargs: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*args, **kwargs)
        self.common = tuple(common)

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
                sections.setdefault(section, []).append((names, name_options(text, ctx)))
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


def _show_all(ctx: click.Context, _option: click.Parameter, given: bool) -> None:
    """Print the help with all options, and exit."""
    if given:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def name_options(text: str, context: click.Context | None = None) -> str:
    """Return a message with the options of a command for its parameters: ``--gsd`` for `gsd`.

    None: the command that runs, if one does.
    """
    context = context or click.get_current_context(silent=True)
    if context is None:
        return text
    names: dict[str, str] = {}
    for parameter in context.command.get_params(context):
        if isinstance(parameter, click.Option):
            option = max(parameter.opts, key=len)
            names[parameter.name or ""] = names[option[2:].replace("-", "_")] = option
        elif parameter.name:
            metavar = parameter.metavar or parameter.name.upper()
            names[parameter.name] = metavar.removesuffix(" ...")
    return spelled(text, names)


class _Value(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """The value of a setting, which converts and checks it."""

    def __init__(self, setting: Setting) -> None:
        self.name, self._setting = setting.metavar, setting

    def convert(
        self,
        value: Any,  # noqa: ANN401 - a word of the command line, or a default
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - of the field's type
        """Return the value of a word; UsageError if it is not valid."""
        return self._setting.convert(value)


def click_keywords(setting: Setting) -> dict[str, Any]:
    """Return what `click.option` takes for a setting besides its names."""
    keywords: dict[str, Any] = {"default": setting.default, "help": setting.help}
    if setting.kinds == (bool,):  # the option of a setting that is on by default turns it off
        return keywords | {
            "is_flag": True,
            "default": False,
            "show_default": False,
            "callback": (lambda _context, _option, off: not off) if setting.default else None,
        }
    if setting.several:
        keywords |= {"multiple": True, "help": f"{setting.help} Repeatable."}
    if setting.declared.required:  # None would count as given
        del keywords["default"]
        keywords["required"] = True
    shown = setting.default not in (None, MISSING, ())
    return keywords | {"type": _Value(setting), "metavar": setting.metavar, "show_default": shown}


class _Argument(click.Argument):
    """A positional argument that ``--help`` lists with a text."""

    def __init__(self, *args: Any, section: str, text: str, **kwargs: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*args, **kwargs)
        self.section, self.text = section, text

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return self.make_metavar(ctx), self.text


def parameter_of(setting: Setting, section: str) -> click.Parameter:
    """Return the argument or option of a setting, listed in a section of ``--help``."""
    if not setting.positional:
        names = [*setting.flag.split(), setting.name]
        return GroupedOption(names, section=section, **click_keywords(setting))
    return _Argument(
        [setting.name],
        type=_Value(setting),
        nargs=-1 if setting.several else 1,
        required=setting.default is MISSING,
        metavar=setting.metavar + " ..." * setting.several,
        section=section,
        text=setting.help,
    )
