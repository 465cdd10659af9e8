"""Test that the commands of docs/how-to run, on small files of the layouts they are for."""

import ast
import pickle
import re
import shlex
import zipfile
from pathlib import Path

import geopandas
import numpy as np
import pytest
import rasterio
import shapely
from affine import Affine
from helpers.factory import PLACES, ROADS, Place, write_image, write_roads
from helpers.items import collection_of, sentinel_item, write_json
from helpers.rasters import write_raster
from helpers.web import served
from PIL import Image

import geoprep
from geoprep.store.reader import StoreReader
from geoprep.store.schema import SPLIT_NAMES

REPO = Path(__file__).resolve().parents[2]
PAGES = {
    path.stem: path.read_text(encoding="utf-8") for path in (REPO / "docs" / "how-to").glob("*.md")
}
FOUND = [
    (name, body)
    for text in PAGES.values()
    for name, body in re.findall(r"```console *(\w[\w-]*)?\n(.*?)```", text, flags=re.DOTALL)
]
BLOCKS = dict(FOUND)
# A model and a run small enough for a test; a page may set these options itself.
SMALL = {"--model": "helpers.tiny:build", "--epochs": "6", "--crop": "64", "--lr": "0.02"}
QUICK = "--device cpu --compile off --quiet --pictures 0"
SIDE = 128


@pytest.fixture
def run(here, tmp_path, monkeypatch, short_runs):
    """Return a function that runs a line of a page; every line is one command and no more."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(line):
        program, *words = shlex.split(line, comments=True)
        name = words.pop(0)
        if name == "fit":
            words += [word for pair in SMALL.items() if pair[0] not in words for word in pair]
            words += QUICK.split()
        elif name in ("predict", "evaluate", "export-model"):
            if "--model" not in words and not words[0].endswith(".json"):
                words += ["--model", SMALL["--model"]]
            words += [] if name == "export-model" else ["--device", "cpu"]
        return here(program, name, *words, folder=tmp_path).stdout

    return run


@pytest.fixture
def follow(run):
    """Return a function that runs the lines of a block and returns what the last one printed."""
    return lambda block: [run(line.removeprefix("$ ")) for line in BLOCKS[block].splitlines()][-1]


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


def write_mask(path, values):
    """Write uint8 (y, x) or (band, y, x), not georeferenced."""
    driver = "PNG" if path.suffix == ".png" else "GTiff"
    write_raster(path, values, driver=driver, crs=None, transform=Affine.identity())


def place_of(number, metres=0.5):
    affine = PLACES["utm"].transform * Affine.scale(metres / 0.31)
    return Place(PLACES["utm"].crs, affine * Affine.translation(number * SIDE, 0))


def built(path, scenes):
    """Return a store of so many scenes without a failure."""
    store = StoreReader.open(path)
    assert store.scenes.status.tolist() == ["ok"] * scenes
    return store


def test_every_block_is_run_here():
    tests = Path(__file__).read_text(encoding="utf-8")
    assert len(FOUND) == len(BLOCKS) > 12
    for name, body in FOUND:
        assert f'follow("{name}")' in tests, f"docs/how-to: no test runs the block {name!r}"
        assert all(line.startswith("$ ") for line in body.splitlines()), name


def texts_of_the_code():
    """Return every text of the packages with … for values, and options as the command line has."""

    def text(node):
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else "…"
        if isinstance(node, ast.JoinedStr):
            return "".join(map(text, node.values))
        return "…"

    files = (
        path for name in ("geoprep", "loaders", "training") for path in (REPO / name).rglob("*.py")
    )
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    found = "\n".join(
        text(node) for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)
    )
    return re.sub(r"`(\w+)`", lambda name: "--" + name[1].replace("_", "-"), found)


def test_every_message_of_the_troubleshooting_page_is_one_of_the_code():
    found = texts_of_the_code()
    lines = re.findall(r"^((?:`[^`]+`, )*`[^`]+`)\n: ", PAGES["troubleshooting"], re.MULTILINE)
    messages = [message for line in lines for message in line.strip("`").split("`, `")]
    assert len(messages) > 25
    strange = [one for one in messages if one.strip("… ") not in found]
    assert not strange


def write_pairs(folder, numbers, masks=True):
    """Write photographs and masks without georeference, as DeepGlobe has them."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        road = bars(number)
        picture = Image.fromarray(photograph(road, number))
        picture.save(folder / f"{number}_sat.jpg", quality=95)
        if masks:
            grey = np.where(road, 250, 4).astype(np.uint8)  # as after lossy compression
            write_mask(folder / f"{number}_mask.png", np.repeat(grey[None], 3, axis=0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_deepglobe_from_masks_to_a_prediction(tmp_path, follow):
    write_pairs(tmp_path / "train", range(6))
    write_pairs(tmp_path / "valid", [6], masks=False)
    follow("deepglobe")
    store = built(tmp_path / "deepglobe.zarr", 6)
    assert not store.meta.has_speeds
    assert set(store.scenes.crs.tolist()) == {""}
    assert "(binary: the roads of a store have no speeds)" in log_of(tmp_path / "runs/deepglobe")
    with rasterio.open(tmp_path / "predictions" / "6_sat.tif") as file:
        found = file.read(list(file.descriptions).index("road") + 1) > 127
    assert (found & bars(6)).sum() / (found | bars(6)).sum() > 0.7


def log_of(folder):
    return (folder / "log.txt").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_pairs_of_images_and_masks_and_what_is_trained_on_them(tmp_path, follow):
    write_pairs(tmp_path / "pairs", range(3))
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for path in (tmp_path / "pairs").iterdir():
            archive.write(path, path.name)
    assert "3 scenes (3 ok)" in follow("pairs")
    follow("archive")
    a, b = (StoreReader.open(tmp_path / name) for name in ("pairs.zarr", "set.zarr"))
    np.testing.assert_array_equal(a.image()[...], b.image()[...])
    follow("residency")
    assert "RamTiles" not in log_of(tmp_path / "runs/streamed")
    (source,) = re.findall(r"```python\n(.*?)```", PAGES["own-model"], flags=re.DOTALL)
    (tmp_path / "mymodels.py").write_text(source, encoding="utf-8")
    follow("own-model")
    assert len(list((tmp_path / "predictions").glob("*.tif"))) == 3
    (tmp_path / "runs/streamed").rename(tmp_path / "runs/pairs")
    assert "random forest" in follow("model-quality")
    assert "stretched" not in follow("kept-colours")
    assert StoreReader.open(tmp_path / "kept.zarr").meta.rescale == "none"
    follow("export")
    assert "open it with Deepness" in follow("deepness")
    assert (tmp_path / "own.pt2").stat().st_size > 1000


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_massachusetts_from_masks(tmp_path, follow):
    for number in range(2):
        road, name = bars(number), f"1037878{number}_15"
        pixels = photograph(road, number)
        pixels[:12] = 255  # not photographed
        write_image(tmp_path / "train" / "sat" / f"{name}.tiff", pixels, place_of(number, 1.0))
        write_mask(tmp_path / "train" / "map" / f"{name}.tif", road * np.uint8(255))
    follow("massachusetts")
    speed = built(tmp_path / "massachusetts.zarr", 2).speed()[...]
    assert (speed[:, :12] == 255).all()
    assert set(np.unique(speed[:, 12:]).tolist()) == {0, 254}


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
        speed = built(tmp_path / f"{name}.zarr", 2).speed()[...]
        assert np.unique(speed).tolist() == [0, slowest, 25, 65]


def test_stac_items_of_a_search(tmp_path, follow):
    names = ("S2A_37UDB_20240503_0_L2A", "S2B_37UDB_20240501_0_L2A")
    (tmp_path / "labels").mkdir()
    for number, name in enumerate(names):
        image = tmp_path / "www" / name / "TCI.tif"
        write_image(image, photograph(bars(number), number), place_of(number))
        write_roads(tmp_path / "labels" / f"{name}.geojson", place_of(number), (SIDE, SIDE))
    with served(tmp_path / "www") as (address, _):
        items = [sentinel_item(name, f"{address}/{name}") for name in names]
        write_json(tmp_path / "search.json", collection_of(*items))
        follow("stac")
    assert built(tmp_path / "sentinel.zarr", 2).scenes.id.tolist() == [*names]


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


def test_one_mosaic_and_a_geopackage(tmp_path, follow):
    at = place_of(0)
    write_image(tmp_path / "mosaic.tif", photograph(bars(1, 700), 1), at)
    line = [
        shapely.LineString([at.transform * (x, y) for x in (-50, 750)]) for y in (100, 300, 500)
    ]
    columns = {"fclass": ["primary", "residential", "rail"]}
    frame = geopandas.GeoDataFrame(columns, geometry=line, crs=at.crs)
    frame.to_file(tmp_path / "roads.gpkg")
    follow("mosaic")
    store = built(tmp_path / "mosaic.zarr", 1)
    column = np.concatenate(
        [store.speed()[tile][:, 20] for tile in np.flatnonzero(store.tiles.col == 0)]
    )
    counts = np.bincount(column[:700], minlength=256)
    assert counts[[45, 25]].tolist() == [10, 10]  # twice 2.5 m of half a metre
    assert "split" in follow("blocks")
    assert set(StoreReader.open(tmp_path / "blocks.zarr").tiles.split.tolist()) == {0, 1}
    follow("dry")
    assert not list(tmp_path.glob("dry*"))
    follow("memory")


def test_splits_by_share_list_and_block(tmp_path, follow):
    for number in range(6):
        image = tmp_path / "scenes" / f"scene_{number}.tif"
        write_image(image, photograph(bars(number), number), place_of(number))
    (listed,) = re.findall(r"```text\n(scene,split.*?)```", PAGES["splits"], flags=re.DOTALL)
    (tmp_path / "scenes.csv").write_text(listed, encoding="utf-8")
    assert "scene_2" in follow("splits")
    store = StoreReader.open(tmp_path / "listed.zarr")
    names = [SPLIT_NAMES[n] for n in store.tiles.split[np.argsort(store.tiles.scene)]]
    assert names == ["train", "train", "val", "test", "test", "test"]


def test_many_bands_and_heights(tmp_path, follow):
    rng = np.random.default_rng(0)
    values = rng.integers(100, 2000, (SIDE, SIDE, 8)).astype(np.uint16)
    write_image(tmp_path / "ms.tif", values, place_of(0))
    write_image(
        tmp_path / "dem.tif", rng.uniform(0, 999, (SIDE, SIDE, 1)).astype("f4"), place_of(0)
    )
    follow("bands")
    bands = [
        len(StoreReader.open(tmp_path / f"{n}.zarr").meta.bands) for n in ("eight", "three", "dem")
    ]
    assert bands == [8, 3, 1]


@pytest.mark.slow
def test_classes_from_rasters_to_a_model(tmp_path, follow):
    follow("classes-training")
    assert "mean IoU" in log_of(tmp_path / "runs/land")
    assert len(list((tmp_path / "predictions").glob("*.tif"))) == 3
    follow("classes-polygonize")
    assert len(geopandas.read_file(tmp_path / "buildings.gpkg", layer="buildings")) > 0


def test_a_mask_becomes_a_network_with_a_score(tmp_path, follow):
    road = np.zeros((SIDE, SIDE, 1), np.uint8)
    road[60:70] = 255
    write_image(tmp_path / "mask.tif", road, place_of(0))
    line = shapely.LineString([place_of(0).transform * (x, 65) for x in (0, SIDE)])
    frame = geopandas.GeoDataFrame({"highway": ["primary"]}, geometry=[line], crs=place_of(0).crs)
    frame.to_crs("OGC:CRS84").to_file(tmp_path / "truth.geojson")
    assert "APLS" in follow("network")
    assert len(geopandas.read_file(tmp_path / "roads.gpkg", layer="edges")) == 1
    follow("josm")
    assert (tmp_path / "reviewed.png").is_file()
    (tmp_path / "truth.geojson").rename(tmp_path / "map.geojson")
    assert "km" in follow("compare")
    assert len(geopandas.read_file(tmp_path / "changes.gpkg", layer="matched")) == 1


def code_block(page, name):
    """Return the Python block of a page with a name."""
    (source,) = re.findall(rf"```python {name}\n(.*?)```", PAGES[page], flags=re.DOTALL)
    return source


def test_a_route_with_networkx_and_osmnx(tmp_path, monkeypatch, capsys):
    """The road straight on is slow: the fastest route goes round it, the shortest along it."""
    monkeypatch.chdir(tmp_path)
    detour = [(37.618, 55.7500), (37.618, 55.7520), (37.6196, 55.7520), (37.6196, 55.7509)]
    lines = [shapely.LineString(xy) for xy in (detour, [detour[0], detour[-1]])]
    frame = geopandas.GeoDataFrame({"speed_mph": [60, 5]}, geometry=lines, crs="EPSG:4326")
    geoprep.RoadNetwork.from_geopandas(frame).to_file("roads.gpkg")
    names = {}
    exec(code_block("road-networks", "route"), names)
    assert capsys.readouterr().out == "445 m, 17 s\n"
    pytest.importorskip("osmnx", reason="osmnx is no dependency")
    exec(code_block("road-networks", "osmnx"), names)
    assert names["nodes"] == [0, 1]


def test_graphs_in_pickles_become_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graphs").mkdir()
    graph = {(np.int64(0), 0): [(0, 100.0)], (0, 100.0): [(0, 0)]}
    (tmp_path / "graphs" / "region_8.p").write_bytes(pickle.dumps(graph, 2))
    exec(code_block("road-networks", "pickle"), {})
    scores = geoprep.score("graphs", "graphs", pixel_size=0.5, progress=False)
    assert scores["truth_km"].to_dict() == {"region_8": 0.05}


CODES = np.array([[0, 255, 255], [255, 255, 0], [0, 255, 0], [0, 0, 255]], np.uint8)


def fields(seed, count, side=SIDE):
    """Return numbers of classes in squares, uint8 (y, x)."""
    squares = np.random.default_rng(seed).integers(0, count, (4, 4))
    squares.flat[:count] = np.arange(count)
    return np.kron(squares, np.ones((side // 4, side // 4))).astype(np.uint8)


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_masks_of_values(tmp_path, follow):
    lines = [f"- {{name: c{value}, value: {value}}}" for value in (1, 2, 3)]
    (tmp_path / "classes.yaml").write_text("\n".join(lines))
    for number in range(2):
        for folder, pixels in (
            ("images_png", photograph(bars(number), number).transpose(2, 0, 1)),
            ("masks_png", fields(number, 4)),
        ):
            write_mask(tmp_path / "Train" / folder / f"{number}.png", pixels)
    assert "c3" in follow("classes-values")
    label = built(tmp_path / "loveda.zarr", 2).label()
    np.testing.assert_array_equal(label[1], fields(1, 4) - np.uint8(1))  # 0 - 1 is 255


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_masks_of_colours(tmp_path, follow):
    (tmp_path / "land").mkdir()
    for number in range(2):
        picture = Image.fromarray(photograph(bars(number), number))
        picture.save(tmp_path / "land" / f"{number}_sat.jpg", quality=95)
        colours = np.clip(CODES[fields(number, 4)].astype(int) + 5, 0, 255).astype(np.uint8)
        write_mask(tmp_path / "land" / f"{number}_mask.png", colours.transpose(2, 0, 1))
    follow("classes-colours")
    label = built(tmp_path / "cover.zarr", 2).label()
    np.testing.assert_array_equal(label[1], fields(1, 4))


def test_all_polygons_are_one_class(tmp_path, follow):
    (tmp_path / "chips").mkdir()
    place = place_of(0)
    write_image(tmp_path / "chips" / "a.tif", photograph(bars(0), 0), place)
    house = shapely.box(*(place.transform * (10, 20)), *(place.transform * (50, 40)))
    geopandas.GeoDataFrame(geometry=[house], crs=place.crs).to_file(tmp_path / "buildings.geojson")
    follow("classes-single")
    expected = np.zeros((SIDE, SIDE), np.uint8)
    expected[20:40, 10:50] = 1
    np.testing.assert_array_equal(built(tmp_path / "buildings.zarr", 1).label()[0], expected)


def test_polygons_with_classes(tmp_path, follow):
    place = place_of(0)
    write_image(tmp_path / "ortho.tif", photograph(bars(0), 0), place)
    corner = [place.transform * xy for xy in ((0, 0), (70.3, 90.2), (30.1, 20.4), (110, 120))]
    shapes = [shapely.box(*corner[2], *corner[3]), shapely.box(*corner[0], *corner[1])]
    frame = geopandas.GeoDataFrame({"CLASS": ["river", "wood"]}, geometry=shapes, crs=place.crs)
    frame.to_file(tmp_path / "parcels.gpkg", layer="landuse")
    follow("classes-polygons")
    with rasterio.open(tmp_path / "label.tif") as file:
        assert set(np.unique(file.read(1))) == {0, 1, 2}
