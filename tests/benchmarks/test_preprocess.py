"""The build's benchmark: its chips, what it times, what it compares with, and a whole run."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.builds import build_store, decode
from benchmarks.chips import KINDS, draw_chips, link_chips
from benchmarks.preprocess import LARGE, main
from benchmarks.reference import prepare_chip
from geoprep.building.options import BuildOptions
from geoprep.building.plan import make_plan
from geoprep.building.run import build
from geoprep.executors.threads import Threads
from geoprep.sources.city_scenes import find_scenes
from geoprep.store.reader import StoreReader

SIZE = 128


@pytest.fixture(scope="module", params=list(KINDS))
def chips(request, tmp_path_factory):
    return draw_chips(tmp_path_factory.mktemp("chips"), request.param, 3, SIZE, workers=1)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_timed_build_is_whole_and_leaves_nothing(chips, codec, tmp_path):
    run = build_store(chips, tmp_path / "o.zarr", workers=2, codec=codec)
    assert list(tmp_path.iterdir()) == []
    assert run.source_bytes == decode(chips.scenes(), 1).source_bytes
    assert 0 < run.store_bytes < 3 * (SIZE**2 + (SIZE // 2) ** 2) * 4


def test_a_build_with_failed_scenes_is_not_timed(chips, tmp_path):
    broken = link_chips(chips, tmp_path / "broken", 4)
    image = Path(broken.scenes()[2].image)
    image.unlink()
    image.write_bytes(b"not an image")
    with pytest.raises(RuntimeError, match="'failed': 1"):
        build_store(broken, tmp_path / "o.zarr", workers=1)


def test_reference_pipeline_makes_the_same_pixels(chips, tmp_path):
    found = find_scenes(chips.city, chips.folder)
    plan = make_plan([found], [chips.city.name], BuildOptions(rescale="scene"), Threads(1))
    build(plan, tmp_path / "o.zarr", Threads(1))
    store = StoreReader.open(tmp_path / "o.zarr")
    for number, scene in enumerate(found.scenes):
        (image, speed), _ = prepare_chip(scene)
        ours, mask = store.image(SIZE)[number], store.speed(SIZE)[number]
        valid = ours.any(axis=-1)
        # A build keeps 0 for nodata; in the reference the darkest valid pixels may be 0.
        assert np.array_equal(ours[valid], np.maximum(image, 1)[valid])
        assert np.array_equal(mask[valid], speed[valid])


@pytest.mark.slow
def test_a_quick_run_records_and_prints_everything(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.preprocess.QUICK_CITY_CHIPS", (1, 2))
    monkeypatch.setattr("benchmarks.preprocess.KINDS", {"uint8": KINDS["uint8"]})
    record = tmp_path / "p.json"
    given = ["--quick", "--size", str(SIZE), "--chips", "2", "--repeats", "1"]
    given += ["--source", str(tmp_path / "nothing"), "--work", str(tmp_path)]
    assert main([*given, "--json", str(record)]) == 0
    document = json.loads(record.read_text())
    figures = document["figures"]
    for name in ("decode.rate", "build.rate", "zstd.rate", "build_1w.rate", "share"):
        assert figures[f"uint8.{name}"]["median"] > 0
    assert figures["uint8.pss.2"]["median"] > 50
    assert figures["uint8.over_reference"]["median"] > 0
    assert any("no real chips" in note for note in document["notes"])
    said = capsys.readouterr().out
    for title in ("Rates", "decoding alone", "MB per chip", "Peak PSS"):
        assert title in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.json"]


@pytest.mark.slow
def test_a_quick_run_of_large_images_records_each_command(tmp_path, capsys, monkeypatch):
    record = tmp_path / "p.json"
    monkeypatch.setattr("benchmarks.preprocess.LARGE", dict([*LARGE.items()][:2]))
    given = ["--large", "--quick", "--repeats", "1", "--work", str(tmp_path)]
    assert main([*given, "--json", str(record)]) == 0
    figures = json.loads(record.read_text())["figures"]
    assert len(figures) == 2 * 3 * 2
    assert all(figure["median"] > 0 for figure in figures.values())
    assert "Large images" in capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.json"]
