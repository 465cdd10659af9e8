"""Record one small set of files in the formats of this version, and what reading it gives.

    python -m helpers.freeze            # in tests/; writes tests/data/frozen.zip and frozen.json

Each change of a format records them anew until 0.3.0 is tagged; from then on they bind: every
later version reads them and gives these values (`tests/test_frozen.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio

import geoprep
from helpers.rasters import write_raster
from loaders import BatchLoader, RamTiles
from training.checkpoint import load
from training.fit import main as fit
from training.model.build import build_model
from training.predict import main as predict

FILES = Path(__file__).resolve().parents[1] / "data" / "frozen.zip"
VALUES = FILES.with_suffix(".json")
BUILD = {"city": "moscow", "tile": 64, "levels": 2, "shard_tiles": 4, "rescale": "none"}
MODEL = "helpers.tiny:normed"
RUN = f"--model {MODEL} --device cpu --precision fp32 --compile off --threads 1 --crop 32 "
RUN += "--batch-size 4 --lr 1e-2 --ema 0.8 --seed 3 --pictures 0"
NETWORKS = ("roads.gpkg", "roads.geojson")


def record() -> None:
    """Write the files: a city, its store, a run, a prediction, and networks of drawn speeds."""
    geoprep.synthesize("moscow", scenes=4, size=128, out="city", progress=False)
    build("city.zarr")
    _run(fit, "city.zarr", "--out", "run", *RUN.split(), "--epochs", "2", "--quiet")
    _predict("prediction")
    _draw_speeds("speeds.tif")
    for name in NETWORKS:
        _vectorize(out=name)


def build(out: str) -> geoprep.Store:
    """Build the store of the city."""
    return geoprep.build_zarr(source="city", out=out, progress=False, **BUILD)


def read() -> dict[str, Any]:
    """Return what reading the files gives."""
    store = geoprep.open_store("city.zarr")
    problems = geoprep.check_store(store, progress=False).problems
    tiles = RamTiles.load("city.zarr", split="train", level=64, progress=False)
    batches = list(BatchLoader(tiles, 2, crop=32, augment="d4", seed=7))
    info = load("run/best.pt").info
    tensors = sorted(build_model("resnet34-unet", bands=3, channels=8).state_dict().items())
    names = np.array([f"{name} {list(tensor.shape)}" for name, tensor in tensors])
    with rasterio.open(next(Path("prediction").glob("*.tif"))) as file:
        bands, tags = file.read(), file.tags()
    networks = [geoprep.read_network(name) for name in NETWORKS]
    return {
        "store, problems": list(map(str, problems)),
        "store, tables": [len(store.scenes), len(store.tiles), *store.meta.bands],
        "images of batches": [digest(*(batch.image.numpy() for batch in batches))],
        "labels of batches": [digest(*(batch.label.numpy() for batch in batches))],
        "model": [info.model, info.targets, *info.gsd_m],
        "weights": norms("run/best.pt"),
        "tensors of resnet34-unet": [digest(names)],
        "prediction": [digest(bands), tags["ROAD_THRESHOLD"], tags["SOURCE"]],
        "edges of networks": [len(network) for network in networks],
        "km of networks": [network.length_km for network in networks],
        "mph of networks": [float(network.edges.speed_mph.mean()) for network in networks],
    }


def use() -> dict[str, Any]:
    """Return what a resumed run, a prediction and a vectorisation give; the processor matters."""
    _run(fit, "city.zarr", "--resume", "run", "--model", MODEL, "--epochs", "3", "--quiet")
    _predict("again")
    with rasterio.open(next(Path("again").glob("*.tif"))) as file:
        means = [float(band.mean()) for band in file.read()]
    return {
        "weights of the resumed run": norms("run/last.pt"),
        "means of a prediction": means,
        "km of a network": [_vectorize().length_km],
    }


def digest(*arrays: np.ndarray) -> str:
    """Return the SHA-256 of arrays."""
    return hashlib.sha256(b"".join(map(np.ndarray.tobytes, arrays))).hexdigest()


def norms(path: str) -> list[float]:
    """Return the norm of each tensor of a checkpoint's model."""
    return [float(tensor.double().norm()) for tensor in load(path).model.values()]


def _draw_speeds(out: str) -> None:
    """Draw five roads of 25, 35 and 45 mph in pixels of 1 m."""
    speed = np.zeros((256, 256), np.uint8)
    for at in (40, 160):
        speed[at : at + 8], speed[:, at + 30 : at + 38] = 25, 45
    diagonal = np.arange(20, 236)
    for offset in range(9):
        speed[diagonal, diagonal + offset - 4] = 35
    write_raster(Path(out), speed)


def _predict(out: str) -> None:
    image = min(Path("city").rglob("*.tif"))
    words = ("run", str(image), "--out", out, "--model", MODEL, "--compile", "off", "--quiet")
    _run(predict, *words, "--device", "cpu", "--precision", "fp32", "--gsd", "image")


def _vectorize(**options: Any) -> geoprep.RoadNetwork:
    return geoprep.vectorize("speeds.tif", kind="speed", progress=False, **options)


def _run(command: Callable[[Sequence[str]], int], *words: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        status = command(words)
    if status:
        raise RuntimeError(f"{' '.join(words)}: status {status}")


def main() -> None:
    """Write the files and the values."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        record()
        shutil.rmtree("run/tensorboard")
        Path("run/curves.png").unlink()
        shutil.make_archive(str(FILES.with_suffix("")), "zip")
        values = read() | use()
    VALUES.write_text(json.dumps(values, indent=1) + "\n")
    print(f"{FILES.stat().st_size:,} bytes in {FILES}")


if __name__ == "__main__":
    main()
