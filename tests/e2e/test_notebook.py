"""Test the path of a notebook user, from imagery to scores, with two imports."""

import re
import shutil
import tempfile
from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
import xarray as xr
from helpers.runs import KEYWORDS
from rasterio.windows import Window

import geoprep as gp
from training import load_model, train


def test_from_imagery_to_scores(tmp_path, monkeypatch, same_process):
    monkeypatch.chdir(tmp_path)
    city = gp.synthesize(city="moscow", scenes=2, size=128, out="data/", progress=False)
    store = gp.build_zarr(
        city="moscow", source="data/", out="moscow.zarr", tile=64, levels=1, progress=False
    )
    assert store.summary.statuses == {"ok": 2}
    assert "8 of 64 x 64 pixels" in repr(gp.open_store("moscow.zarr"))
    assert isinstance(store.scenes, gpd.GeoDataFrame)
    assert isinstance(store.tiles, gpd.GeoDataFrame)
    pixels = store.to_xarray(level=64, chunks={})
    assert (pixels.image.shape, pixels.image.chunks is not None) == ((8, 64, 64, 3), True)
    assert xr.open_zarr("moscow.zarr").split.shape == (8,)
    assert xr.open_zarr("moscow.zarr", group="64").speed.shape == (8, 64, 64)

    run = train(store, out="runs/moscow", progress=False, pictures=0, **KEYWORDS)
    model = load_model(run.best, model=KEYWORDS["model"])
    assert model.info.bands == ("red", "green", "blue")
    probabilities = model(pixels.image[:2].values.transpose(0, 3, 1, 2))
    assert (probabilities.dtype, probabilities.shape[0]) == (np.float32, 2)
    images = sorted((city / "PS-RGB").glob("*.tif"))
    options = {"model": KEYWORDS["model"], "window": 64, "overlap": 32, "gsd": "image"}
    predicted = model.predict(images, out="predictions/", progress=False, **options)

    roads = gp.vectorize(predicted, threshold=0.9, high_threshold=1.0, progress=False)
    assert isinstance(roads.edges, gpd.GeoDataFrame)
    labels = city / "geojson_roads_speed"
    truth = gp.RoadNetwork.from_geopandas(gpd.read_file(next(labels.glob("*.geojson"))))
    truth.to_file("truth.gpkg")
    scores = gp.score("truth.gpkg", gp.read_network("truth.gpkg"), topo_starts=2, progress=False)
    assert isinstance(scores, pd.DataFrame)
    assert scores.attrs["mean"]["apls"] == scores["apls"].iloc[0] == pytest.approx(1)


TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"


def run_page(name, folder, monkeypatch):
    """Run all cells of a tutorial, below a folder, and return its variables."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.chdir(folder)  # the page changes the folder
    page = (TUTORIALS / f"{name}.md").read_text("utf-8")
    cells = re.findall(r"^```{code-cell}(?:.*\n:)?.*\n((?:.*\n)*?)```", page, re.M)
    assert len(cells) > 3
    shown = "Image = lambda path, width: __import__('pathlib').Path(path).read_bytes()"
    names: dict[str, object] = {}
    exec("\n".join(cells).replace("from IPython.display import Image", shown), names)
    return names


@pytest.mark.slow
@pytest.mark.parametrize(("page", "areas"), [("buildings", "buildings"), ("land-cover", "areas")])
def test_tutorial_of_classes(page, areas, tmp_path, monkeypatch, same_process):
    names = run_page(page, tmp_path, monkeypatch)
    assert names["evaluation"]["baseline"].keys() >= {"model", "forest", "most_common"}
    assert {*names[areas]["class"]} <= {*names["store"].meta.class_names} - {"background"}
    assert len(names[areas]) > 1


@pytest.mark.slow
def test_tutorial_of_own_images_with_real_ones(shared_data, tmp_path, monkeypatch, same_process):
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
    names = run_page("own-geotiffs", tmp_path, monkeypatch)
    found, roads, store = names["found"], names["roads"], names["store"]
    assert found["baseline"].keys() >= {"model", "forest", "most_common"}
    assert 0 < found["baseline"]["forest"] < 1
    assert roads.crs == "EPSG:32611"
    assert dict(store.summary.statuses) == {"ok": 8, "failed": 1}
    assert names["report"].ok
