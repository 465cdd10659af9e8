"""Names of files, scenes and classes are data: for a terminal, a page and a spreadsheet."""

import csv
from dataclasses import replace

import pytest
from helpers.roads import network
from rich.table import Table
from rich.text import Text

from geoprep.errors import GeoprepError
from geoprep.executors.terminal import Terminal
from geoprep.roads.formats.spacenet_csv import ImageRoads, read_csv, write_csv

NAMES = ("a[b]c", "[/bold]x", ":car:", "\x1b]0;title\x07", "\x9b31mred", "a\rb", "a\u202eb")
SHOWN = ("a[b]c", "[/bold]x", ":car:", "\\x1b]0;title\\x07", "\\x9b31mred", "a\\rb", "a\\u202eb")


def test_a_terminal_shows_names_as_they_are(capsys):
    table = Table("name", *NAMES)
    table.add_row("value", *NAMES)
    terminal = Terminal(width=300)
    terminal.print(table)
    for name in NAMES:
        terminal.print(name, soft_wrap=True)
    said = capsys.readouterr().out
    for shown in SHOWN:
        assert said.count(shown) == 3, shown
    assert not set(said) & set("\x1b\x07\x9b\r\u202e")
    terminal.print(Text(NAMES[3]))
    assert "\x1b" not in capsys.readouterr().out
    Terminal(force_terminal=True).print("[bold]x[/]", markup=True)
    assert "\x1b[1mx" in capsys.readouterr().out, "styles of ours stay"


@pytest.mark.parametrize(("name", "shown"), [*zip(NAMES, SHOWN, strict=True)])
def test_an_error_shows_names_as_they_are(name, shown):
    assert str(GeoprepError(f"{name}: not found")) == f"{shown}: not found"


@pytest.mark.parametrize("name", ["=1+1", "+a", "-a", "@a"])
def test_a_spreadsheet_computes_no_name(tmp_path, name):
    roads = ImageRoads(name, network([(0, 0), (40, 0)]), (0.5, 0.5), None)
    write_csv([roads, replace(roads, image_id="b")], tmp_path / "a.csv")
    with (tmp_path / "a.csv").open() as file:
        assert {row["ImageId"] for row in csv.DictReader(file)} == {f"'{name}", "b"}
    assert {*read_csv(tmp_path / "a.csv", pixel_size_m=0.5)} == {name, "b"}
