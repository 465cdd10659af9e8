"""Tests of options: deprecated names, and option names in error messages."""

import click
import pytest
from click.testing import CliRunner

from geoprep.cli.help import GroupedCommand, grouped_option, name_options
from geoprep.errors import UsageError


@click.command(cls=GroupedCommand)
@grouped_option("Output", "--out", deprecated_names=("--dest",), help="Folder.")
@grouped_option("Output", "--city", "cities", multiple=True, help="City.")
def command(out, cities):
    """Fail where `out` is "bad"; else print the values."""
    if out == "bad":
        raise UsageError("`out` bad: name a folder, or a `cities` list, see `geoprep info`")
    click.echo(f"{out} {cities}")


@pytest.mark.parametrize("arguments", [["--dest", "here"], ["--dest=here"]])
def test_a_deprecated_name_is_accepted_with_a_warning(arguments):
    done = CliRunner().invoke(command, arguments)
    assert done.stdout == "here ()\n"
    assert done.stderr == "warning: --dest is deprecated, use --out\n"


def test_the_help_hides_deprecated_names():
    text = CliRunner().invoke(command, ["--help"]).output
    assert "--out" in text
    assert "--dest" not in text


def test_the_current_name_gives_no_warning():
    assert CliRunner().invoke(command, ["--out", "here"]).stderr == ""


def test_errors_name_options_in_place_of_parameters():
    error = CliRunner().invoke(command, ["--out", "bad"]).exception
    assert str(error) == "--out bad: name a folder, or a --city list, see `geoprep info`"


def test_a_message_outside_a_command_is_unchanged():
    assert name_options("`out` is missing") == "`out` is missing"
