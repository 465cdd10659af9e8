"""geoprep vectorize and preview as a user runs them."""

import csv
import json

import numpy as np
import pytest
import rasterio
import shapely
from affine import Affine
from click.testing import CliRunner
from helpers.roads import drawn, write_raster
from PIL import Image

from geoprep.cli import main
from geoprep.roads.formats import read_network

CITY = [[(-10, -100), (410, -130)], [(120, 10), (100, -210)], [(300, 10), (310, -210)]]


@pytest.fixture
def maps(tmp_path):
    """Two maps of speeds side by side."""
    folder = tmp_path / "maps"
    folder.mkdir()
    mask = drawn(CITY, (200, 400), width=5, value=25)
    for number, left in enumerate((0, 200)):
        write_raster(
            folder / f"AOI_7_Moscow_PS-RGB_chip{number}.tif",
            mask[:, left : left + 200],
            transform=Affine(1, 0, 400_000 + left, 0, -1, 6_000_000),
        )
    return folder


def run(monkeypatch, capsys, *arguments):
    """Return exit status, standard output and standard error."""
    monkeypatch.setattr("sys.argv", ["geoprep", *map(str, arguments)])
    try:
        main()
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    return status, *capsys.readouterr()


def test_maps_become_one_network_and_its_picture(maps, tmp_path, monkeypatch, capsys):
    out = tmp_path / "city.gpkg"
    status, text, _ = run(
        monkeypatch, capsys, "vectorize", maps, "--out", out, "--kind", "speed", "--quiet"
    )
    assert status == 0
    made = read_network(out)
    assert text == f"wrote {out}: {len(made.ends)} edges, {len(made.nodes)} nodes, " + (
        f"{made.length_m.sum() / 1000:,.3f} km\n"
    )
    assert made.speed_mph == pytest.approx(25)
    picture = tmp_path / "roads.png"
    over = next(maps.iterdir())
    status, text, _ = run(monkeypatch, capsys, "preview", out, "--over", over, "--out", picture)
    assert (status, text) == (0, f"wrote {picture}\n")
    assert Image.open(picture).width == 1600


def test_a_table_of_images(maps, tmp_path, monkeypatch, capsys):
    out = tmp_path / "roads.csv"
    status, text, _ = run(monkeypatch, capsys, "vectorize", maps, "--out", out, "--json")
    assert status == 0
    assert json.loads(text)["images"] == 2
    names = {line.split(",")[0] for line in out.read_text().splitlines()}
    assert names == {"ImageId", "AOI_7_Moscow_chip0", "AOI_7_Moscow_chip1"}


def test_a_table_has_the_pixels_of_the_image_that_a_map_was_made_of(
    maps, tmp_path, monkeypatch, capsys
):
    ends = []
    for name in ("own", "finer"):
        out = tmp_path / f"{name}.csv"
        assert run(monkeypatch, capsys, "vectorize", maps, "--out", out, "--quiet")[0] == 0
        lines = [row[1] for row in csv.reader(out.open()) if row[1].startswith("LINESTRING (")]
        ends.append(np.array([shapely.from_wkt(line).bounds for line in lines]))
        for path in maps.iterdir():  # made of images of half the pixel size
            with rasterio.open(path, "r+") as dataset:
                dataset.update_tags(SOURCE_SIZE=f"{2 * dataset.height} {2 * dataset.width}")
    assert len(ends[0])
    assert ends[1] == pytest.approx(2 * ends[0], abs=0.01)


def test_a_mask_without_a_place(tmp_path, monkeypatch, capsys):
    mask = tmp_path / "mask.png"
    Image.fromarray(drawn(CITY, (200, 400), value=255)).save(mask)
    out = tmp_path / "roads.geojson"
    status, _, error = run(monkeypatch, capsys, "vectorize", mask, "--out", out, "--quiet")
    assert status == 2
    assert error.startswith(f"Error: {mask}: is not georeferenced")
    assert "--pixel-size METRES" in error
    assert not out.exists()
    status, _, _ = run(
        monkeypatch, capsys, "vectorize", mask, "--out", out, "--quiet", "--pixel-size", "2"
    )
    assert status == 0
    assert read_network(out).length_m.sum() == pytest.approx(2 * 800, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("vectorize", "nowhere", "--out", "x.gpkg"), "nowhere: no such file or folder"),
        (("vectorize", ".", "--out", "x.shp"), r"x.shp: a road network is a file that ends in"),
        (("vectorize", ".", "--out", "x.shp"), ".geojson, .graphml, .parquet, .csv"),
        (("preview", "nowhere.gpkg"), "nowhere.gpkg: no such file"),
        (("preview", "nowhere.gpkg", "--scene", "chip1"), "--scene and --level are for stores"),
        (("preview", "a.zarr", "--over", "x.tif"), "--over x.tif is for road networks"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, _, error = run(monkeypatch, capsys, *arguments)
    assert status == 2
    assert error.startswith("Error: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_picture_over_an_image_that_lies_elsewhere_is_refused(
    maps, tmp_path, monkeypatch, capsys
):
    far = Affine(1, 0, 700_000, 0, -1, 5_000_000)
    out, away = tmp_path / "city.gpkg", tmp_path / "away.tif"
    assert run(monkeypatch, capsys, "vectorize", maps, "--out", out, "--quiet")[0] == 0
    write_raster(away, np.zeros((64, 64), np.uint8), transform=far)
    picture = tmp_path / "roads.png"
    status, _, error = run(monkeypatch, capsys, "preview", out, "--over", away, "--out", picture)
    assert status == 2
    assert "away.tif does not overlap the roads" in error
    assert not picture.exists()


def test_a_missing_folder_is_found_before_the_work(maps, tmp_path, monkeypatch, capsys):
    def traced(*_, **__):
        raise AssertionError("hours of work")

    monkeypatch.setattr("geoprep.roads.tracing.vectorization", traced)
    out = tmp_path / "nowhere" / "x.gpkg"
    status, _, error = run(monkeypatch, capsys, "vectorize", maps, "--out", out, "--quiet")
    assert status == 2
    assert "does not exist: create it first" in error


@pytest.mark.parametrize(
    ("values", "nodata"),
    [(np.full((50, 50), np.nan, np.float32), None), (np.full((50, 50), 255, np.uint8), 255)],
    ids=["NaN", "no data"],
)
def test_a_raster_without_data_is_said(tmp_path, monkeypatch, capsys, values, nodata):
    path = write_raster(tmp_path / "blank.tif", values, nodata=nodata)
    for suffix in ("gpkg", "csv"):
        status, text, error = run(
            monkeypatch, capsys, "vectorize", path, "--out", tmp_path / f"x.{suffix}", "--quiet"
        )
        assert (status, "0 edges" in text) == (0, True)
        assert error == f"warning: {path}: holds no data at all, so no roads\n"
    write_raster(path, np.zeros((50, 50), np.uint8))
    told = run(monkeypatch, capsys, "vectorize", path, "--out", tmp_path / "x.gpkg", "--quiet")
    assert told[2] == ""  # no roads are a result


def test_a_picture_of_an_images_part_of_a_table(maps, tmp_path, monkeypatch, capsys):
    table, picture = tmp_path / "city.csv", tmp_path / "roads.png"
    assert run(monkeypatch, capsys, "vectorize", maps, "--out", table, "--quiet")[0] == 0
    image = next(maps.iterdir())
    assert run(monkeypatch, capsys, "preview", table, "--over", image, "--out", picture)[0] == 0
    assert picture.exists()
    status, _, error = run(monkeypatch, capsys, "preview", table, "--out", picture)
    assert (status, "name the image with --over IMAGE" in error) == (2, True)
    other = write_raster(tmp_path / "AOI_7_Moscow_chip9.tif", np.zeros((9, 9), np.uint8))
    status, _, error = run(monkeypatch, capsys, "preview", table, "--over", other)
    assert (status, "has no roads of aoi_7_moscow_chip9" in error) == (2, True)


def test_a_raster_that_is_all_road(tmp_path, monkeypatch, capsys):
    path = write_raster(tmp_path / "all.tif", np.ones((300, 300), np.uint8))
    status, _, error = run(
        monkeypatch, capsys, "vectorize", path, "--out", tmp_path / "x.gpkg", "--quiet"
    )
    assert status == 1
    assert "all.tif: road all over" in error


def test_help_names_every_option_in_its_section():
    from geoprep.cli.commands import cli

    text = CliRunner().invoke(cli, ["vectorize", "--help"]).output
    for part in (
        "What is a road:",
        "What is mended:",
        "--threshold",
        "--no-repair",
        "[default: 10",
    ):
        assert part in text
    assert "\n  geoprep vectorize maps/ --out roads.csv" in text
