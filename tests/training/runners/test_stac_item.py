"""The STAC item of a model file is valid, and suffices to run the model without this package."""

import dataclasses
import hashlib
import json
import shutil
from importlib import metadata
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import rasterio
from helpers.predict_cases import FACTS, make_checkpoint, pixels, write_image
from helpers.runs import KEYWORDS
from helpers.stac import problems
from helpers.web import served

import geoprep
import training
from geoprep.errors import GeoprepError, UsageError
from geoprep.imagery.counts import count_source
from geoprep.imagery.decoding import ImageWindow
from geoprep.imagery.rescale import lookup_tables, percentile_limits, to_bytes
from geoprep.imagery.wide import held_dtype
from geoprep.store.reader import StoreReader
from training.checkpoint import CheckpointError, load
from training.predict import main as predict
from training.runners.stac_item import Extent, training_extent, write_item

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "model-files.md"
CLASSES = {"targets": "classes", "class_mph": (), "class_names": ("open water", "other")}
CLASSES |= {"class_colors": ("#0000FF", "#00FF00"), "channels": 2}
BINARY = {"targets": "binary", "class_mph": (), "channels": 1}
MODEL = "helpers.predict_cases:neighbourly"


def exported(folder, name="moscow.onnx", kind="onnx", **facts):
    """Export a checkpoint with these facts; return the file and its item."""
    make_checkpoint(folder / "best.pt", model=MODEL, **facts)
    file = training.export_model(folder / "best.pt", folder / name, format=kind, model=MODEL)
    return file, json.loads((folder / f"{name}.stac.json").read_text())


CITY = {"rescale": "city", "limits": ((5, 900), (0, 1800), (100, 1500))}


@pytest.mark.parametrize("facts", [CITY, {"rescale": "scene"} | BINARY, CLASSES])
def test_onnx_runtime_and_the_item_alone_give_the_prediction(tmp_path, python, facts):
    file, item = exported(tmp_path, **facts)
    assert problems(item) == []
    assert "bbox" not in item
    wide = {"dtype": "uint16", "top": 2000} if "rescale" in facts else {}
    values = pixels(70, 90, **wide)
    values[:20, :30] = 0
    image = write_image(tmp_path / "scene.tif", values, nodata=0)
    np.save(tmp_path / "image.npy", values.transpose(2, 0, 1)[None])
    code = "import sys\nsys.modules |= dict.fromkeys(['training', 'geoprep', 'loaders', 'torch'])\n"
    code += PAGE.read_text().split("## The STAC item")[1].split("```python\n")[1].split("```")[0]
    code += "np.savez('out.npz', p=probabilities, valid=valid, label=label)"
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "out.npz")
    model = training.load_model(file.with_name("moscow.onnx.stac.json"))
    more = {"probabilities": True} if facts is CLASSES else {"outputs": "all"}
    (prediction,) = model.predict(image, tmp_path / "out", progress=False, **more)
    with rasterio.open(prediction) as dataset:
        wanted = dataset.read()
    bands = {"bins": (1, *range(2, 9), 0), "binary": (None, 0), "classes": (0, 1, 2)}
    label, *order = bands[facts.get("targets", "bins")]
    valid = found["valid"]
    assert not valid[:20, :30].any()
    assert (wanted[:, ~valid] == 255).all()
    probability = np.moveaxis(found["p"], 2, 0)[:, valid] * 255
    assert np.abs(probability - wanted[order][:, valid]).max() < 0.51 + (probability.max() > 254.5)
    if label is None:
        assert found["label"].dtype == bool
    else:
        assert (found["label"][valid] == wanted[label][valid]).mean() > 0.999


def test_an_item_has_the_facts_of_its_model_and_no_path(tmp_path, monkeypatch):
    absent = {"side_effect": metadata.PackageNotFoundError}  # as in a source tree
    monkeypatch.setattr(metadata, "distribution", mock.Mock(**absent))
    file, item = exported(tmp_path, "moscow.xml", "openvino", stores=("/home/someone/secret.zarr",))
    said, assets = item["properties"], item["assets"]
    assert problems(item) == []
    assert assets["weights"]["href"] == "./moscow.bin"
    assert assets["model"]["file:size"] == file.stat().st_size
    assert said["mlm:hyperparameters"]["gsd_m"] == list(FACTS.gsd_m)
    assert said["mlm:total_parameters"] == 3 * 8 * 25 + 8
    assert (said["mlm:framework"], said["mlm:pretrained"]) == ("OpenVINO", False)
    for unknown in ("time", "area"):
        assert f"The {unknown} of its training images is not known." in said["description"]
    assert [c["name"] for c in said["mlm:output"][0]["classification:classes"]][-1] == "road"
    assert not any(word in json.dumps(item) for word in (str(tmp_path), "secret"))
    (entry,) = said["mlm:input"]
    assert entry["bands"] == list(FACTS.bands) == [band["name"] for band in said["bands"]]
    assert entry["input"]["shape"][entry["input"]["dim_order"].index("bands")] == 3


def test_a_run_writes_the_item_of_its_best_model(store_path, tmp_path, short_runs):
    geoprep.synthesize("moscow", scenes=4, size=64, out=tmp_path / "data", progress=False)
    store = geoprep.build_zarr(
        "moscow", source=tmp_path / "data", tile=64, out=tmp_path / "a.zarr", progress=False
    )
    options = KEYWORDS | {"licence": "CC-BY-4.0", "out": tmp_path / "run", "progress": False}
    best = training.train(store, **options).best
    item = json.loads(best.with_name("best.pt.stac.json").read_text())
    assert problems(item) == []
    assert item["properties"]["license"] == "CC-BY-4.0"
    np.testing.assert_allclose(item["bbox"], store.scenes.to_crs(4326).total_bounds, atol=1e-5)
    training.export_model(best, tmp_path / "a.pt2", format="fp32", model=KEYWORDS["model"])
    after = json.loads((tmp_path / "a.pt2.stac.json").read_text())
    assert after["geometry"] == item["geometry"]
    assert after["properties"]["license"] == "CC-BY-4.0"
    with pytest.raises(UsageError, match="`licence` my own: use an SPDX identifier"):
        training.train(store, licence="my own")


def test_times_that_stores_keep_are_those_of_the_model(store_path, tmp_path, monkeypatch):
    store, (file, _) = StoreReader.open(store_path), make_checkpoint(tmp_path / "a.pt")
    known = ["2024-05-01T08:26:11.123000Z", "2024-04-01T00:00:00Z/2024-06-02T00:00:00Z", "soon"]
    build = {**store.meta.build, "datetimes": dict(zip("abc", known, strict=True))}
    monkeypatch.setattr(store, "meta", dataclasses.replace(store.meta, build=build))
    write_item(file, load(file), training_extent([store]))
    item = json.loads(file.with_name("a.pt.stac.json").read_text())
    assert problems(item) == []
    said = item["properties"]
    assert said["start_datetime"] == "2024-04-01T00:00:00Z"
    assert said["end_datetime"] == "2024-06-02T00:00:00Z"
    assert "The time" not in said["description"]


@pytest.fixture
def web(tmp_path, monkeypatch):
    """Yield the address of a server, its folder, the paths of requests, and the local copies."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    (tmp_path / "www").mkdir()
    with served(tmp_path / "www") as (address, gets):
        yield address, tmp_path / "www", gets, tmp_path / "torch" / "hub" / "geoprep"


@pytest.mark.parametrize(("name", "kind"), [("moscow.xml", "openvino"), ("best.pt", None)])
def test_a_model_is_opened_by_the_address_of_its_item(tmp_path, web, name, kind):
    address, folder, gets, copies = web
    file = folder / name
    if kind:
        exported(folder, name, kind)
    else:
        make_checkpoint(file, model=MODEL)
        write_item(file, load(file), Extent())
    files = [f"/{name}"] + ["/moscow.bin"] * (kind is not None)
    image = np.ones((3, 64, 64), np.uint8)
    options = {} if kind else {"model": MODEL, "precision": "fp32"}
    expected = training.load_model(file, **options)(image)
    item = f"{address}/{name}.stac.json"
    for _ in range(2):
        model = training.load_model(item, **options)
        np.testing.assert_array_equal(model(image), expected)
    assert model.path.is_relative_to(copies)
    assert sorted(gets) == sorted([f"/{name}.stac.json", *files])
    model.path.write_bytes(bytes(model.path.stat().st_size))  # damage is repaired
    np.testing.assert_array_equal(training.load_model(item, **options)(image), expected)
    scene = write_image(tmp_path / "scene.tif", pixels(64, 64))
    words = [item, str(scene), "--out", str(tmp_path / "out"), "--quiet"]
    assert predict(words + ([] if kind else ["--model", MODEL])) == 0
    file.write_bytes(file.read_bytes() + b" ")
    model.path.unlink()
    with pytest.raises(CheckpointError, match="its checksum differs"):
        training.load_model(item, **options)


@pytest.mark.parametrize(
    ("href", "error"),
    [
        ("../../../../out.pt", "is not below its folder"),
        ("/elsewhere/out.pt", "is not below its folder"),
        ("file:///etc/passwd", "is on a server and names the asset"),
        ("gone.pt", "cannot be downloaded"),
    ],
)
def test_an_item_on_a_server_names_no_file_elsewhere(tmp_path, web, href, error):
    address, folder, *_ = web
    model = {"href": href, "roles": ["mlm:model"], "file:checksum": "1220"}
    (folder / "a.json").write_text(json.dumps({"assets": {"model": model}}))
    with pytest.raises(GeoprepError, match=error):
        training.load_model(f"{address}/a.json")
    (tmp_path / "out.pt").write_bytes(b"")  # nor one that is there
    digest = hashlib.sha256(b"").hexdigest()
    model = {"href": str(tmp_path / "out.pt"), "roles": ["mlm:model"]}
    item = {"assets": {"model": model | {"file:checksum": f"1220{digest}"}}}
    (folder / "b.json").write_text(json.dumps(item))
    with pytest.raises(CheckpointError, match="is not below its folder"):
        training.load_model(f"{address}/b.json")
    (tmp_path / "out.pt").unlink()
    (folder / "b.json").unlink()
    [path.unlink() for path in tmp_path.rglob("b.json")]
    found = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in found if not name.startswith(".")} == {"a.json"}
    (folder / "a.json").write_text('{"assets"')
    with pytest.raises(CheckpointError, match=r"a\.json is damaged or not the STAC item"):
        training.load_model(f"{address}/a.json")


def test_an_item_of_another_or_no_file_is_refused(tmp_path):
    file, _ = exported(tmp_path)
    item = shutil.copy(tmp_path / "moscow.onnx.stac.json", tmp_path / "moved.json")
    assert training.load_model(item).path == file
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(CheckpointError, match=r"or not the file that .*moved\.json describes"):
        training.load_model(item)
    (tmp_path / "moved.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"moved\.json is damaged or not the STAC item"):
        training.load_model(item)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
@pytest.mark.parametrize("blank", [False, True])
def test_the_items_function_stretches_as_predictions_do(tmp_path, dtype, blank):
    """Values of an image of any type, such as decibels, and without pixels that count."""
    file, _ = make_checkpoint(tmp_path / "a.pt", rescale="scene")
    write_item(file, load(file), Extent())
    item = json.loads((tmp_path / "a.pt.stac.json").read_text())
    functions = {}
    exec(item["properties"]["mlm:input"][0]["pre_processing_function"]["expression"], functions)
    low, high = {"uint8": (0, 255), "uint16": (0, 3000), "int16": (-2500, -300)}.get(
        dtype, (-25, -3)
    )
    values = np.random.default_rng(0).uniform(low, high, (64, 96, 3)).astype(dtype)
    values = np.zeros_like(values) if blank else values
    valid = np.ones((64, 96), bool)
    valid[:9] = False
    made = functions["pre_process"](values, valid)[0].transpose(1, 2, 0)
    read = values.astype(held_dtype(dtype))
    counts = count_source(ImageWindow(read, valid.view(np.uint8)))
    tables = lookup_tables(percentile_limits(counts), dtype)
    right = to_bytes(read, tables)
    assert (made[~valid] == 0).all()
    assert np.abs(made[valid].astype(int) - right[valid]).max() <= 1
    assert len(np.unique(made[valid])) == (1 if blank else 255)
