"""The benchmark of models that learn from real images, on tiny ones."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.factory import write_image

from benchmarks import learning
from geoprep.store.reader import StoreReader


@pytest.mark.slow
def test_models_learn_from_a_set_and_are_scored_beside_a_forest(tmp_path, capsys, monkeypatch):
    for number in range(8):
        rng = np.random.default_rng(number)
        cover = np.repeat(np.repeat(rng.integers(0, 2, (4, 4)), 16, 0), 16, 1)
        pixels = (80 + 60 * cover[..., None] + rng.normal(0, 5, (64, 64, 3))).astype(np.uint8)
        write_image(tmp_path / "images" / f"i{number}.tif", pixels)
        write_image(tmp_path / "masks" / f"i{number}.tif", (1 + cover[..., None]).astype(np.uint8))
    tiny = replace(
        learning.SETS["forest"],
        images="images/*.tif",
        labels="masks/*.tif",
        test=("images/i6.tif", "images/i7.tif"),
        prepare=lambda folder: (folder / "prepared").touch(),
    )
    sets = {"forest": tiny, "roofs": learning.SETS["roofs"]}
    monkeypatch.setattr(learning, "SETS", sets)
    run = tmp_path / "runs" / "forest-scene-unet-small-batch_size=2"
    again = f"unet-small@{run}+crop=32+batch_size=2+jitter=1"
    options = ["--models", f"unet-small+batch_size=2,{again}", "--minutes", "0.02"]
    options += ["--rescale", "scene", "--json", str(tmp_path / "a.json")]
    assert learning.main([str(tmp_path), *options]) == 0
    splits = StoreReader.open(tmp_path / "forest-scene.zarr").tiles.split.tolist()
    assert sorted(splits) == [0] * 5 + [1] + [2] * 2
    figures = json.loads((tmp_path / "a.json").read_text())["figures"]
    for name in ("unet-small+batch_size=2.0.02.0", f"{again}.0.02.0", "forest"):
        assert 0 <= figures[f"forest.scene.{name}"]["median"] <= 1
    made = next(path for path in run.parent.glob("*jitter=1"))
    assert {"crop: 32", "jitter: 1.0"} <= set(made.joinpath("config.yaml").read_text().split("\n"))
    assert (tmp_path / "prepared").exists()
    printed = capsys.readouterr().out
    steps = re.search(r"unet-small\+batch_size=2, .* (\d+) steps", printed)[1]
    with (run / "metrics.csv").open(newline="") as table:
        *_, last = csv.DictReader(table)
    assert abs(int(last["step"]) - int(steps)) <= 1, "five tiles are two steps of an epoch"
    assert "roofs is left out: no roofs/*chips/*-21.tif" in printed
    assert "random forest" in printed
