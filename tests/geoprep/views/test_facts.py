"""What is said about a store is what is in it."""

import io
from dataclasses import replace

import numpy as np
import pytest
import rasterio
from affine import Affine
from helpers.factory import PLACES, build_of, texture, write_scene
from PIL import Image
from rich.console import Console

import geoprep
from geoprep.cli.progress import print_info
from geoprep.sources.scene import Scene
from geoprep.views.facts import info, render


@pytest.fixture(scope="module")
def facts(store):
    return info(store, scenes=True)


def _printed(facts) -> str:
    console = Console(width=100, record=True, highlight=False, file=io.StringIO())
    console.print(render(facts))
    return console.export_text()


def test_bytes_are_those_on_disk(facts, small_store):
    def size(folder):
        return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())

    assert facts["bytes"] == size(small_store)
    for level in facts["levels"]:
        for name in ("image", "speed"):
            entry = level[name]
            assert entry["stored"] == size(small_store / str(level["level"]) / name)
            assert entry["bytes"] == np.prod(entry["shape"])
            assert entry["ratio"] == pytest.approx(entry["bytes"] / entry["stored"])


def test_memory_is_that_of_the_pixels_a_split_loads(facts, store):
    usable = (store.scenes.status == "ok")[store.tiles.scene]
    for i, name in enumerate(("train", "val", "test")):
        split = facts["splits"][name]
        count = int(((store.tiles.split == i) & usable).sum())
        assert split["usable_tiles"] == count
        for level in store.meta.levels:
            pixels = store.image(level)[:count].nbytes + store.speed(level)[:count].nbytes
            assert split["ram_bytes"][str(level)] == pixels
    assert sum(s["tiles"] for s in facts["splits"].values()) == facts["tiles"] == len(store.tiles)
    assert sum(s["scenes"] for s in facts["splits"].values()) == facts["scenes"]


def test_memory_of_a_loader_follows_the_formula_of_the_documentation(store):
    memory = info(store, batch_size=3, crop=40, workers=5)["memory"]
    assert list(memory["levels"]) == ["64", "32"]
    for level, side in (("64", 40), ("32", 32)):  # tiles of 32 pixels are whole samples
        found, splits = memory["levels"][level], info(store)["splits"]
        assert found["tiles"] == sum(splits[n]["ram_bytes"][level] for n in ("train", "val"))
        assert found["batch"] == 3 * side * side * (len(store.meta.bands) + 1)
        assert found["loader"] == 7 * found["batch"] == found["total"] - found["tiles"]
        assert found["worker_process"] == found["batch"] + 8_000_000


def test_statistics_are_those_of_the_training_pixels(facts, store):
    usable = (store.scenes.status == "ok")[store.tiles.scene]
    image = np.asarray(store.image()[:])[usable & (store.tiles.split == 0)]
    for i, band in enumerate(facts["statistics"]):
        values = image[..., i][image[..., i] > 0].astype(np.float64)
        assert band["pixels"] == values.size
        assert band["mean"] == pytest.approx(values.mean())
        assert band["std"] == pytest.approx(values.std())


def test_road_fraction_and_speeds_are_those_of_the_masks(facts, store):
    usable = (store.scenes.status == "ok")[store.tiles.scene]
    speed = np.asarray(store.speed()[:])
    valid = speed[usable][speed[usable] != 255]
    assert facts["road_fraction"] == pytest.approx((valid > 0).mean(), abs=1e-6)
    training = speed[usable & (store.tiles.split == 0)]
    values, counts = np.unique(training[(training > 0) & (training < 255)], return_counts=True)
    assert facts["speeds"] == dict(zip(map(str, values), counts.tolist(), strict=True))


def scenes_of(sources, *names):
    """Return scenes of the small store with their labels."""
    return [Scene(name, f"{sources}/{name}.tif", f"{sources}/{name}.geojson") for name in names]


def test_area_is_that_of_the_imagery(tmp_path, sources):
    """In metres of UTM, and without overlap, nodata or padding the area is known."""
    scenes = scenes_of(sources, "utm_north", "utm_south")
    facts = info(build_of(tmp_path / "utm.zarr", scenes, tile=64, overlap=8))
    with rasterio.open(sources / "utm_north.tif") as source:
        one = source.height * source.width * 0.25 / 1e6
    assert facts["km2"] == pytest.approx(2 * one, rel=2e-3)  # UTM's own scale is 0.9996 here
    assert facts["gsd_m"] == pytest.approx([0.5, 0.5], rel=1e-3)


def test_every_scene_that_is_not_ok_has_its_reason(facts, store):
    assert facts["statuses"] == {"ok": 11, "skipped": 1, "failed": 2, "unlabelled": 1}
    assert {i["scene"] for i in facts["issues"]} == {
        "city_black",
        "city_broken",
        "city_truncated",
        "city_unlabelled",
    }
    assert all(issue["reason"] for issue in facts["issues"])
    assert [row["scene"] for row in facts["scene_table"]] == list(store.scenes.id)
    small = next(row for row in facts["scene_table"] if row["scene"] == "utm_small")
    assert small["valid_fraction"] == 1  # padding is not missing imagery


def test_terminal_shows_what_decides_on_a_training(facts):
    text = _printed(facts)
    for piece in ("small  ", "121 tiles of 64 px", "overlap 8 px", "64 × 64 × 3", "RAM at 32",
                  "loader, 4 workers", "as a process", "red", "rescale none",
                  "city_broken: failed: ", "unlabelled"):  # fmt: skip
        assert piece in text, piece


def test_many_issues_are_cut_short_unless_all_are_asked_for(facts):
    issues = [{"scene": f"s_{i}", "status": "failed", "reason": "broken"} for i in range(30)]
    short = {**facts, "issues": issues}
    everything = _printed(short)
    del short["scene_table"]
    assert "s_29: failed" in everything
    assert "s_29: failed" not in _printed(short)
    assert "and 22 more: `geoprep info --scenes` lists all" in _printed(short)


def test_many_speeds_become_bins(facts):
    many = {**facts, "speeds": {str(mph): 10 * mph for mph in range(15, 66)}}
    labels = [line.split()[0] for line in _printed(many).splitlines() if "█" in line]
    assert labels == ["11–20", "21–30", "31–40", "41–50", "51–60", ">"]


LONG = "an_area_with_a_name_that_is_longer_than_any_terminal_" * 3


def test_names_are_whole_in_a_pipe(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    scene = write_scene(tmp_path, LONG, texture(64, 64))
    print_info(info(build_of(tmp_path / "x.zarr", [scene]), scenes=True))
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if LONG in line]
    assert line.split() == [LONG, "train", "1", *line.split()[3:5], "ok"]


def test_store_without_training_tiles_is_described(tmp_path, sources):
    black, unlabelled = scenes_of(sources, "city_black", "city_unlabelled")
    scenes = [black, replace(unlabelled, label=None)]
    facts = info(build_of(tmp_path / "x.zarr", scenes, rescale="none"))
    assert facts["statistics"][0]["mean"] is None
    assert facts["road_fraction"] == 0
    assert "–" in _printed(facts)


def test_pixels_of_several_sizes_are_a_range(tmp_path):
    """Of five scenes most have 64 x 64 pixels, so they are tiles; the fine one would need four."""
    utm = PLACES["utm"]
    fine = replace(utm, transform=utm.transform * Affine.scale(0.25))
    sizes = [(f"s{i}", 64, utm) for i in range(3)] + [("fine", 128, fine), ("small", 16, utm)]
    scenes = [write_scene(tmp_path, name, texture(side, side), at) for name, side, at in sizes]
    facts = info(build_of(tmp_path / "x.zarr", scenes))
    assert facts["tile"] == 64
    low, high = facts["gsd_range_m"]
    assert low == pytest.approx(high / 4, rel=0.01)
    assert f"{low:.2f} to {high:.2f} m per pixel" in _printed(facts)


def test_empty_tiles_are_not_usable_and_need_no_memory(tmp_path):
    """Two tiles of 64; one of them has no imagery, so that no loader loads it."""
    pixels = texture(64, 128)
    pixels[:, 64:] = 0
    scene = write_scene(tmp_path, "a", pixels)
    facts = info(build_of(tmp_path / "x.zarr", [scene], tile=64, levels=1))
    usable = {name: split["usable_tiles"] for name, split in facts["splits"].items()}
    assert facts["tiles"] == 2
    assert sum(usable.values()) == 1
    memory = sum(split["ram_bytes"]["64"] for split in facts["splits"].values())
    assert memory == 64 * 64 * (3 + 1)


def test_classes_are_counted_of_splits_with_usable_tiles_only(tmp_path):
    """The scene of the split val fails, since its label has a value that no class has."""
    for name, value in (("a", 2), ("b", 7)):
        label = np.full((64, 64), value)
        label[:32] = 1
        for folder, pixels in (("images", np.full((64, 64, 3), 90)), ("masks", label)):
            (tmp_path / folder).mkdir(exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / folder / f"{name}.png")
    (tmp_path / "splits.csv").write_text("scene,split\na,train\nb,val\n")
    store = geoprep.build_zarr(
        images=tmp_path / "images",
        labels=tmp_path / "masks",
        classes="road=1,water=2",
        split_file=str(tmp_path / "splits.csv"),
        pixel_size=1.0,
        out=tmp_path / "x.zarr",
        progress=False,
    )
    assert store.info()["statuses"]["failed"] == 1
    pixels = [one["pixels"] for one in store.info()["classes"]]
    assert pixels == [{"train": 64 * 32}, {"train": 64 * 32}]
    assert "val" not in store.summary.class_pixels
