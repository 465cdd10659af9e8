"""Test that the commands of docs/how-to/recipes.md run, on small files."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from helpers.factory import PLACES, ROADS, Place, write_image, write_roads
from PIL import Image

from geoprep.store import StoreReader

REPO = Path(__file__).resolve().parents[2]
RECIPES = (REPO / "docs" / "how-to" / "recipes.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```console (\w+)\n(.*?)```", RECIPES, flags=re.DOTALL))
# A model and a run small enough for a test; everything else is as in the recipe.
SMALL = (
    "--model helpers.tiny:build --epochs 6 --crop 64 --lr 0.02 --device cpu --compile off --quiet "
    "--pictures 0"
)
MODEL = "--model helpers.tiny:build --device cpu"
SIDE = 128


@pytest.fixture
def run(here, tmp_path, monkeypatch):
    """Return a function that runs a line of a recipe; every line is one command and no more."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(line):
        program, *words = shlex.split(line, comments=True)
        if program == "python":
            assert words.pop(0) == "-m"
            program = words.pop(0)
        done = here(program, *words, folder=tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def follow(run):
    """Return a function that runs the lines of a recipe."""

    def follow(recipe):
        for line in BLOCKS[recipe].splitlines():
            command = line.removeprefix("$ ")
            if "training.fit" in command:
                command += f" {SMALL}"
            if "training.predict" in command:
                command += f" {MODEL}"
            run(command)

    return follow


def bars(seed, side=SIDE):
    """Return where two crossing roads are, bool (y, x)."""
    rng = np.random.default_rng(seed)
    road = np.zeros((side, side), bool)
    y, x = rng.integers(10, side - 20, 2)
    road[y : y + 10], road[:, x : x + 10] = True, True
    return road


def photograph(road, seed):
    """Return an image, uint8 (y, x, 3), of bright roads on dark ground."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(20, 70, (*road.shape, 3)).astype(np.uint8)
    pixels[road] += 130
    return pixels


def place_of(number, metres=0.5):
    affine = PLACES["utm"].transform * Affine.scale(metres / 0.31)
    return Place(PLACES["utm"].crs, affine * Affine.translation(number * SIDE, 0))


def write_mask(path, values):
    """Write uint8 (y, x) or (band, y, x), not georeferenced."""
    layers = values if values.ndim == 3 else values[None]
    path.parent.mkdir(parents=True, exist_ok=True)
    driver = "PNG" if path.suffix == ".png" else "GTiff"
    profile = {"count": len(layers), "height": layers.shape[1], "width": layers.shape[2]}
    with rasterio.open(path, "w", driver=driver, dtype="uint8", **profile) as file:
        file.write(layers)


def road_pixels(path):
    """Return the road pixels of a prediction, bool (y, x)."""
    with rasterio.open(path) as file:
        band = list(file.descriptions).index("road") + 1
        return file.read(band) > 127


def road_iou(found, truth):
    return (found & truth).sum() / (found | truth).sum()


def test_every_recipe_is_run_here():
    assert set(BLOCKS) == {"deepglobe", "massachusetts", "spacenet", "masks", "mosaic"}
    assert all(
        line.startswith("$ ") for body in BLOCKS.values() for line in body.splitlines() if line
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_deepglobe_from_masks_to_a_prediction(tmp_path, follow):
    for number in range(7):
        road, folder = bars(number), tmp_path / ("train" if number < 6 else "valid")
        folder.mkdir(exist_ok=True)
        picture = Image.fromarray(photograph(road, number))
        picture.save(folder / f"{number}_sat.jpg", quality=95)
        if number < 6:
            grey = np.where(road, 250, 4).astype(np.uint8)  # as after lossy compression
            write_mask(folder / f"{number}_mask.png", np.repeat(grey[None], 3, axis=0))
    follow("deepglobe")
    store = StoreReader.open(tmp_path / "deepglobe.zarr")
    assert store.scenes.status.tolist() == ["ok"] * 6
    assert not store.meta.has_speeds
    assert set(store.scenes.crs.tolist()) == {""}
    assert "(binary: the roads of a store have no speeds)" in log_of(tmp_path / "runs/deepglobe")
    assert road_iou(road_pixels(tmp_path / "predictions" / "6_sat.tif"), bars(6)) > 0.7


def log_of(folder):
    return (folder / "log.txt").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_massachusetts_from_masks_to_a_prediction(tmp_path, follow):
    for number in range(7):
        road, name = bars(number), f"1037878{number}_15"
        pixels = photograph(road, number)
        pixels[:12] = 255  # not photographed
        folder = tmp_path / ("train" if number < 6 else "test") / "sat"
        write_image(folder / f"{name}.tiff", pixels, place_of(number, 1.0))
        if number < 6:
            write_mask(folder.parent / "map" / f"{name}.tif", road * np.uint8(255))
    follow("massachusetts")
    store = StoreReader.open(tmp_path / "massachusetts.zarr")
    assert store.scenes.status.tolist() == ["ok"] * 6
    speed = store.speed()[...]
    assert (speed[:, :12] == 255).all()
    assert set(np.unique(speed[:, 12:]).tolist()) == {0, 254}
    found = road_pixels(tmp_path / "predictions" / "10378786_15.tif")
    assert road_iou(found[16:], bars(6)[16:]) > 0.7


@pytest.mark.slow
def test_spacenet_3_and_5_as_their_archives_unpack(tmp_path, follow):
    tagged = [
        (line, {"highway": highway, "lanes": lanes, "surface": "paved", "inferred_speed_mph": "1"})
        for (line, _), highway, lanes in zip(
            ROADS, ("motorway", "residential", "track"), "421", strict=True
        )
    ]
    for city, mission, token, roads in (
        ("AOI_2_Vegas", "SN3", "img", ROADS),
        ("AOI_7_Moscow", "SN5", "chip", tagged),
    ):
        for number in (3, 12):
            at, stem = place_of(number), f"{mission}_roads_train_{city}_"
            folder = tmp_path / "data" / city
            name = f"{stem}PS-RGB_{token}{number}.tif"
            write_image(folder / "PS-RGB" / name, photograph(bars(number), number), at)
            label = (
                folder
                / "geojson_roads_speed"
                / f"{stem}geojson_roads_speed_{token}{number}.geojson"
            )
            label.parent.mkdir(exist_ok=True)
            write_roads(label, at, (SIDE, SIDE), roads)
    follow("spacenet")
    for name, slowest in (("vegas", 15), ("moscow", 20)):
        store = StoreReader.open(tmp_path / f"{name}.zarr")
        assert store.scenes.status.tolist() == ["ok"] * 2
        assert np.unique(store.speed()[...]).tolist() == [0, slowest, 25, 65]


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_masks_of_speed_bins_made_elsewhere(tmp_path, follow):
    for number in (3, 12):
        name = f"SN5_roads_train_AOI_7_Moscow_PS-{{}}_chip{number}.tif"
        image = tmp_path / "data/AOI_7_Moscow/PS-RGB" / name.format("RGB")
        write_image(image, photograph(bars(number), number), place_of(number))
        channels = np.zeros((8, SIDE, SIDE), np.uint8)
        channels[2][bars(number)] = channels[7][bars(number)] = 255
        write_mask(tmp_path / "masks" / name.format("MS"), channels)
    follow("masks")
    store = StoreReader.open(tmp_path / "from-masks.zarr")
    assert store.meta.has_speeds
    for scene, number in enumerate((3, 12)):
        np.testing.assert_array_equal(store.speed()[scene], np.where(bars(number), 26, 0))


def test_one_mosaic_and_a_geopackage(tmp_path, follow, run):
    geopandas = pytest.importorskip("geopandas")
    shapely = pytest.importorskip("shapely")
    at = place_of(0)
    write_image(tmp_path / "mosaic.tif", photograph(bars(1, 700), 1), at)
    line = [
        shapely.LineString([at.transform * (x, y) for x in (-50, 750)]) for y in (100, 300, 500)
    ]
    columns = {"fclass": ["primary", "residential", "rail"], "width": [12.0, None, 9.0]}
    frame = geopandas.GeoDataFrame(columns, geometry=line, crs=at.crs)
    frame.to_file(tmp_path / "roads.gpkg")
    follow("mosaic")
    store = StoreReader.open(tmp_path / "mosaic.zarr")
    assert store.scenes.status.tolist() == ["ok"]
    column = np.concatenate(
        [store.speed()[tile][:, 20] for tile in np.flatnonzero(store.tiles.col == 0)]
    )
    counts = np.bincount(column[:700], minlength=256)
    assert counts[[45, 25]].tolist() == [24, 10]  # 12 m and twice 2.5 m of half a metre
    facts = json.loads(run("geoprep info mosaic.zarr --json"))
    assert facts["notes"]["width missing"] == 1
