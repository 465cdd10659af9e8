"""What the command line refuses, says and lets go on."""

import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from helpers.factory import PLACES, row_of_scenes, texture, write_image, write_roads

from geoprep.cli.progress import grouped
from geoprep.store.reader import StoreReader

SIDE = 64


@pytest.fixture
def scenes(tmp_path):
    """Two labelled scenes of a person's own, and where they are."""
    row_of_scenes(tmp_path / "in", 2, SIDE)
    return tmp_path / "in"


def own(scenes, *more):
    return ["build-zarr", "--images", scenes, "--labels", scenes, "--out", "a.zarr", *more]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--speed-from", "attributes", "--speed-field", "limit"], "leave out --speed-from"),
        (["--speed-from", "field", "--speed-unit", "mph"], "give the field too"),
        (["--block-km", "3"], "--split-by block"),
        (["--source", "data"], "--source needs --city"),
        *((["--" + name, text], "is empty") for name, text in (("labels", " "), ("out", ""))),
        (["--out", "gs://bucket/a.zarr"], "local folders only"),
        (["--tile", "125"], "--tile of 124"),
        (["--bands", "red,,blue"], "5,3,2"),
        (["--split-file", "a.geojson", "--val", "0.1"], "leave out --val"),
        (["--label-values", "255", "--buffer", "3"], "--buffer is for vector labels"),
        (["--label-speeds", "bins", "--speed-from", "field"], "--label-speeds for raster labels"),
        (["--tile", "many"], "auto"),
    ],
)
def test_options_that_contradict_each_other_are_refused(geoprep, scenes, tmp_path, more, says):
    refused = geoprep(*own(scenes, *more), status=2)
    assert refused.out == ""
    assert says in refused.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize("command", [["preview", "a.zarr"], ["export", "a.zarr", "--scene", "x"]])
def test_pictures_and_exports_go_to_local_files_and_levels_have_pixels(geoprep, command):
    remote = geoprep(*command, "--out", "s3://bucket/a.png", status=2)
    assert "local folders only" in remote.err
    assert "--level" in geoprep(*command, "--out", "a.png", "--level", "0", status=2).err


def test_a_city_named_twice_is_built_once(geoprep, tmp_path):
    folder = tmp_path / "AOI_2_Vegas" / "PS-RGB"
    write_image(folder / "SN3_roads_train_AOI_2_Vegas_PS-RGB_img1.tif", texture(SIDE, SIDE))
    command = ["build-zarr", "--source", tmp_path, "--city", "vegas", "--city", "AOI_2_Vegas"]
    geoprep(*command, "--out", "a.zarr")
    assert StoreReader.open(tmp_path / "a.zarr").scenes.id.tolist() == ["AOI_2_Vegas_img1"]


def test_a_scene_without_a_label_among_others_is_listed_as_that(geoprep, scenes):
    (scenes / "quay_1.geojson").unlink()
    out = geoprep(*own(scenes)).out
    assert "scenes without a label (1)\n  quay_1" in out
    assert "not built as they should be" not in out
    quiet = geoprep(*own(scenes, "--quiet", "--overwrite")).out
    assert "scenes without a label (1)" in quiet
    assert "quay_1" not in quiet


def test_a_name_that_is_no_utf8_fails_its_scene_alone_and_is_printed(geoprep, scenes):
    image = scenes / os.fsdecode(b"caf\xe9.tif")
    write_image(scenes / "cafe.tif", texture(SIDE, SIDE)).rename(image)
    (scenes / os.fsdecode(b"orphan\xe9.geojson")).write_text("{}")
    out = geoprep(*own(scenes), status=1).out
    assert r"caf\udce9: failed" in out
    assert r"orphan\udce9.geojson" in out
    assert StoreReader.open("a.zarr").scenes.status.tolist() == ["failed", "ok", "ok"]


def test_one_label_taken_for_all_scenes_is_said_and_ends_with_1(geoprep, scenes):
    """As where a shell makes one file of a pattern that is not quoted."""
    write_image(scenes / "far.tif", texture(SIDE, SIDE), PLACES["mercator"])
    command = ["build-zarr", "--images", scenes, "--labels", scenes / "quay_0.geojson"]
    out = geoprep(*command, "--out", "a.zarr", status=1).out
    assert "is the label of all 3 scenes; those that fail outside its extent: 1" in out
    assert "far: failed" in out
    assert "far: failed" in geoprep(*command, "--out", "q.zarr", "--quiet", status=1).out
    printed = geoprep(*command, "--out", "b.zarr", "--json", status=1)
    assert json.loads(printed.out)["statuses"] == {"failed": 1, "ok": 2}
    assert "note: " in printed.err


def test_the_help_has_no_marks_of_its_own(geoprep):
    out = geoprep("--help").out
    assert "\\b" not in out
    assert "\b" not in out
    assert "\n  geoprep info moscow.zarr " in out


def test_libraries_do_not_talk_to_the_terminal(scenes, tmp_path, python):
    """Neither rasterio of images without a place, nor pyogrio or GDAL of files cut short."""
    place = PLACES["degrees"]
    pixels = np.ones((SIDE, SIDE, 3), np.uint8)
    nowhere = write_image(scenes / "nowhere.tif", pixels, type(place)(None, place.transform))
    write_roads(scenes / "nowhere.geojson", place, (SIDE, SIDE))
    cut = write_image(scenes / "cut.tif", texture(SIDE, SIDE), compress=None)
    cut.write_bytes(cut.read_bytes()[:-3000])
    (scenes / "cut.fgb").write_bytes(b"fgb\x03fgb\x00" + b"\xff" * 99)
    main = "from geoprep.cli import main; main()"
    done = python("-c", main, *own(scenes, "--quiet"), cwd=tmp_path)
    assert done.returncode == 1
    assert nowhere.name in done.stdout
    assert done.stderr == ""


INTERRUPTED = """
import os, signal, sys
from geoprep.cli import main

event, at = sys.argv.pop(1), int(sys.argv.pop(1))
seen = 0

def watch(name, _):
    global seen
    seen += name == event
    if name == event and seen == at:
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(watch)
main()
"""


@pytest.mark.parametrize("moment", ["import 1", "import 400", "os.rename 1"])
def test_ctrl_c_is_one_line_from_the_beginning_on(scenes, tmp_path, python, moment):
    """It arrives before the first import, while libraries are imported, and in the build."""
    done = python("-c", INTERRUPTED, *moment.split(), *own(scenes, "--quiet"), cwd=tmp_path)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "Interrupted." in done.stderr
    assert Path(tmp_path / "in").exists()


def test_dry_run_builds_nothing_and_says_what_would_fail(geoprep, scenes, tmp_path):
    (scenes / "bad.tif").write_bytes(b"II*")
    said = json.loads(geoprep(*own(scenes, "--dry-run", "--json"), status=1).out)
    assert said["tiles"] == 3
    assert said["failures"][0][0] == "bad"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_all_scenes_are_exported_at_once_and_out_of_an_archive(geoprep, scenes, tmp_path):
    with tarfile.open(tmp_path / "in.tar.gz", "w:gz") as tar:
        tar.add(scenes, "in")
    packed = ["--images", "in.tar.gz", "--labels", "in.tar.gz!/in/*.geojson"]
    said = geoprep("build-zarr", *packed, "--out", "a.zarr", "--quiet").err
    assert said.count("unpacked into") == 1
    files = geoprep("export", "a.zarr", "--scenes", "all", "--out", "maps").out
    assert len(files.splitlines()) == 4
    assert len(list((tmp_path / "maps").glob("*.tif"))) == 4
    both = ("--scenes", "quay_0,quay_1", "--out", "m.tif")
    assert "Give a folder for several scenes" in geoprep("export", "a.zarr", *both, status=2).err
    chosen = ("--scene", "quay_1", "--footprints", "tile", "--out", "b.zarr")
    assert "give one of --scene" in geoprep("export", "a.zarr", *chosen, status=2).err


def test_an_id_with_a_comma_names_one_scene(geoprep, scenes, tmp_path):
    folder = tmp_path / "north, east"
    folder.mkdir()
    shutil.copy(next(scenes.glob("*.tif")), folder / "left, right.tif")
    geoprep("build-zarr", "--images", folder, "--out", "a.zarr", "--quiet")
    out = geoprep("export", "a.zarr", "--scene", "left, right", "--out", "m.tif").out
    assert (tmp_path / "m.tif").exists() or "m_" in out


def test_a_build_prints_how_values_were_stretched(geoprep, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    halves = np.indices((64, 64, 3))[1] % 2
    for low in (200, 300):
        values = np.uint16(low + 1000 * halves)
        write_image(tmp_path / "wide" / f"{low}.tif", values, PLACES["utm"])
    write_image(tmp_path / "bytes" / "a.tif", np.uint8(halves * 90 + 9), PLACES["utm"])
    build = ("build-zarr", "--quiet", "--tile", 64, "--out", "a.zarr", "--overwrite", "--images")
    found = geoprep(*build, "wide").out
    assert "2 scenes, by percentiles 2 and 98 of each scene and band: 200–300 to 1,200–1," in found
    assert "--rescale 100,900: 100 to 900\n" in geoprep(*build, "wide", "--rescale", "100,900").out
    assert "each scene and band: 9 to 99\n" in geoprep(*build, "bytes", "--rescale", "scene").out
    assert "stretched" not in geoprep(*build, "bytes").out


def test_equal_reasons_of_scenes_are_one_line_with_their_count():
    failed = [
        (f"s{i}", f"/in/s{i}.geojson: none of its {i} features intersects the scene s{i}")
        for i in range(3, 6)
    ]
    other = ("t", "t.tif: no such file; check the path.")
    first = f"3 scenes such as s3: {failed[0][1]}"
    assert grouped([*failed[:2], other, failed[2]]) == [first, f"t: {other[1]}"]


def test_the_scenes_of_a_split_are_exported(geoprep, scenes, tmp_path):
    listed = tmp_path / "splits.csv"
    listed.write_text("scene,split\nquay_1,val\n*,train\n")
    given = ("--images", scenes, "--split-file", listed, "--out", "a.zarr", "--quiet")
    geoprep("build-zarr", *given)
    assert geoprep("export", "a.zarr", "--split", "val", "--out", "maps", "--quiet").out == ""
    assert [path.name for path in (tmp_path / "maps").glob("*[0-9].tif")] == ["quay_1.tif"]
    said = geoprep("export", "a.zarr", "--split", "test", "--out", "maps", status=2).err
    assert "no scene whose tiles are all test; scenes are train; val" in said
    said = geoprep("export", "a.zarr", "--split", "val", "--out", "m.tif", status=2).err
    assert "Give a folder for several scenes" in said
    said = geoprep(
        "export", "a.zarr", "--split", "val", "--scene", "quay_1", "--out", "m", status=2
    )
    assert "--scenes and --split both choose scenes" in said.err


def test_a_long_list_of_scenes_is_no_name_of_a_model(geoprep, scenes, tmp_path):
    """A store is a store by what it holds."""
    geoprep("build-zarr", "--images", scenes, "--out", "a.pt", "--quiet")
    names = f"quay_0,{' ' * 260}quay_1"
    geoprep("export", "a.pt", "--scene", names, "--out", "maps")
    assert (tmp_path / "maps" / "quay_1.tif").is_file()
