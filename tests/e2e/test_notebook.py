"""Test the path of a notebook user, from imagery to scores, with two imports."""

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.runs import KEYWORDS

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
