"""What commands print: options, made from settings, their names in messages, tables of figures."""

from __future__ import annotations

from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

import click

from geoprep.errors import spelled
from geoprep.options import Setting

if TYPE_CHECKING:
    from click.types import OptionHelpExtra
    from rich.table import Table


class GroupedOption(click.Option):
    """An option in a section of the help, with the valid range of its values."""

    def __init__(self, *args: Any, section: str, valid: str = "", **kwargs: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*args, **kwargs)
        self.section, self.valid = section, valid

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """Return what click writes in brackets: default and range."""
        extra = super().get_help_extra(ctx)
        if self.valid:
            extra["range"] = self.valid
        return extra


def figures_table(first: str, *others: str) -> Table:
    """Return a table of a column of names and columns of figures."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    for title in others:
        table.add_column(title, justify="right")
    return table


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
        return GroupedOption(names, section=section, valid=setting.range, **click_keywords(setting))
    return _Argument(
        [setting.name],
        type=_Value(setting),
        nargs=-1 if setting.several else 1,
        required=setting.default is MISSING,
        metavar=setting.metavar + " ..." * setting.several,
        section=section,
        text=setting.help,
    )
