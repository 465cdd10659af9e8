"""Test that commands and functions agree: options, defaults, and what a command calls."""

import ast
import inspect
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

import geoprep
import geoprep.cli
from geoprep.building.options import BuildOptions
from geoprep.cli.commands import cli
from geoprep.errors import GeoprepError
from geoprep.roads.options import Tracing

# Command -> its function, and a command line without defaults.
COMMANDS = {
    "synth": (
        "synthesize",
        "--city rio --scenes 3 --out d --labels classes --seed 4 --product PAN --size 64 "
        "--workers 2 --quiet",
    ),
    "download": (
        "download",
        "--city rio --product MS --scenes 3 --out d --dry-run --quiet",
    ),
    "cities": ("list_cities", "--json"),
    "build-zarr": (
        "build_zarr",
        "--city rio --source d --product MS --images i --asset red --labels l --out o.zarr "
        "--label-name m_{name} --overwrite --workers 2 --scheduler tcp://h:1 "
        "--dry-run --json --quiet",
    ),
    "info": ("store_info", "o.zarr --scenes --batch-size 3 --crop 9 --workers 2 --json"),
    "verify": ("check_store", "o.zarr --workers 2 --quiet --json"),
    "preview": (
        "preview",
        "o.zarr --out a.png --scene s --count 2 --level 9 --over x.tif --pixel-size 2 --quiet "
        "--overwrite",
    ),
    "export": (
        "export_scenes",
        "o.zarr --scene s --split val --out a --overwrite --level 9 --what image",
    ),
    "vectorize": (
        "vectorize",
        "a.tif --out x.gpkg --overwrite --kind mask --band 2 --pixel-size 2 --threshold 0.4 "
        "--high-threshold 0.6 --min-spur 1 --min-length 2 --min-confidence 0.1 --smoothing 3 "
        "--max-path 40 --no-gap-closing --motorway-mph 70 --workers 2 --quiet --json",
    ),
    "score": (
        "score",
        "--truth t --proposal p --images i --split val --pixel-size 2 --speed-from auto "
        "--speed-field f --speed-unit kmh --layer l --where w --snap 5 --control-point-spacing 9 "
        "--topo-radius 10 --classes c.yaml "
        "--other nodata --tolerance 3 --label-nodata 9 --boundary 3 --quiet --json",
    ),
    "compare": (
        "compare",
        "a.osm b.gpkg --out c.gpkg --overwrite --images i --distance 8 --min-length 9 "
        "--apply-offset --json",
    ),
    "polygonize": (
        "polygonize",
        "maps --out a.gpkg --overwrite --simplify 2 --min-area 5 --square --pixel-size 2 "
        "--background --quiet --json",
    ),
}
# Option -> keyword where they differ, and the keyword's value for a value of the option.
NAMES = {
    "products": "product",
    "rasters": "source",
    "maps": "source",
    "network": "roads",
    "shortest": "by",
    "quiet": "progress",
}
VALUES = {
    "by": lambda shortest: "length" if shortest else "time",
    "progress": lambda quiet: not quiet,
}
# Options that choose the function, are of its other function, or say how its result is printed;
# and keywords of notebooks only.
OF_THE_COMMAND = {"as_json", "by", "form", "tiles", "datetime"}
SILENT = ("export", "quiet")  # its function prints nothing
OF_NOTEBOOKS = {"transform", "crs", "progress", "options"}


def keyword(option):
    return NAMES.get(option.name, option.name)


def of_build(option):
    """Return whether an option is a field of BuildOptions, which functions take by name."""
    return option.name in {one.name for one in fields(BuildOptions)}


def parameters(name):
    return inspect.signature(getattr(geoprep, COMMANDS[name][0])).parameters


def test_every_command_has_its_function():
    assert set(cli.commands) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_keywords_with_the_same_defaults(name):
    keywords = dict(parameters(name))
    for option, setting in cli.commands[name].settings.items():
        if option in OF_THE_COMMAND or (name, option) == SILENT:
            continue
        given = NAMES.get(option, option)
        assert given in keywords, f"{name}: no keyword {given}"
        default = keywords.pop(given).default
        if given != "progress" and default is not inspect.Parameter.empty:  # as `scenes` of exports
            assert str(default) == str(setting.default), given  # a path may be a text
    left = set(keywords) - OF_NOTEBOOKS - {one.name for one in fields(Tracing) if not one.metadata}
    assert not left, f"geoprep {name} has no options for {sorted(left)}"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_gives_its_function_every_option_and_calls_no_other(name, monkeypatch):
    function, words = COMMANDS[name]
    bind = inspect.signature(getattr(geoprep, function)).bind
    received = {}

    def record(*arguments, **keywords):
        received.update(bind(*arguments, **keywords).arguments)
        raise GeoprepError("recorded")

    for other in geoprep.__all__:
        if inspect.isfunction(getattr(geoprep, other)):
            monkeypatch.setattr(geoprep, other, None)
    monkeypatch.setattr(geoprep, function, record)
    assert str(CliRunner().invoke(cli, [name, *words.split()]).exception) == "recorded"
    context = cli.commands[name].make_context(name, words.split())
    for option in cli.commands[name].params:
        if option.name in OF_THE_COMMAND or of_build(option) or (name, option.name) == SILENT:
            continue
        assert context.get_parameter_source(option.name).name == "COMMANDLINE", option.name
        given, value = keyword(option), context.params[option.name]
        value = VALUES.get(given, lambda same: same)(value)
        got = received[given]
        if given == "progress" and name == "build-zarr":
            assert got._quiet  # an observer
        else:
            assert (list(got) if isinstance(value, tuple) else got) == (
                list(value) if isinstance(value, tuple) else value
            )


def test_a_command_that_writes_other_files_calls_the_function_of_these(monkeypatch):
    called = []
    for function in ("write_road_table", "export_footprints"):
        monkeypatch.setattr(
            geoprep, function, lambda *_, name=function, **__: called.append(name) or {}
        )
    CliRunner().invoke(cli, ["vectorize", "a.tif", "--out", "x.csv"])
    CliRunner().invoke(cli, ["export", "o.zarr", "--footprints", "tile", "--out", "x.gpkg"])
    assert called == ["write_road_table", "export_footprints"]


def test_commands_import_the_api_and_records_only():
    """Records declare options by `geoprep.options`; `render` makes text of facts."""
    names = ("options", "errors", "cpus", "texts", "building.options", "building.request")
    names += ("roads.options", "labels.label_options", "executors.terminal", "views.facts")
    allowed = {"geoprep", *(f"geoprep.{name}" for name in names)}
    for path in Path(geoprep.cli.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("geoprep"):
                known = node.module in allowed
                known = known or node.module.startswith(("geoprep.cli", "geoprep.api."))
                assert known, f"{path}: {node.module}"
