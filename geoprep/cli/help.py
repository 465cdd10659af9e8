"""Options of commands: sections of the help text, option names in error messages."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from geoprep.choice import Choice, value_type
from geoprep.errors import GeoprepError, GeoprepWarning

F = TypeVar("F", bound=Callable[..., Any])

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

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - whatever the command returns
        """Run the command; name options instead of parameters in its warnings and errors."""

        def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:  # noqa: ANN401 - warnings'
            if issubclass(category, GeoprepWarning):
                click.echo(f"warning: {name_options(str(message), ctx)}", err=True)
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
                shown = of_help or parameter.name in self.common or ctx.meta.get(_ALL)
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
    """Return a message with options for its parameters: ``--pixel-size`` for `pixel_size`."""
    context = context or click.get_current_context(silent=True)
    if context is None:
        return text
    names: dict[str, str] = {}
    for parameter in context.command.get_params(context):
        if isinstance(parameter, click.Option):
            option = max(parameter.opts, key=len)
            names[option.lstrip("-").replace("-", "_")] = option
            names[parameter.name or ""] = option

    def named(found: re.Match[str]) -> str:  # parameters in metres end in _m, options do not
        return names.get(found[1]) or names.get(found[1].removesuffix("_m"), found[0])

    return re.sub(r"`(\w+)`", named, text)


def grouped_option(section: str, *args: str, **kwargs: Any) -> Callable[[F], F]:  # noqa: ANN401
    """Return ``click.option`` for a section."""
    return click.option(*args, cls=GroupedOption, section=section, **kwargs)


# Options that several commands share.
POSITIVE = click.FloatRange(0, min_open=True)
WORKERS = grouped_option(
    "Run",
    "--workers",
    type=click.IntRange(1),
    help="Number of worker threads.  [default: one per core]",
)
QUIET = grouped_option(RUN, "--quiet", is_flag=True, help="Show no progress bar.")
JSON = grouped_option(
    "Run",
    "--json",
    "as_json",
    is_flag=True,
    help="Print the result as one JSON document on standard output.",
)


def options_of(record: type, *only: str, section: str | None = None) -> Callable[[F], F]:
    """Return a decorator that adds an option per field of a dataclass that is a `choice`.

    Only some fields if they are named, and under another heading if there is one.
    """

    def decorate(command: F) -> F:
        kinds = get_type_hints(record)
        for one in reversed(fields(record)):
            if one.metadata and (not only or one.name in only):
                choice = one.metadata["choice"]
                choice = replace(choice, section=section) if section else choice
                command = _option_of(one.name, one.default, kinds[one.name], choice)(command)
        return command

    return decorate


def _option_of(
    name: str,
    default: Any,  # noqa: ANN401 - of any field
    kind: Any,  # noqa: ANN401 - a type
    choice: Choice,
) -> Callable[[F], F]:
    kind = value_type(kind)
    if get_origin(kind) is Literal:
        kind = click.Choice(get_args(kind))
    of_value = {"type": str if choice.parse else kind, "show_default": default is not None}
    if kind is bool:  # an option turns a default off that is on
        of_value = {"is_flag": True, "callback": _inverted if default else None}
    elif choice.parse:
        of_value["callback"] = _parsed(choice.parse)
    return grouped_option(
        choice.section,
        choice.option or "--" + name.replace("_", "-"),
        name,
        default=False if kind is bool else default,
        metavar=choice.metavar,
        help=choice.help,
        **of_value,
    )


def _inverted(_context: click.Context, _parameter: click.Parameter, off: bool) -> bool:
    return not off


def _parsed(
    parse: Callable[[str], Any],
) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    def callback(context: click.Context, _parameter: click.Parameter, value: str | None) -> Any:  # noqa: ANN401
        try:
            return None if value is None else parse(value)
        except GeoprepError as error:
            error.args = (name_options(str(error), context),)
            raise

    return callback


def filled(
    _context: click.Context, parameter: click.Parameter, value: str | tuple[str, ...] | None
) -> Any:  # noqa: ANN401 - the value as given
    """Refuse an empty value: ``--labels ''`` would otherwise mean the current folder."""
    given = (value,) if isinstance(value, str) else value or ()
    if not all(text.strip() for text in given):
        raise click.BadParameter("is empty. Is a shell variable not set?", param=parameter)
    return value


class OutputPath(click.Path):
    """A local path to write to. With ``bucket``, also an ``s3://`` address, kept as text."""

    def __init__(self, *, bucket: bool = False, **kwargs: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(path_type=Path, **kwargs)
        self._bucket = bucket

    def convert(
        self,
        value: str | Path,  # type: ignore[override]  # click also allows bytes
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as click's
        """Return the path. Refuse empty values and unsupported addresses."""
        text = str(value)
        if not text.strip():
            self.fail("is empty. Is a shell variable not set?", param, ctx)
        if self._bucket and text.startswith("s3://"):
            return text
        if "://" in text:
            self.fail(
                f"{text}: this command writes to local folders only. Copy the result afterwards, "
                "for example with aws s3 cp --recursive",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)
