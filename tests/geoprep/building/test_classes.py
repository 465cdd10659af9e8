"""Stores of classes: value masks, colour masks and polygons, compared with plain NumPy."""

import geopandas as gpd
import numpy as np
import pytest
import rasterio
import shapely
from click.testing import CliRunner
from helpers.consistency import assert_consistent
from helpers.rasters import write_raster
from rasterio.features import rasterize
from rasterio.shutil import copy
from rasterio.transform import from_origin

import geoprep as gp
from geoprep.cli.commands import cli
from geoprep.errors import LabelError, UsageError
from geoprep.store.reader import StoreReader

SIDE = 64
NAMES = ("background", "building", "land", "road")
COLOURS = np.array([[0, 0, 0], [60, 16, 152], [132, 41, 246], [110, 193, 228]], np.uint8)
TABLE = "background=#000000,building=60,16,152,land=#8429F6,road=#6EC1E4"


AT = from_origin(400_000, 6_000_000, 0.5, 0.5)


def write(path, pixels, transform=AT, **more):
    return write_raster(path, pixels, transform=transform, **more)


def masks(folder, pictures):
    """Write masks (band, y, x) or (y, x) of the images; return their folder."""
    for i, picture in enumerate(pictures):
        write(folder / "masks" / f"s{i}.tif", picture)
    return folder / "masks"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Folder with two images, and the number of the class of every pixel."""
    folder = tmp_path_factory.mktemp("classes")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, (2, SIDE, SIDE)).astype(np.uint8)
    for i in range(2):
        write(folder / "images" / f"s{i}.tif", rng.integers(1, 255, (3, SIDE, SIDE), np.uint8))
    return folder, labels


def halved(label, count):
    """Return the majority of 2 x 2 pixels among labelled ones, ties by class order."""
    blocks = label.reshape(SIDE // 2, 2, SIDE // 2, 2).transpose(0, 2, 1, 3).reshape(-1, 4)
    votes = np.stack([(blocks == k).sum(1) for k in range(count)], 1)
    found = np.where(votes.any(1), votes.argmax(1), 255)
    return found.reshape(SIDE // 2, SIDE // 2).astype(np.uint8)


def build(folder, out, **options):
    options = {"val": 0.5, "progress": False} | options
    return gp.build_zarr(images=folder / "images", out=out, **options).reader


def test_value_masks_become_classes(scenes, tmp_path):
    folder, labels = scenes
    text = ",".join(f"{name}={300 + k}" for k, name in enumerate(NAMES))
    given = {"labels": masks(tmp_path, labels + np.uint16(300)), "classes": text}
    store = build(folder, tmp_path / "a.zarr", **given)
    assert store.meta.schema == 2
    assert (store.meta.kind, store.meta.label_array) == ("classes", "label")
    assert store.meta.class_names == NAMES
    for i, label in enumerate(labels):
        assert np.array_equal(store.label()[i], label)
        assert np.array_equal(store.label(32)[i], halved(label, 4))
        assert np.array_equal(store.class_pixels[i], np.bincount(label.ravel(), minlength=4))
    assert_consistent(store.location)


@pytest.fixture
def colours(scenes, tmp_path):
    """Masks of colours: JPEG-like noise of up to 3 grey values, and an alpha band."""
    noise = np.random.default_rng(1).integers(-3, 4, (2, SIDE, SIDE, 3))
    rgba = np.full((2, SIDE, SIDE, 4), 255, np.uint8)
    rgba[..., :3] = np.clip(COLOURS[scenes[1]] + noise, 0, 255)
    rgba[:, :8, :, 3] = 0
    return masks(tmp_path, rgba.transpose(0, 3, 1, 2))


def test_colours_nearby_need_a_tolerance(scenes, colours, tmp_path):
    folder, labels = scenes
    store = build(folder, tmp_path / "a.zarr", labels=colours, classes=TABLE, tolerance=3)
    expected = labels[1].copy()
    expected[:8] = 255
    assert np.array_equal(store.label()[1], expected)
    assert np.array_equal(store.label(32)[1], halved(expected, 4))
    exact = build(folder, tmp_path / "b.zarr", labels=colours, classes=TABLE)
    assert set(exact.scenes.status) == {"failed"}
    assert "values that no class has" in exact.scenes.reason[0]
    assert (exact.label()[:] == 255).all()


@pytest.mark.parametrize(("other", "byte"), [("nodata", 255), ("land", 1)])
def test_values_that_no_class_has_become_what_other_says(scenes, tmp_path, other, byte):
    folder, labels = scenes
    options = {"classes": "building=1,land=2", "label_nodata": "0", "other": other}
    store = build(folder, tmp_path / "a.zarr", labels=masks(tmp_path, labels), **options)
    table = np.array([255, 0, 1, byte], np.uint8)
    assert np.array_equal(store.label()[0], table[labels[0]])
    what = "nodata" if other == "nodata" else "class land"
    count = int((labels == 3).sum())
    assert store.meta.build["notes"] == {f"label value 3 read as {what}": count}


def test_beside_a_single_class_everything_else_is_background(scenes, tmp_path):
    folder, labels = scenes
    given = {"labels": masks(tmp_path, labels), "label_nodata": "0"}
    store = build(folder, tmp_path / "a.zarr", classes="building=1", **given)
    assert store.meta.class_names == ("background", "building")
    table = np.array([255, 1, 0, 0], np.uint8)
    assert np.array_equal(store.label()[0], table[labels[0]])
    assert store.meta.build["notes"]["label value 3 read as class background"]
    with pytest.raises(UsageError, match="no labelled pixels but those of building"):
        build(folder, tmp_path / "b.zarr", classes="building=1", other="nodata", **given)
    with pytest.raises(UsageError, match=r"contains 0, 1, 2 and 3: give .* lake=255"):
        build(folder, tmp_path / "b.zarr", classes="wood,lake", **given)
    with pytest.raises(UsageError, match="only background; add the class"):
        build(folder, tmp_path / "b.zarr", classes="background=1", **given)


def test_polygons_are_drawn_in_class_order(scenes, tmp_path):
    folder, _ = scenes
    shapes = [shapely.box(400_001, 5_999_971, 400_020.3, 5_999_999),
              shapely.box(400_010.2, 5_999_980, 400_031, 5_999_990.3)]  # fmt: skip
    frame = gpd.GeoDataFrame({"CLASS": ["lake", "wood"]}, geometry=shapes, crs=32637)
    frame.to_file(tmp_path / "land.gpkg", layer="use")
    options = {"labels": tmp_path / "land.gpkg", "class_field": "CLASS", "val": 0.0}
    text = "background,forest=wood,water=lake"
    store = build(folder, tmp_path / "a.zarr", classes=text, **options)
    for level, size in ((64, 0.5), (32, 1.0)):
        grid = from_origin(400_000, 6_000_000, size, size)
        expected = rasterize([(shapes[1], 1), (shapes[0], 2)], (level, level), transform=grid)
        assert np.array_equal(store.label(level)[0], expected)
    swapped = build(folder, tmp_path / "b.zarr", classes="water=lake,forest=wood", **options)
    own = rasterize([(shapes[0], 1), (shapes[1], 2)], (64, 64), transform=AT)
    assert np.array_equal(swapped.label()[0], own.astype(np.uint8) - np.uint8(1))  # 0 - 1 is 255


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": "a=1,b=1"}, "classes a and b both have 1"),
        ({"classes": "a=#102030,b=16,32,48"}, "both have #102030"),
        ({"classes": "a=1,a=2"}, "class a is given twice"),
        ({"classes": "a=1,background=0"}, "background must be the first"),
        ({"classes": ",".join(f"c{i}={i}" for i in range(255))}, "255 classes"),
        ({"classes": "missing.yaml"}, "missing.yaml: cannot be read"),
        ({"classes": "wood,,lake"}, "expected NAME,... or NAME=VALUE,..."),
        ({"classes": "[{name: a, value: 1"}, "line 1: not readable as YAML"),
        ({"classes": "[{name: a, values: 1, weight: 3}]"}, "unknown key weight"),
        ({"classes": "[{name: a, value: 1, value: 2}]"}, "value is given twice"),
        ({"classes": "[{name: no, value: 1}]"}, "write the name of the class .* in quotes"),
        ({"classes": "a=1", "other": "b"}, "`other` b: expected"),
        ({"classes": "a=1", "label_values": "255"}, "`label_values` is for roads"),
        ({"other": "nodata"}, "`other` needs `classes`"),
    ],
)
def test_classes_that_contradict_themselves_are_one_clear_line(scenes, tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        build(scenes[0], tmp_path / "a.zarr", labels=scenes[0] / "images", **options)


def test_a_yaml_file_and_text_give_the_same_store(scenes, tmp_path):
    folder, labels = scenes
    lines = [f"{name}: {{value: {k}, color: '#00{k}0{k}0'}}" for k, name in enumerate(NAMES)]
    (tmp_path / "classes.yaml").write_text("\n".join(lines))
    given = {"labels": masks(tmp_path, labels)}
    store = build(folder, tmp_path / "a.zarr", classes=tmp_path / "classes.yaml", **given)
    assert store.meta.class_colors == ("#000000", "#001010", "#002020", "#003030")
    classes = {n: {"value": k, "color": f"#00{k}0{k}0"} for k, n in enumerate(NAMES)}
    given |= {"images": folder / "images", "val": 0.5, "progress": False}
    again = gp.build_zarr(out=tmp_path / "a.zarr", classes=classes, **given)
    assert again.summary.state == "unchanged"
    assert "4 classes: background, building, land, road" in repr(again)


def test_a_class_that_training_lacks_is_said(scenes, tmp_path):
    folder, labels = scenes
    given = {"labels": masks(tmp_path, np.minimum(labels, 2))}
    text = ",".join(f"{name}={k}" for k, name in enumerate(NAMES))
    with pytest.warns(UserWarning, match="no pixel of the training split has the class road"):
        build(folder, tmp_path / "a.zarr", classes=text, **given)


def test_views_and_exports_know_the_classes(scenes, tmp_path):
    folder, labels = scenes
    painted = masks(tmp_path, COLOURS[labels].transpose(0, 3, 1, 2))
    options = {"labels": painted, "classes": TABLE, "val": 0.5, "progress": False}
    store = gp.build_zarr(images=folder / "images", out=tmp_path / "a.zarr", **options)
    assert gp.check_store(store.location).problems == ()
    with pytest.raises(UsageError, match="its labels are classes"):
        store.reader.speed()
    assert store.reader.classes.index("road") == 3
    assert list(store.to_xarray(scene="s1").data_vars) == ["image", "label"]
    facts = store.info()
    assert [one["name"] for one in facts["classes"]] == list(NAMES)
    assert sum(facts["classes"][3]["pixels"].values()) == int((labels == 3).sum())
    assert facts["label_fraction"] == pytest.approx((labels > 0).mean())
    assert "label_fraction" in store.scenes
    assert "road_fraction" not in store.tiles
    page = gp.preview(store, tmp_path / "a.html", progress=False).read_text()
    assert "<title>a</title>" in page
    assert '"label":"road","colour":"rgb(110,193,228)"' in page
    assert gp.preview(store, tmp_path / "a.png", progress=False).stat().st_size > 1000
    files = gp.export_scenes(store, "s1", tmp_path / "s1.tif")
    assert [file.name for file in files] == ["s1.tif", "s1_label.tif"]
    with rasterio.open(files[1]) as file:
        assert np.array_equal(file.read(1), labels[1])
        assert file.colormap(1)[1][:3] == (60, 16, 152)
        assert file.nodata == 255
    copy(files[1], tmp_path / "s1.vrt", driver="VRT")  # holds what GDAL knows of the file
    text = (tmp_path / "s1.vrt").read_text()
    assert "<Category>building</Category>" in text


@pytest.mark.parametrize("text", ["house", "background,house", "house="])
def test_a_single_class_is_all_features_or_the_layer_of_its_name(scenes, tmp_path, text):
    """Of one file for all images, of a folder with a file per image, and of a file with layers."""
    box = shapely.box(400_001, 5_999_971, 400_020.3, 5_999_999)
    house = gpd.GeoDataFrame(geometry=[box], crs=32637)
    (tmp_path / "each").mkdir()
    for name in ("footprints", "each/s0", "each/s1"):
        house.to_file(tmp_path / f"{name}.geojson")
    wood = house.set_geometry(house.buffer(9))
    house.to_file(tmp_path / "layers.gpkg", layer="house")
    wood.to_file(tmp_path / "layers.gpkg", layer="wood")
    expected = rasterize([box], (64, 64), transform=AT)
    for labels in ("footprints.geojson", "each", "layers.gpkg"):
        given = {"labels": tmp_path / labels, "classes": text, "overwrite": True}
        store = build(scenes[0], tmp_path / "a.zarr", **given)
        assert store.meta.class_names == ("background", "house")
        assert store.meta.share_name == "house"
        assert all(np.array_equal(label, expected) for label in store.label()[:])
        assert "notes" not in store.meta.build or not store.meta.build["notes"]
    wood.to_file(tmp_path / "other.gpkg", layer="pond")
    wood.to_file(tmp_path / "other.gpkg", layer="wood")
    given = {"labels": tmp_path / "other.gpkg", "classes": text}
    with pytest.raises(LabelError, match="none of its layers is called house; layers: pond"):
        build(scenes[0], tmp_path / "b.zarr", **given)
    store = build(scenes[0], tmp_path / "b.zarr", layer="wood", **given)
    assert store.label()[:].sum() > 2 * expected.sum()


WRITTEN_AS = {
    **{".json": "GeoJSON", ".geojsonl": "GeoJSONSeq", ".gml": "GML", ".kml": "LIBKML"},
    **{".sqlite": "SQLite", ".tab": "MapInfo File"},
}


@pytest.mark.parametrize("suffix", WRITTEN_AS)
def test_vector_files_of_any_format_are_classes(scenes, tmp_path, suffix):
    """As one file for all images, and from a folder with a file per image."""
    box = shapely.box(400_001, 5_999_971, 400_020.3, 5_999_999)
    house = gpd.GeoDataFrame({"name": ["a"]}, geometry=[box], crs=32637)
    house = house if suffix in (".gml", ".sqlite", ".tab") else house.to_crs(4326)
    (tmp_path / "each").mkdir()
    for name in ("all", "each/s0", "each/s1"):
        house.to_file(tmp_path / f"{name}{suffix}", driver=WRITTEN_AS[suffix])
    expected = rasterize([box], (64, 64), transform=AT)
    for labels in (f"all{suffix}", "each"):
        out = tmp_path / f"{labels}.zarr"
        words = ["build-zarr", "--images", str(scenes[0] / "images"), "--classes", "house"]
        words += ["--labels", str(tmp_path / labels), "--out", str(out), "--quiet"]
        said = CliRunner().invoke(cli, words)
        assert said.exit_code == 0, said.output
        store = StoreReader.open(out)
        assert store.scenes.status.tolist() == ["ok", "ok"]
        assert all((label == expected).mean() > 0.999 for label in store.label()[:])


def test_layers_of_other_coordinates_are_classes_by_their_names(scenes, tmp_path):
    path = tmp_path / "land.gpkg"
    lake = shapely.box(400_001, 5_999_971, 400_020.3, 5_999_999)
    way = shapely.LineString([(399_990, 5_999_980.1), (400_050, 5_999_990.2)])
    gpd.GeoDataFrame(geometry=[way], crs=32637).to_crs(4326).to_file(path, layer="ways")
    gpd.GeoDataFrame(geometry=[lake], crs=32637).to_file(path, layer="lakes")
    options = {"labels": path, "layer": "ways,lakes", "buffer": 1.5, "val": 0.0}
    store = build(scenes[0], tmp_path / "a.zarr", classes="lakes,ways", **options)
    drawn = [(lake, 1), (way.buffer(1.5, cap_style="flat"), 2)]
    expected = rasterize(drawn, (64, 64), transform=AT)
    assert (store.label()[0] == expected.astype(np.uint8) - np.uint8(1)).mean() > 0.99


def test_features_of_other_values_and_options_of_rasters_are_refused(scenes, tmp_path):
    box = shapely.box(400_001, 5_999_971, 400_020.3, 5_999_999)
    frame = gpd.GeoDataFrame({"CLASS": ["lake", None]}, geometry=[box, box], crs=32637)
    frame.to_file(tmp_path / "land.gpkg", layer="use")
    given = {"labels": tmp_path / "land.gpkg", "class_field": "CLASS"}
    with pytest.raises(LabelError, match=r"field CLASS has values that no class has: null \(1 "):
        build(scenes[0], tmp_path / "a.zarr", classes="water=lake,wood=2", **given)
    with pytest.raises(LabelError, match="name it as `class_field`; its fields: CLASS"):
        build(scenes[0], tmp_path / "a.zarr", labels=given["labels"], classes="lake,wood")
    for field, near in (
        ("class", r"`class_field`: did you mean CLASS\?"),
        ("CLASS", "Class Lake: did you mean lake"),
    ):
        with pytest.raises(LabelError, match=near):
            build(
                scenes[0],
                tmp_path / "a.zarr",
                classes="wood,Lake",
                **given | {"class_field": field},
            )
    store = build(scenes[0], tmp_path / "a.zarr", classes="water=lake", other="nodata", **given)
    assert store.meta.build["notes"] == {"label value null read as nodata": 2}  # of 2 scenes
    with pytest.raises(UsageError, match="`tolerance` is for raster labels"):
        build(scenes[0], tmp_path / "b.zarr", classes="water=lake", tolerance=2, **given)


@pytest.mark.parametrize("kind", ["classes", "speeds"])
def test_values_outside_the_image_or_under_its_nodata_fail_no_scene(scenes, tmp_path, kind):
    label = scenes[1][0]
    image = np.random.default_rng(0).integers(1, 255, (3, SIDE, SIDE), np.uint8)
    image[:, :8] = 0
    write(tmp_path / "images" / "a.tif", image, nodata=0)
    inside = np.where(np.arange(SIDE)[:, None] < 8, 700, label.astype(np.uint16) + 1)
    around = np.pad(inside, 5, constant_values=900)
    at = from_origin(400_000 - 2.5, 6_000_000 + 2.5, 0.5, 0.5)
    write(tmp_path / "masks" / "a.tif", around[None], transform=at)
    given = {"classes": "a=1,b=2,c=3,d=4"} if kind == "classes" else {"label_speeds": "mph"}
    store = build(tmp_path, tmp_path / "a.zarr", labels=tmp_path / "masks", **given)
    assert store.scenes.status.tolist() == ["ok"], store.scenes.reason
    array = store.label() if kind == "classes" else store.speed()
    expected = label + (kind == "speeds")
    assert np.array_equal(array[0][8:], expected[8:])
    assert (array[0][:8] == 255).all()
    around[40, 40] = 901
    write(tmp_path / "masks" / "a.tif", around[None], transform=at)
    store = build(tmp_path, tmp_path / "b.zarr", labels=tmp_path / "masks", **given)
    says = "no class has: 901 (1 pixel)." if kind == "classes" else "holds 901 mph"
    assert says in store.scenes.reason[0]
