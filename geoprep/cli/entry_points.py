"""Commands of other packages, which ``geoprep`` finds by entry points and imports when they run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

GROUP = "geoprep.commands"
"""Group of the entry points; each names a `LazyCommand`, or a command of click."""


class CommandGroup(click.Group):
    """A group of its own commands and those of the entry points, imported when they run.

    Parameters
    ----------
    modules
        The module of each own command, which has it under its name.
    """

    def __init__(self, *arguments: Any, modules: Mapping[str, str], **more: Any) -> None:  # noqa: ANN401 - click's
        self._modules = modules
        super().__init__(*arguments, **more)

    @property
    def commands(self) -> dict[str, click.Command]:
        """The own commands."""
        return {name: self._own(name) for name in self._modules}

    @commands.setter
    def commands(self, given: object) -> None:  # as click does at first
        pass

    def _own(self, name: str) -> click.Command:
        command: click.Command = getattr(import_module(self._modules[name]), name.replace("-", "_"))
        return command

    @cached_property
    def _found(self) -> EntryPoints:
        from importlib.metadata import entry_points  # here: most commands do not need it

        return entry_points(group=GROUP)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*self._modules, *self._found.names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of this name."""
        if cmd_name in self._modules:
            return self._own(cmd_name)
        if cmd_name not in self._found.names:
            return None
        command: click.Command = self._found[cmd_name].load()
        return command


class LazyCommand(click.Command):
    """Line of ``geoprep --help`` for a command in a module that takes long to import.

    Parameters
    ----------
    name
        Name of the command.
    module
        The module, whose ``COMMAND`` it is. It is imported when the command runs. It also finds
        modules in the current folder, if there are no others of the same name.
    text
        Its help in one line.
    """

    def __init__(self, name: str, module: str, text: str) -> None:
        super().__init__(name, short_help=text)
        self._module = module

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401 - click's
    ) -> click.Context:
        """Return the context of the command itself, which runs it."""
        command: click.Command = import_module(self._module).COMMAND
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        return command.make_context(info_name, args, parent, **extra)
