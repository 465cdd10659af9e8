"""Test that the tutorials run, as the path of a notebook user."""

import re
import shutil
import tempfile
from pathlib import Path

import pytest
import rasterio
from rasterio.windows import Window

import geoprep as gp

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"


def run_page(name, folder, monkeypatch, **fewer):
    """Run all cells of a tutorial, below a folder, and return its variables.

    ``fewer`` are numbers that take the place of the page's own.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.chdir(folder)  # the page changes the folder
    page = (TUTORIALS / f"{name}.md").read_text("utf-8")
    cells = re.findall(r"^```{code-cell}(?:.*\n:)?.*\n((?:.*\n)*?)```", page, re.M)
    assert len(cells) > 3
    shown = "Image = lambda path, width: __import__('pathlib').Path(path).read_bytes()"
    code = "\n".join(cells).replace("from IPython.display import Image", shown)
    for setting, number in fewer.items():
        code, found = re.subn(rf"\b{setting}=\d+", f"{setting}={number}", code)
        assert found == 1
    names: dict[str, object] = {}
    exec(code, names)
    return names


@pytest.mark.slow
def test_tutorial_of_classes(tmp_path, monkeypatch, short_runs):
    names = run_page("buildings", tmp_path, monkeypatch)
    assert names["evaluation"]["baseline"].keys() >= {"model", "forest", "most_common"}
    areas = names["buildings"]
    assert {*areas["class"]} <= {*names["store"].meta.class_names} - {"background"}
    assert len(areas) > 1


@pytest.mark.slow
def test_tutorial_of_own_images_with_real_ones(shared_data, tmp_path, monkeypatch, short_runs):
    """Nine parts of a real image take the place of the page's synthetic city."""
    city = tmp_path / "city"
    (image,) = shared_data.glob("AOI_2_Vegas/PS-RGB/*_img0.tif")
    (label,) = shared_data.glob("AOI_2_Vegas/geojson_roads_speed/*_img0.geojson")
    for one in (image, label):
        (city / one.parent.name).mkdir(parents=True)
    with rasterio.open(image) as whole:
        for number in range(9):
            part = Window(433 * (number // 3), 433 * (number % 3), 416, 416)
            place = {"width": 416, "height": 416, "transform": whole.window_transform(part)}
            name = f"chip{number}"
            shutil.copy(label, city / label.parent.name / f"{name}.geojson")
            path = city / image.parent.name / f"{name}.tif"
            with rasterio.open(path, "w", **whole.profile | place | {"count": 3}) as file:
                file.write(whole.read([1, 2, 3], window=part))
    monkeypatch.setattr(gp, "synthesize", lambda *_, **__: city)
    names = run_page("own-geotiffs", tmp_path, monkeypatch, epochs=2)
    found, roads, store = names["found"], names["roads"], names["store"]
    assert found["baseline"].keys() >= {"model", "forest", "most_common"}
    assert 0 < found["baseline"]["forest"] < 1
    assert roads.crs == "EPSG:32611"
    assert dict(store.summary.statuses) == {"ok": 8, "failed": 1}
    assert names["report"].ok
