"""A model of segmentation_models_pytorch from a store to its predictions: `make test-peers`."""

from importlib.util import find_spec

import pytest
import rasterio
from helpers.predict_cases import pixels, write_image
from helpers.stores import write_store

from geoprep.speed import NODATA
from training.export import main as export
from training.fit import main as fit
from training.predict import main as predict

pytestmark = pytest.mark.skipif(
    find_spec("segmentation_models_pytorch") is None, reason="needs the environment of the peers"
)


@pytest.mark.parametrize("classes", [(), ("background", "slow", "fast")])
def test_a_model_is_trained_exported_and_predicts(tmp_path, classes):
    store, run, image = (tmp_path / name for name in ("tiny.zarr", "run", "scene.tif"))
    write_store(store, classes=classes)
    write_image(image, pixels(96, 64))
    words = f"{store} --model smp:Unet:resnet18 --epochs 1 --batch-size 4 --crop 32 --out {run}"
    assert fit([*words.split(), "--device", "cpu", "--compile", "off", "--quiet"]) == 0
    assert export([str(run / "best.pt"), "--format", "onnx", "--out", f"{tmp_path}/m.onnx"]) == 0
    found = []
    for model in (run / "best.pt", tmp_path / "m.onnx"):
        out = tmp_path / model.suffix[1:]
        words = f"{model} {image} --gsd image --out {out} --device cpu"
        precision = ["--precision", "fp32"] if model.suffix == ".pt" else []
        assert predict([*words.split(), *precision]) == 0
        (path,) = out.glob("*.tif")
        with rasterio.open(path) as source:
            found.append(source.read())
    assert (found[0] != NODATA).all()
    assert (found[0] == found[1]).mean() > 0.95  # the rest is rounded to another byte
