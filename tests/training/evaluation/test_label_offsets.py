"""From displaced labels to a store whose labels are in place: measured, written, built."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from affine import Affine
from helpers.factory import PLACES, Place, build_of, write_image, write_roads
from helpers.predict_cases import FACTS

from geoprep.cli import cli
from geoprep.sources import Scene
from geoprep.speed import NODATA
from geoprep.store import StoreReader, read_label
from training import evaluate as command
from training.evaluation.validation import evaluate_runner

SIDE, RIGHT, DOWN = 192, 6, -4
BINARY = replace(FACTS, channels=1, targets="binary", gsd_m=(0.31, 0.31), class_mph=())


class Sees:
    """A runner that finds bright pixels."""

    device = torch.device("cpu")
    fixed_batch = False

    def __call__(self, image):
        return (image[:, :1] > 75).float().permute(0, 2, 3, 1) * 0.9


@pytest.fixture
def measure(monkeypatch, tmp_path):
    """Return a function that measures the labels of a store by the command, to a CSV file."""
    (tmp_path / "model.pt").touch()

    def evaluated(options):
        given = {"offsets": options.offsets, "level": options.level or SIDE}
        return evaluate_runner(Sees(), BINARY, options.stores, options.split, **given)

    monkeypatch.setattr(command, "evaluated", evaluated)

    def measure(store, *more):
        file, model = tmp_path / "offsets.csv", tmp_path / "model.pt"
        given = (model, store.location, "--split", "all", "--csv", file, "--device", "cpu", *more)
        assert command.main(list(map(str, given))) == 0
        return file

    return measure


def displaced(right, down):
    at = PLACES["utm"]
    return Place(at.crs, at.transform * Affine.translation(right, down))


def labelled(folder, kind, right, down, seen):
    """Return a scene of bright pixels with a label that lies off."""
    pixels = np.random.default_rng(0).integers(20, 70, (SIDE, SIDE, 3)).astype(np.uint8)
    pixels[seen] += 130
    image = write_image(folder / "a.tif", pixels, PLACES["utm"])
    if kind == "vector":
        label = write_roads(folder / "a.geojson", displaced(right, down), (SIDE, SIDE))
    else:
        values = np.full((SIDE, SIDE, 1), 9, np.uint8)
        kept = np.s_[max(0, -down) : SIDE - max(0, down), max(0, -right) : SIDE - max(0, right)]
        values[max(0, down) :, max(0, right) :][
            : SIDE + min(0, down), : SIDE + min(0, right), 0
        ] = seen[kept] * np.uint8(255)
        label = write_image(folder / "a_mask.tif", values, PLACES["utm"])
    return Scene("a", str(image), str(label))


def built(folder, scene, kind, *more):
    """Build a store by the command line."""
    rasters = [] if kind == "vector" else ["--label-values", "255", "--label-nodata", "9"]
    words = ["build-zarr", "--images", scene.image, "--labels", scene.label, *rasters]
    words += ["--out", str(folder / "moved.zarr"), "--quiet", *map(str, more)]
    assert cli.main(words, standalone_mode=False) in (0, None)


@pytest.mark.parametrize(("kind", "level"), [("vector", SIDE), ("raster", SIDE // 2)])
def test_labels_that_lie_off_are_measured_and_moved(tmp_path, measure, kind, level, capsys):
    at = PLACES["utm"]
    blank = write_image(tmp_path / "x.tif", np.full((SIDE, SIDE, 3), 90, np.uint8), at)
    lines = write_roads(tmp_path / "x.geojson", at, (SIDE, SIDE))
    truth = read_label(build_of(tmp_path / "x.zarr", [Scene("x", str(blank), str(lines))]), 0)
    options = {} if kind == "vector" else {"label_values": "255", "label_nodata": "9"}
    right = labelled(tmp_path / "right", kind, 0, 0, truth > 0)
    expected = read_label(build_of(tmp_path / "right.zarr", [right], **options), 0)
    wrong = labelled(tmp_path / "wrong", kind, RIGHT, DOWN, truth > 0)
    store = build_of(tmp_path / "wrong.zarr", [wrong], **options)
    file = measure(store, "--offsets", "--level", level)
    (row,) = csv.DictReader(file.open(newline="", encoding="utf-8"))
    assert (row["unit"], row["certain"]) == ("metres", "yes")
    assert float(row["dx"]) == pytest.approx(-RIGHT * 0.31, abs=0.1)
    assert float(row["dy"]) == pytest.approx(-DOWN * 0.31, abs=0.1)
    assert 0 <= float(row["interval"]) < 0.3
    built(tmp_path, wrong, kind, "--label-offsets", file)
    assert "labels moved by" in capsys.readouterr().out
    found = read_label(StoreReader.open(tmp_path / "moved.zarr"), 0)
    if kind == "vector":
        both = (found > 0) & (expected > 0)
        assert both.sum() / ((found > 0) | (expected > 0)).sum() > 0.95
    else:
        inside = np.zeros((SIDE, SIDE), bool)
        inside[-DOWN:, : SIDE - RIGHT] = True
        np.testing.assert_array_equal(found[inside], expected[inside])
        assert (found[~inside] == NODATA).all()


def test_offsets_of_what_the_model_does_not_see_move_no_label(tmp_path, measure, capsys):
    """The file has offsets only where they are asked for."""
    scene = labelled(tmp_path, "vector", 3, 0, np.zeros((SIDE, SIDE), bool))
    store = build_of(tmp_path / "x.zarr", [scene])
    (row,) = csv.DictReader(measure(store).open(newline="", encoding="utf-8"))
    assert "dx" not in row
    file = measure(store, "--offsets")
    (row,) = csv.DictReader(file.open(newline="", encoding="utf-8"))
    assert (row["dx"], row["interval"], row["certain"]) == ("", "", "no")
    built(tmp_path, scene, "vector", "--label-offsets", file)
    printed = " ".join(capsys.readouterr().out.split())
    assert "0 scenes; left as they are, since the offset is not certain: a" in printed
