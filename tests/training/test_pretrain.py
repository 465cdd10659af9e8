"""Test initial weights from synthetic cities."""

import shutil

import numpy as np
import pytest
import zarr
from helpers.forks import as_rank
from helpers.runs import KEYWORDS
from helpers.stores import write_store

import training
from geoprep.building.options import BuildOptions
from geoprep.errors import UsageError
from geoprep.store.reader import StoreReader
from geoprep.synth.layout import SIZES
from training import pretrain
from training.checkpoint import load


@pytest.fixture(scope="module")
def start(store_path, tmp_path_factory, short_runs):
    """A run of one epoch on two cities of one scene each."""
    out = tmp_path_factory.mktemp("start") / "start"
    settings = {"cities": 2, "scenes": 1, "out": str(out)}
    return training.pretrain_model(store_path, progress=False, **settings, **KEYWORDS)


def cities(run):
    return sorted(run.folder.with_name("start-cities").iterdir())


def test_cities_have_the_pixel_size_and_tiles_of_the_store(start, store_path):
    wanted = StoreReader.open(store_path).meta
    size = np.sqrt(np.prod(wanted.gsd_m))
    found = [StoreReader.open(path).meta for path in cities(start)]
    assert [one.levels for one in found] == [wanted.levels[:1]] * 2
    sizes = [np.sqrt(np.prod(one.gsd_m)) for one in found]
    np.testing.assert_allclose(sizes, [size, 0.8 * size], rtol=0.02)
    assert (load(start.best).info.gsd_m[0] / wanted.gsd_m[0]) == pytest.approx(1, rel=0.05)


def test_a_training_starts_from_the_weights(start, store_path, tmp_path):
    given = {"init_from": str(start.folder), "out": str(tmp_path / "run"), "lr": 1e-12}
    run = training.train(store_path, progress=False, **given, **KEYWORDS)
    before, after = (load(one.best).model for one in (start, run))
    assert set(before) == set(after)
    for name in before:
        np.testing.assert_allclose(after[name], before[name], atol=1e-6)


def test_existing_cities_are_used_again(start, store_path, tmp_path, monkeypatch):
    shutil.copytree(cities(start)[0].parent, tmp_path / "again-cities")
    monkeypatch.setattr("training.pretrain._build", None)
    monkeypatch.setattr("training.run.start.start_run", lambda *_: 0)
    options = {"cities": 2, "scenes": 1, "out": str(tmp_path / "again")}
    training.pretrain_model(store_path, progress=False, **options)
    with pytest.raises(TypeError):  # another buffer: other cities
        training.pretrain_model(store_path, progress=False, buffer=3.0, **options)


def test_cities_have_the_values_of_the_store(tmp_path, short_runs):
    """Bands by name; where a store has other bands, these in turn."""
    for bands, wanted in ((("blue", "nir", "red"), (90, 200, 10)), (("pan",), (10, 10, 10))):
        store = tmp_path / f"{bands[0]}.zarr"
        write_store(store, bands=bands)
        image = zarr.open_group(store)["64/image"]
        image[:] = np.full(image.shape, [10, 200, 90][: len(bands)], np.uint8)
        (path,) = pretrain.city_stores(
            StoreReader.open(store),
            pretrain.CityOptions(store=str(store), cities=1, scenes=1),
            tmp_path / bands[0],
            {"quiet": True},
        )
        city = StoreReader.open(path).image()[:]
        assert np.unique(city[city.any(axis=-1)], axis=0).tolist() == [list(wanted)]


def test_a_store_without_speeds_gets_a_model_of_roads(store_path, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(StoreReader, "has_speeds", False)
    monkeypatch.setattr("training.pretrain.city_stores", lambda *_: [])
    monkeypatch.setattr("training.run.start.start_run", lambda given, _: seen.append(given) or 0)
    training.pretrain_model(store_path, out=str(tmp_path / "a"))
    training.pretrain_model(store_path, out=str(tmp_path / "b"), targets="continuous")
    assert [one["targets"] for one in seen] == ["binary", "continuous"]
    assert seen[0]["epochs"] == 16


def test_a_folder_that_holds_a_run_is_refused_before_cities_are_drawn(start, store_path):
    before = cities(start)
    with pytest.raises(UsageError, match="holds a run: start from it"):
        training.pretrain_model(store_path, cities=3, out=str(start.folder))
    assert cities(start) == before


def test_scenes_and_labels_are_those_of_the_other_commands():
    assert pretrain.CityOptions.buffer == BuildOptions().buffer
    assert SIZES[1] == pretrain._MOST_SIDE


def test_ranks_are_refused(store_path, tmp_path, monkeypatch):
    as_rank(monkeypatch, WORLD_SIZE=2)
    with pytest.raises(UsageError, match="without torchrun"):
        training.pretrain_model(store_path, out=str(tmp_path / "a"))
