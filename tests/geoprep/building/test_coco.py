"""Instances in the format of COCO as labels of images without georeference."""

import json

import numpy as np
import pytest
from helpers.rasters import write_raster

import geoprep as gp
from geoprep.errors import LabelError, SourceError, UsageError
from geoprep.store.scenes import read_label

# Of pycocotools with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIDE = 64
SQUARE = [[8, 8, 24, 8, 24, 24, 8, 24]]
TWO = [[2, 2, 10, 2, 10, 10, 2, 10], [40, 40, 48, 40, 48, 48, 40, 48]]


def run_lengths(mask):
    """Return a mask as COCO's uncompressed run lengths: by column, zeros first."""
    flat = mask.T.ravel().astype(int)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flat]))).tolist()
    return {"size": [*mask.shape], "counts": np.diff([0, *edges, len(flat)]).tolist()}


@pytest.fixture
def instances(tmp_path, monkeypatch):
    """Return a function that writes annotations as (image, category, segmentation, more)."""
    monkeypatch.chdir(tmp_path)
    for i in range(3):
        values = np.random.default_rng(i).integers(1, 255, (3, SIDE, SIDE), np.uint8)
        write_raster(tmp_path / "images" / f"{i}.png", values, crs=None, driver="PNG")

    def write(*annotations):
        rows = [
            {"id": i, "image_id": image, "category_id": category, "segmentation": shape} | more
            for i, (image, category, shape, more) in enumerate(annotations)
        ]
        sizes = {"height": SIDE, "width": SIDE}
        document = {
            "images": [{"id": i, "file_name": f"images/{i}.png"} | sizes for i in (0, 1)],
            "categories": [{"id": 7, "name": "house"}, {"id": 3, "name": "pool"}],
            "annotations": rows,
        }
        (tmp_path / "instances.json").write_text(json.dumps(document))

    return write


GIVEN = {
    "images": "images/*.png",
    "labels": "instances.json",
    "out": "a.zarr",
    "pixel_size": 0.5,
    "val": 0.0,
    "levels": 1,
}


def labels_of(store):
    return [read_label(store.reader, i) for i in range(len(store.scenes))]


def test_outlines_and_run_lengths_are_classes(instances, capsys):
    pytest.importorskip("pycocotools")
    disk = np.hypot(*np.mgrid[-40:24, -40:24]) < 9
    crowd = {"iscrowd": 1}
    instances((0, 7, SQUARE, {}), (0, 3, TWO, {}), (0, 7, run_lengths(disk), crowd))
    store = gp.build_zarr(**GIVEN, classes="auto")
    assert store.meta.class_names == ("background", "house", "pool")
    assert store.scenes.status.tolist() == ["ok", "ok", "unlabelled"]
    first, second, _ = labels_of(store)
    expected = np.zeros((SIDE, SIDE), np.uint8)
    expected[8:24, 8:24] = 1
    expected[disk] = 1
    expected[2:10, 2:10] = expected[40:48, 40:48] = 2  # smaller ones over larger ones
    assert np.array_equal(first, expected)
    assert not second.any()
    said = capsys.readouterr().err
    assert "instances.json: 1 instances are crowds (iscrowd), drawn as their class" in said
    both = int(
        ((expected == 2) & (disk | (np.pad(np.ones((16, 16)), ((8, 40), (8, 40))) > 0))).sum()
    )
    assert f"instances.json: {both} pixels have instances of several classes" in said
    assert gp.build_zarr(**GIVEN, classes="auto").summary.state == "unchanged"


def test_some_categories_are_chosen_by_name(instances):
    pytest.importorskip("pycocotools")
    instances((0, 7, SQUARE, {}), (1, 3, TWO, {}))
    store = gp.build_zarr(**GIVEN, classes="pool")
    assert store.meta.class_names == ("background", "pool")
    first, second, _ = labels_of(store)
    assert not first.any()
    assert (second == 1).sum() == 128
    with pytest.raises(UsageError, match="no category pond; it has house, pool"):
        gp.build_zarr(**GIVEN | {"out": "b.zarr"}, classes="pond")
    with pytest.raises(UsageError, match="has instances of house, pool: give `classes` auto"):
        gp.build_zarr(**GIVEN | {"out": "b.zarr"})


def test_auto_needs_instances(instances):
    with pytest.raises(UsageError, match="`classes` auto needs `labels` in the format of COCO"):
        gp.build_zarr(**GIVEN | {"labels": "images"}, classes="auto")


def test_a_dry_run_of_instances_draws_nothing(instances, tmp_path):
    instances((0, 7, SQUARE, {}))
    said = gp.build_zarr(**GIVEN, classes="auto", dry_run=True)
    assert said.unknown == ("instances.json",)
    assert said.unlabelled is None
    assert not (tmp_path / "a.zarr.source").exists()


def test_boxes_are_refused_with_the_reason(instances, tmp_path):
    box = {"bbox": [8, 8, 16, 16]}
    instances((0, 7, [], box), (1, 3, [], box))
    pytest.importorskip("pycocotools")
    with pytest.raises(LabelError, match="its annotations are boxes, which are no outlines"):
        gp.build_zarr(**GIVEN, classes="auto")
    instances((0, 7, {"size": [3, 3], "counts": [9]}, {}))
    with pytest.raises(LabelError, match=r"instance 0 is not readable \(3 x 3 pixels, of 64"):
        gp.build_zarr(**GIVEN, classes="auto")


def test_fields_that_are_missing_are_named(instances, tmp_path):
    pytest.importorskip("pycocotools")
    instances((0, 99, SQUARE, {}))
    with pytest.raises(LabelError, match=r"instances\.json: .*KeyError\(99\).* image_id and cat"):
        gp.build_zarr(**GIVEN, classes="auto")
    path = tmp_path / "instances.json"
    path.write_text(json.dumps({"images": [], "annotations": [], "categories": [{"id": 1}]}))
    with pytest.raises(LabelError, match=r"instances\.json: .*KeyError\('name'\)"):
        gp.build_zarr(**GIVEN, classes="auto")


@pytest.mark.parametrize("suffix", ["txt", "xml"])
def test_labels_of_voc_and_yolo_are_refused_with_the_reason(instances, tmp_path, suffix):
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes" / f"0.{suffix}").write_text("0 0.5 0.5 0.1 0.1")
    with pytest.raises(SourceError, match=rf"0\.{suffix} is of the format of Pascal VOC or YOLO"):
        gp.build_zarr(**GIVEN | {"labels": "boxes"}, classes="house")
