"""No command replaces a file that it did not make: all commands, with all outputs they declare."""

import shutil
from importlib import import_module

import click
import numpy as np
import pytest
from helpers.rasters import write_raster
from helpers.runs import KEYWORDS
from helpers.stores import write_store

import geoprep
from geoprep.cli.commands import cli
from training import train

pytestmark = pytest.mark.slow

LIST = ".geoprep-outputs"
READ = {
    *("classes", "split_file", "encoder_weights", "init_from", "class_weights", "resume", "config"),
    *("over", "truth", "proposal", "images", "area"),
}
"""Options that name a file or folder to read."""
ELSEWHERE = {"download out": "tests/geoprep/sources/test_city_downloads.py"}
"""Outputs that other tests prove, since their commands need a server."""
TINY = ("--model", "helpers.tiny:build", "--device", "cpu", "--quiet")
QUICK = (*TINY, "--epochs", "1", "--crop", "32", "--batch-size", "2")
EXPORT = ("export", "in/s.zarr")
ROADS = "in/roads.gpkg"
CASES = [
    ("build-zarr", "--city", "moscow", "--source", "in", "--out", "out/a.zarr", "--quiet"),
    ("evaluate", "in/run", "in/s.zarr", *TINY,
     "--csv", "out/m.csv", "--confusion", "out/c.csv"),
    (*EXPORT, "--scene", "chip0", "--out", "out/a.tif"),
    (*EXPORT, "--scene", "all", "--out", "out"),
    *((*EXPORT, "--footprints", "scene", "--out", f"out/a{x}") for x in (".geojson", ".gpkg")),
    ("export-model", "in/run", *TINY[:2], "--format", "fp32", "--out", "out/a.pt2"),
    ("fit", "in/s.zarr", *QUICK, "--out", "out"),
    ("compare", ROADS, ROADS, "--out", "out/a.gpkg"),
    ("polygonize", "in/map.tif", "--out", "out/a.gpkg"),
    *(
        ("predict", "in/run", "in/a.tif", *TINY, "--out", "out", *more)
        for more in ((), ("--overlay",), ("--polygons", "out/p.gpkg"))
    ),
    *(("preview", "in/s.zarr", "--out", f"out/a{x}") for x in (".png", ".pdf", ".html")),
    ("preview", ROADS, "--out", "out/a.png"),
    ("score", "--truth", ROADS, "--proposal", ROADS, "--csv", "out/a.csv"),
    ("synth", "--city", "moscow", "--scenes", "1", "--size", "64", "--labels", "classes",
     "--out", "out"),
    *(
        ("vectorize", "in/mask.tif", "--out", f"out/a{x}")
        for x in (".gpkg", ".geojson", ".graphml", ".parquet", ".osm", ".csv")
    ),
]  # fmt: skip


def declared_outputs():
    """Return the options of all commands that name a file or folder to write."""
    context, found = click.Context(cli), set()
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if module := getattr(command, "_module", None):
            command = import_module(module).COMMAND
        for option in command.params:  # get_params would remember its option of help
            shown = (option.metavar or "").replace("|", " ").split()
            is_path = isinstance(option.type, click.Path) or {"FILE", "FOLDER"} & set(shown)
            if isinstance(option, click.Option) and is_path and option.name not in READ:
                found.add(f"{name} {option.name}")
    return found


def test_every_declared_output_is_tried(entry_points):
    tried = {f"{name} {word[2:]}" for name, *words in CASES for word in words if word[:2] == "--"}
    assert declared_outputs() - ELSEWHERE.keys() <= tried


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, short_runs):
    """A folder with a store of classes, a run, rasters, a network, and a synthetic city."""
    folder = tmp_path_factory.mktemp("inputs")
    store = write_store(folder / "s.zarr", classes=("background", "slow", "fast"))
    train(store, out=folder / "run", progress=False, **KEYWORDS)
    rng = np.random.default_rng(0)
    write_raster(folder / "a.tif", rng.integers(1, 255, (3, 64, 64), np.uint8))
    mask = np.zeros((64, 64), np.uint8)
    mask[30:34] = 1
    write_raster(folder / "mask.tif", mask)
    write_raster(folder / "map.tif", mask, tags={"CLASS_NAMES": '["background", "road"]'})
    geoprep.vectorize(folder / "mask.tif", out=folder / "roads.gpkg", progress=False)
    geoprep.synthesize("moscow", scenes=2, size=128, out=folder, progress=False)
    return folder


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def plant(out, paths):
    """Put files of a user in a new folder."""
    shutil.rmtree(out, ignore_errors=True)
    for path in paths:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(b"mine")


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_files_of_others_stay(here, inputs, tmp_path, words):
    (tmp_path / "in").symlink_to(inputs)
    out, before = tmp_path / "out", contents(inputs)
    out.mkdir()
    here("geoprep", *words, folder=tmp_path)
    written = [path for path in contents(out) if path.name != LIST]
    assert written
    keeps = words[0] == "synth"  # what is there
    replaced = ["--overwrite"] if words[0] in ("export-model", "fit") else []
    here("geoprep", *words, *replaced, folder=tmp_path)  # over its own files
    given = [[]]
    if words[0] in ("build-zarr", "predict", "export-model", "fit"):
        given.append(["--overwrite"])
    for more in given:
        for foreign in (written, *([path] for path in written[:: 1 + len(written) // 6])):
            plant(out, foreign)
            found = contents(out)
            done = here("geoprep", *words, *more, folder=tmp_path, status=None)
            after = contents(out)
            assert {path: after.get(path) for path in found} == found, (more, foreign)
            if not keeps:
                assert done.returncode != 0, foreign
                assert any(part in done.stderr for part in map(str, (*foreign, out.name)))
    assert contents(inputs) == before
