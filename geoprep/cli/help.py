"""Help texts in sections, and option values that need more than a type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

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


def parse_bands(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Read ``5,3,2``."""
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: write band numbers like 5,3,2") from error


def parse_tile(_context: click.Context, _parameter: click.Parameter, value: str) -> int | None:
    """Read ``auto`` or a number of pixels."""
    if value == "auto":
        return None
    try:
        return int(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: write auto, or a number of pixels") from error
