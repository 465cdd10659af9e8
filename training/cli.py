"""The commands of this package: settings of YAML files, and how a process runs torch.

Option names are spelled here only: code below names a parameter in backticks, and `Command.spell`
replaces it by the option.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from geoprep.cli.help import GroupedOption
from geoprep.cli.records import RecordCommand
from geoprep.errors import GeoprepError, UsageError
from geoprep.options import checked_values
from training.process import interrupted_by_signals, is_out_of_memory, limit_spinning
from training.setting_texts import read_yaml

_ABOUT = "YAML file of settings, named as the options; options override it."
CONFIG = GroupedOption(["--config"], section="Run", metavar="FILE", help=_ABOUT)
"""Option that gives settings in a file."""


class Command(RecordCommand):
    """A command that imports torch when it runs; `CONFIG` may be one of its options."""

    ending = """\
Exit status: 0 success, 1 failure, 2 invalid options or input, 129, 130 or 143 stopped by SIGHUP,
Ctrl-C or SIGTERM.
"""

    def invoke(self, ctx: click.Context) -> int:
        """Run the command and return its exit status."""
        limit_spinning()
        try:
            with interrupted_by_signals():
                return int(super().invoke(ctx))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            first = (str(error).splitlines() or ["no memory left"])[0]
            fix = ": use a smaller --batch-size" if "batch_size" in self.settings else ""
            raise GeoprepError(f"out of memory ({first}){fix}") from error

    def given(self, context: click.Context) -> dict[str, Any]:
        """Return the settings of the options, and those of a file that the options left out."""
        given = super().given(context)
        path = given.pop("config", None)
        if path is None:
            return given
        values = read_yaml(path, "config")
        if not isinstance(values, dict | None):
            raise UsageError("config", f"{path} holds no settings: write lines such as `lr: 2e-4`")
        return self.parse_values(values or {}, f"{path}: ") | given

    def parse_values(self, values: Mapping[Any, Any], where: str = "") -> dict[str, Any]:
        """Return settings by name, checked as those of the command line."""
        return checked_values(self.settings, values, where)
