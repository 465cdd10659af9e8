"""Stores of classes: value masks, colour masks and polygons, compared with plain NumPy."""

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

import geoprep as gp
from geoprep.errors import UsageError
from geoprep.store import StoreReader

SIDE = 64
NAMES = ("background", "building", "land", "road")
COLOURS = np.array([[0, 0, 0], [60, 16, 152], [132, 41, 246], [110, 193, 228]], np.uint8)
TABLE = "background=#000000,building=60,16,152,land=#8429F6,road=#6EC1E4"


def write(path, pixels, **more):
    path.parent.mkdir(exist_ok=True)
    at = from_origin(400_000, 6_000_000, 0.5, 0.5)
    bands, height, width = pixels.shape
    profile = {"driver": "GTiff", "height": height, "width": width, "count": bands}
    place = {"crs": "EPSG:32637", "transform": at, "dtype": pixels.dtype.name}
    with rasterio.open(path, "w", **(profile | place | more)) as file:
        file.write(pixels)


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
    for i, label in enumerate(labels):
        write(tmp_path / "masks" / f"s{i}.tif", label[None] + np.uint16(300))
    text = ",".join(f"{name}={300 + k}" for k, name in enumerate(NAMES))
    store = build(folder, tmp_path / "a.zarr", labels=tmp_path / "masks", classes=text)
    assert store.meta.schema == 2
    assert (store.meta.kind, store.meta.label_array) == ("classes", "label")
    assert store.meta.class_names == NAMES
    for i, label in enumerate(labels):
        assert np.array_equal(store.label()[i], label)
        assert np.array_equal(store.label(32)[i], halved(label, 4))
        assert np.array_equal(store.class_pixels[i], np.bincount(label.ravel(), minlength=4))
    train = store.tiles.split == 0
    assert np.array_equal(store.histogram_label[:4], store.class_pixels[train].sum(0))
    assert store.tiles.road_fraction == pytest.approx((labels > 0).mean((1, 2)))


def test_speeds_of_a_store_of_classes_are_refused(scenes, tmp_path):
    folder, labels = scenes
    for i, label in enumerate(labels):
        write(tmp_path / "masks" / f"s{i}.tif", COLOURS[label].transpose(2, 0, 1))
    store = build(folder, tmp_path / "a.zarr", labels=tmp_path / "masks", classes=TABLE)
    assert np.array_equal(store.label()[0], labels[0])
    with pytest.raises(UsageError, match="its labels are classes"):
        store.speed()
    assert StoreReader.open(tmp_path / "a.zarr").classes.index("road") == 3
    assert gp.check_store(tmp_path / "a.zarr").problems == ()
