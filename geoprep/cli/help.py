"""Help texts in sections, options made from a dataclass, and values that need more than a type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from geoprep.plan import Choice

F = TypeVar("F", bound=Callable[..., Any])


class GroupedOption(click.Option):
    """An option that belongs to a section of the help text."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*args, **kwargs)
        self.section = section


class GroupedCommand(click.Command):
    """A command whose options are listed by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections in the order in which they first appear."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name = parameter.section if isinstance(parameter, GroupedOption) else "Other"
                sections.setdefault(name, []).append(record)
        for name, rows in sections.items():
            with formatter.section(name):
                formatter.write_dl(rows)


def grouped_option(section: str, *args: str, **kwargs: Any) -> Callable[[F], F]:  # noqa: ANN401
    """Return ``click.option`` for a section."""
    return click.option(*args, cls=GroupedOption, section=section, **kwargs)


# Options of several commands; the section is one of help texts that have sections.
POSITIVE = click.FloatRange(0, min_open=True)
WORKERS = grouped_option(
    "Run", "--workers", type=click.IntRange(1), help="Threads; default: one per core."
)
QUIET = grouped_option("Run", "--quiet", is_flag=True, help="No progress bar.")
JSON = grouped_option(
    "Run", "--json", "as_json", is_flag=True, help="Print one JSON document instead."
)


def options_of(record: type) -> Callable[[F], F]:
    """Return a decorator that gives a command one option per field of a dataclass.

    Every field has a `geoprep.plan.options.Choice` in its metadata under ``choice``.
    """

    def decorate(command: F) -> F:
        for one in reversed(fields(record)):
            command = _option_of(one.name, one.default, one.metadata["choice"])(command)
        return command

    return decorate


def _option_of(name: str, default: Any, choice: Choice) -> Callable[[F], F]:  # noqa: ANN401
    kind: Any = choice.kind or (str if default is None else type(default))
    return grouped_option(
        choice.section,
        "--" + name.replace("_", "-"),
        default=default,
        show_default=default is not None,
        type=click.Choice(choice.choices) if choice.choices else kind,
        metavar=choice.metavar,
        callback=_parsed(choice.parse) if choice.parse else None,
        help=choice.help,
    )


def _parsed(
    parse: Callable[[str], Any],
) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    return lambda _context, _parameter, value: None if value is None else parse(value)


def filled(
    _context: click.Context, parameter: click.Parameter, value: str | tuple[str, ...] | None
) -> Any:  # noqa: ANN401 - as it was given
    """Refuse an empty text: ``--labels ''`` would otherwise be the current folder."""
    given = (value,) if isinstance(value, str) else value or ()
    if not all(text.strip() for text in given):
        raise click.BadParameter("is empty: a variable that is not set?", param=parameter)
    return value


class OutputPath(click.Path):
    """A local path to write to; with ``bucket``, or an ``s3://`` address, which stays a text."""

    def __init__(self, *, bucket: bool = False, **kwargs: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(path_type=Path, **kwargs)
        self._bucket = bucket

    def convert(
        self,
        value: str | Path,  # type: ignore[override]  # click also allows bytes, which nobody gives
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as click's
        """Return the path, or refuse an empty one and an address."""
        text = str(value)
        if not text.strip():
            self.fail("is empty: a variable that is not set?", param, ctx)
        if self._bucket and text.startswith("s3://"):
            return text
        if "://" in text:
            self.fail(
                f"{text}: results are written to a local folder for now; copy them afterwards, "
                "for example with aws s3 cp --recursive",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)
