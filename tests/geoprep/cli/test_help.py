"""Tests of options: help texts, and option names in error messages."""

import re
from dataclasses import dataclass

import click
import pytest
from click.testing import CliRunner

from geoprep.cli.commands import cli
from geoprep.cli.help import name_options
from geoprep.cli.records import RecordCommand
from geoprep.errors import UsageError
from geoprep.options import option


@dataclass(frozen=True)
class Options:
    """Output: of a command."""

    out: str | None = option(None, "Folder.")
    cities: tuple[str, ...] = option((), "City.", flag="--city")


def fail(given):
    """Fail where `out` is "bad"; else print the values."""
    if given["out"] == "bad":
        raise UsageError("`out` bad: name a folder, or a `cities` list, see `geoprep info`")


command = RecordCommand("command", (Options,), "Fail.", action=fail)


def test_errors_name_options_in_place_of_parameters():
    error = CliRunner().invoke(command, ["--out", "bad"]).exception
    assert str(error) == "--out bad: name a folder, or a --city list, see `geoprep info`"


def test_a_message_outside_a_command_is_unchanged():
    assert name_options("`out` is missing") == "`out` is missing"


@pytest.mark.parametrize(("name", "command"), cli.commands.items())
def test_every_option_has_a_help_text(name, command):
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert len((parameter.help or "").split()) > 1, f"geoprep {name} {parameter.name}"


@pytest.mark.parametrize("name", [name for name, one in cli.commands.items() if one.common])
def test_help_lists_common_options_after_examples_and_help_all_every_option(name):
    texts = [CliRunner().invoke(cli, [name, way]).output for way in ("--help", "--help-all")]
    short, whole = (set(re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)) for text in texts)
    given = [one for one in cli.commands[name].params if isinstance(one, click.Option)]
    options = {one.name: one.opts[0] for one in given}
    common = cli.commands[name].common
    assert short == {options[one] for one in common} | {"--help-all"}
    assert whole == {*options.values(), "--help-all"}
    assert f"{len(options) - len(common)} more options: " in texts[0]
    assert "more options" not in texts[1]
    assert texts[0].index(f"geoprep {name} ", 30) < texts[0].index("\n  --")


def test_commands_of_many_options_have_a_short_help():
    assert {n for n, one in cli.commands.items() if len(one.params) > 15} == {
        name for name, one in cli.commands.items() if one.common
    }
