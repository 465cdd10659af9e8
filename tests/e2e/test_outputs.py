"""No command replaces a file unasked, and none an input: all commands, with all their outputs."""

import shutil
from importlib import import_module

import click
import geopandas
import numpy as np
import pytest
import rasterio
import shapely
from helpers.rasters import write_raster
from helpers.runs import KEYWORDS
from helpers.stores import write_store

import geoprep
from geoprep.cli.commands import cli
from training import train

pytestmark = pytest.mark.slow

READ = {
    *("classes", "split_file", "encoder_weights", "init_from", "resume", "config"),
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
    ("synth", "--city", "moscow", "--scenes", "1", "--size", "64", "--labels", "classes",
     "--out", "out"),
    *(
        ("vectorize", "in/mask.tif", "--out", f"out/a{x}")
        for x in (".gpkg", ".geojson", ".parquet", ".csv")
    ),
]  # fmt: skip


MORE = [
    ("preview", ROADS, "--over", "in/a.png", "--out", "out/a.png"),
    ("compare", "in/city.geojson", ROADS, "--out", "out/city.gpkg"),
    ("predict", "in/run", "in/a.tif", *TINY, "--area", "in/area.gpkg", "--out", "out",
     "--polygons", "out/p.gpkg"),
    ("fit", "in/s.zarr", *QUICK, "--init-from", "in/run", "--out", "out"),
    ("fit", "in/s.zarr", *QUICK, "--config", "in/config.yaml", "--out", "out"),
]  # fmt: skip
"""Inputs of a format that is an output too."""


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
    write_raster(folder / "a.png", rng.integers(1, 255, (3, 64, 64), np.uint8))
    with rasterio.open(folder / "a.tif") as file:
        area = geopandas.GeoDataFrame(geometry=[shapely.box(*file.bounds)], crs=file.crs)
    area.to_file(folder / "area.gpkg")
    geoprep.vectorize(folder / "mask.tif", out=folder / "city.geojson", progress=False)
    (folder / "config.yaml").write_text("epochs: 1\n")
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


@pytest.fixture
def places(inputs, tmp_path):
    """A folder with the inputs, which a command must leave as they are, and an empty one."""
    (tmp_path / "in").symlink_to(inputs)
    (tmp_path / "out").mkdir()
    before = contents(inputs)
    yield tmp_path / "in", tmp_path / "out"
    assert contents(inputs) == before


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_what_exists_is_replaced_only_if_asked(here, places, words):
    _, out = places
    more = ["--overwrite"] * (words[0] != "synth")
    here("geoprep", *words, folder=out.parent)
    written = [*contents(out)]
    assert written
    before = contents(out)
    again = here("geoprep", *words, folder=out.parent, status=None)
    resumed = words[0] in ("build-zarr", "synth") or (words[0], "--polygons" in words) == (
        "predict",
        False,
    )
    assert again.returncode == (0 if resumed else 2)
    assert resumed or "--overwrite" in again.stderr
    assert contents(out) == before
    here("geoprep", *words, *more, folder=out.parent)
    for foreign in (written, *([path] for path in written[:: 1 + len(written) // 4])):
        plant(out, foreign)
        done = here("geoprep", *words, folder=out.parent, status=None)
        assert {path: contents(out).get(path) for path in foreign} == dict.fromkeys(
            foreign, b"mine"
        )
        if words[0] == "synth":  # what is there is kept
            continue
        assert done.returncode != 0, foreign
        assert any(text in done.stderr for text in map(str, (*foreign, out.name)))
        done = here("geoprep", *words, *more, folder=out.parent, status=None)
        after = contents(out)
        if words[0] in ("build-zarr", "fit"):  # folders
            assert done.returncode != 0
            assert {path: after.get(path) for path in foreign} == dict.fromkeys(foreign, b"mine")
        else:
            assert done.returncode == 0, done.stderr
            assert b"mine" not in after.values()


def inputs_of(words):
    """Return the positions of the words that name an input."""
    return [i for i, word in enumerate(words) if word.startswith("in/")]


# GeoPackages stand under the names of other files here, which GDAL tells.
@pytest.mark.filterwarnings("ignore:.*has GPKG application_id")
@pytest.mark.parametrize(
    "words", [words for words in (*CASES, *MORE) if inputs_of(words)], ids=" ".join
)
def test_no_input_is_replaced(here, places, words):
    given, out = places
    here("geoprep", *words, folder=out.parent)
    written, kinds = [*contents(out)], set()
    shutil.rmtree(out)
    for number, name in ((i, words[i]) for i in inputs_of(words)):
        source = given / name[3:]
        if (source / "zarr.json").exists():  # outputs in the store
            inside = [
                word.replace("out", name, 1) if word.startswith("out") else word for word in words
            ]
            here("geoprep", *inside, "--overwrite", folder=out.parent, status=None)
            continue
        source = source / "best.pt" if source.is_dir() else source
        for path in written:
            if (number, path.suffix) in kinds:
                continue
            kinds.add((number, path.suffix))
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(source.read_bytes())
            moved = [*words[:number], str("out" / path), *words[number + 1 :]]
            for more in ([], ["--overwrite"]):
                done = here("geoprep", *moved, *more, folder=out.parent, status=None)
                assert done.returncode != 0, (moved, more)
                assert (out / path).read_bytes() == source.read_bytes(), (moved, more)
            shutil.rmtree(out)
