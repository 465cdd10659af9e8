"""What is written: tiles, overviews, a cloud optimised GeoTIFF; and what is taken up again."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
import tifffile
from helpers.predict_cases import FACTS, PLACE, UTM, predict_options

from geoprep.cog import tiff
from geoprep.cog.spool import TILE, Shape
from geoprep.cog.writer import CogWriter
from geoprep.grid import Grid
from geoprep.imagery.scenes import OpenScene
from training.prediction.host import Host
from training.prediction.images import ImageSource
from training.prediction.journal import WriteJournal, folder_of
from training.prediction.prediction_tags import band_names, difference, tiff_tags
from training.prediction.predictor import Predictor
from training.prediction.screen import Screen

PREDICTOR = Predictor(FACTS, predict_options(), threshold=0.5, checkpoint="c")


def runner(*, compiled=False):
    return SimpleNamespace(identity={"precision": "float32", "compiled": compiled})


SIGNED = PREDICTOR.signature("chip.tif", "1", runner())
NAMES = band_names(FACTS, predict_options())
HEIGHT, WIDTH = 1300, 1100


def source(height=HEIGHT, width=WIDTH, crs=UTM):
    grid = Grid(height, width, PLACE, "EPSG:32637")
    scene = OpenScene("x/chip.tif", grid, (1, 2, 3), "uint8", (), None, True, 1, False)
    return ImageSource(scene, (1.0, 1.0), height, width, PLACE, crs, (0.31, 0.31), "1")


@pytest.fixture(scope="module")
def values():
    """A smooth map, uint8 (9, y, x), a corner of it without data."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [np.sin(y / (20 + k)) * np.cos(x / (30 + k)) for k in range(9)]
    made = np.clip(np.stack(waves) * 200, 0, 254).astype(np.uint8)
    made[:, 1024:, :601] = 255  # half of a block of an overview
    return made


def write(folder, values, compression="zstd", until=None, step=170):
    """Write a map, all of it or the rows up to ``until``."""
    target = folder / "map.tif"
    shape = Shape(*values.shape)
    with WriteJournal(target, {"a": 1}) as journal:
        if not journal.continued:
            journal.settle(limits=[])
        files = {"open_file": journal.open_tiles, "written": journal.rows}
        more = {"record": journal.add_row, **files}
        with CogWriter(shape, compression, [1], Host.halve, **more) as writer:
            begin = writer.next_row
            while writer.next_row < (until or shape.height):
                writer.put(values[:, writer.next_row : writer.next_row + step])
            if until is None:
                signed = SIGNED | {"compression": compression}
                tags = tiff_tags(source(*values.shape[1:]), FACTS, NAMES, signed)
                writer.finish(journal.whole, tags)
                journal.deliver()
        if until is None:
            journal.remove()
    return target, begin


@pytest.mark.parametrize("compression", ["zstd", "deflate"])
@pytest.mark.parametrize("big", [False, True])
def test_prediction_is_a_cloud_optimised_geotiff(tmp_path, values, monkeypatch, compression, big):
    if big:
        monkeypatch.setattr(tiff, "LARGEST_CLASSIC", 0)
    target, _ = write(tmp_path, values, compression)
    with rasterio.open(target) as dataset:
        np.testing.assert_array_equal(dataset.read(), values)
        assert dataset.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert dataset.overviews(1) == [2, 4]
        assert dataset.transform == PLACE
        assert dataset.crs == UTM
        assert dataset.nodatavals == (255,) * 9
        assert dataset.block_shapes[0] == (TILE, TILE)
        assert dataset.compression.name == compression
        assert dataset.descriptions[:3] == ("road", "speed", "road, ≤ 10 mph")
        assert (dataset.units[:3], dataset.scales[1]) == (("probability", "mph", "probability"), 1)
        assert [c["mph"] for c in json.loads(dataset.tags()["CLASSES"])] == list(FACTS.class_mph)
    data = target.read_bytes()
    with tifffile.TiffFile(target) as file:
        assert file.is_bigtiff == big
        starts = [page.offset for page in file.pages]
        levels = [(page.tags[324].value, page.tags[325].value) for page in file.pages]
    assert len(levels) == 3
    assert 0 in levels[0][0]  # tiles of nodata are omitted
    assert starts == sorted(starts)
    firsts = [min(o for o in offsets if o) for offsets, _ in levels]
    assert firsts == sorted(firsts, reverse=True)
    assert max(starts) < min(firsts)
    for offsets, _ in levels:
        there = [o for o in offsets if o]
        assert there == sorted(there)
    places = [(o, n) for offsets, sizes in levels for o, n in zip(offsets, sizes, strict=True) if n]
    for offset, size in places:
        assert int.from_bytes(data[offset - 4 : offset], "little") == size
        assert data[offset + size : offset + size + 4] == data[offset + size - 4 : offset + size]
    assert max(o + n for o, n in places) + 4 == len(data)


def test_overviews_are_averages_and_of_speeds_the_most_frequent_without_nodata(tmp_path, values):
    target, _ = write(tmp_path, values)
    with rasterio.open(target, overview_level=0) as dataset:
        half = dataset.read()
    assert half.shape == (9, HEIGHT // 2, WIDTH // 2)
    blocks = values.reshape(9, HEIGHT // 2, 2, WIDTH // 2, 2)
    known = blocks != 255
    sums, counts = (blocks * known).sum(axis=(2, 4)), known.sum(axis=(2, 4))
    wanted = np.where(counts > 0, np.floor(sums / np.maximum(counts, 1) + 0.5), 255)
    averaged = [0, *range(2, 9)]
    np.testing.assert_array_equal(half[averaged], wanted[averaged])
    assert (half[:, 512:, :300] == 255).all()
    of_four = values[1].reshape(HEIGHT // 2, 2, WIDTH // 2, 2).swapaxes(1, 2).reshape(-1, 4)
    seen = ([pixel for pixel in four if pixel != 255] or [255] for four in of_four.tolist())
    frequent = [max(each, key=lambda pixel: (each.count(pixel), pixel)) for each in seen]
    np.testing.assert_array_equal(half[1].ravel(), frequent)  # the largest of equals


def test_interrupted_prediction_resumes_to_the_same_bytes(tmp_path, values):
    whole, _ = write(tmp_path, values)
    other = tmp_path / "other"
    other.mkdir()
    write(other, values, until=1190)
    assert not (other / "map.tif").exists()
    folder = folder_of(other / "map.tif")
    with (folder / "level0.tiles").open("ab") as file:
        file.write(b"a row of tiles that the journal does not know")
    with (folder / "journal.jsonl").open("a") as file:
        file.write('{"row": [12, ')
    target, begin = write(other, values)
    assert begin == 2 * TILE
    assert target.read_bytes() == whole.read_bytes()
    assert not folder.exists()


def test_journal_with_another_identity_is_discarded(tmp_path):
    target = tmp_path / "map.tif"
    with WriteJournal(target, {"a": 1}) as journal:
        journal.settle(limits=[1])
        journal.add_row([3])
    with WriteJournal(target, {"a": 1}) as journal:
        assert journal.continued
        assert journal.rows == [[3]]
    with WriteJournal(target, {"a": 2}) as journal:
        assert not journal.continued
        assert journal.rows == []


def test_signatures_differ_by_everything_that_pixels_depend_on():
    city = replace(FACTS, rescale="city", limits=((1.0, 9.0),) * 3)
    for predictor, how, word in [
        (PREDICTOR, runner(compiled=True), "compiled"),
        (replace(PREDICTOR, threshold=0.4), runner(), "threshold"),
        (replace(PREDICTOR, info=city), runner(), "limits"),
    ]:
        other = predictor.signature("chip.tif", "1", how)
        assert f"other options ({word})" in difference(SIGNED, other)
        assert difference(SIGNED, other, loose=(word,)) == ""
    older = {key: value for key, value in SIGNED.items() if key != "format"}
    assert "another version of geoprep" in difference(older, SIGNED)


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:3857", None, 'LOCAL_CS["here",UNIT["m",1]]'])
def test_prediction_keeps_any_crs(crs):
    tags = tiff_tags(source(crs=crs), FACTS, NAMES, SIGNED)
    assert (34735 in tags) == (crs is not None)


class Terminal(io.StringIO):
    """A terminal that both standard output and standard error are shown on."""

    def isatty(self):
        return True


def test_a_line_is_printed_above_the_progress_bar(monkeypatch):
    terminal = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Screen(quiet=False) as screen:
        screen.begin(Path("a.tif"), 10)
        screen.say("a line")
    before, after = terminal.getvalue().split("a line")
    assert before.endswith("\x1b[2K")  # the bar was cleared
    assert after.startswith("\n")
