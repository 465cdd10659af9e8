"""Reference digests of what this version computes from nothing, to compare two versions.

    python -m helpers.digests               # in tests/; prints them as JSON
    python -m helpers.digests --record      # writes them beside the frozen files of this version

exact           a synthetic city; its store, file by file; batches of one epoch at two levels; a
                road network of drawn speeds. They depend on versions of libraries alone.
same_cpu        weights of resnet34-unet after 20 steps with one thread, and a prediction with them.
                They also depend on torch and on the processor, which ``cpu`` names.
resnet34-unet   shape of every tensor of its state by name: with other names, checkpoints of
                earlier versions could not be read.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from helpers.freeze import FROZEN, draw_network
from helpers.frozen import (
    batches_digest,
    command,
    cpu,
    digest,
    lines_digest,
    map_of,
    tree_digest,
    weights_of,
)
from loaders import RamTiles

SCENES, SIZE, TILE = 6, 256, 128
STEPS = 20
BATCH = 4
"""Samples of a step: 5 training scenes of 4 tiles, 4 crops of each, are 20 batches of 4."""


def data_digests(work: Path) -> dict[str, str]:
    """Return digests of a city, its store, its batches and a road network."""
    found = {}
    city = ("--city", "moscow", "--scenes", str(SCENES), "--size", str(SIZE), "--quiet")
    command("geoprep", "synth", *city, "--out", "city")
    files = sorted(path for path in (work / "city").rglob("*") if path.is_file())
    for kind, suffix in {"images": ".tif", "labels": ".geojson"}.items():
        found[f"city, {kind}"] = digest(*(p.read_bytes() for p in files if p.suffix == suffix))
    source = ("--city", "moscow", "--source", "city", "--quiet", "--workers", "1")
    tiles = ("--tile", str(TILE), "--levels", "2", "--shard-tiles", "8", "--rescale", "none")
    command("geoprep", "build-zarr", *source, *tiles, "--out", "city.zarr")
    found["store, all files"] = tree_digest(work / "city.zarr")
    for level in (TILE, TILE // 2):
        loaded = RamTiles.load("city.zarr", split="train", level=level, progress=False)
        found[f"batches at level {level}"] = batches_digest(loaded, level // 2, 1)
    draw_network(work / "network")
    rasters = ("network/AOI_7_Moscow_chip1.tif", "--kind", "speed", "--quiet")
    command("geoprep", "vectorize", *rasters, "--out", "roads.geojson")
    found["road network"] = lines_digest(work / "roads.geojson")
    return found


def training_digests(work: Path) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Return digests of weights and of a prediction, and the shape of every tensor of the state."""
    machine = ("--device", "cpu", "--precision", "fp32")
    alone = ("--engine", "native", "--compile", "off", "--threads", "1", "--loader-threads", "1")
    samples = ("--crop", str(TILE // 2), "--crops-per-tile", "4", "--batch-size", str(BATCH))
    run = ("--epochs", "1", "--seed", "5", "--pictures", "0", "--quiet", "--out", "run")
    command("training.fit", "city.zarr", *machine, *alone, *samples, *run)
    last = torch.load("run/last.pt", weights_only=True)
    if last["progress"]["step"] != STEPS:
        raise RuntimeError(f"{last['progress']['step']} steps were trained, not {STEPS}")
    image = min((work / "city").rglob("*.tif"))
    # Version 0.1.0 first took the best threshold of all pixels, which the metrics still hold.
    with (work / "run" / "metrics.csv").open(newline="") as file:
        threshold = list(csv.DictReader(file))[-1]["best_threshold"]
    words = ("training.predict", "run/last.pt", image, *machine, "--out", "maps")
    words = (*words, "--threshold", threshold, "--outputs", "all")
    command(*words, "--window", "128", "--overlap", "32", "--compile", "off", "--quiet")
    found = {
        f"weights after {STEPS} steps": weights_of(work / "run" / "last.pt")[0],
        "prediction": map_of(work / "maps" / image.name)[0],
    }
    return found, {name: list(tensor.shape) for name, tensor in last["network"].items()}


def measure() -> dict[str, Any]:
    """Return all digests."""
    found: dict[str, Any] = {"version": command("geoprep", "--version").split()[-1], "cpu": cpu()}
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        found["exact"] = data_digests(Path(name))
        found["same_cpu"], found["resnet34-unet"] = training_digests(Path(name))
    return found


def main() -> None:
    """Print all digests."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--record", action="store_true", help="Write them beside the frozen files.")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = measure()
    # One line per tensor.
    shapes = ",\n".join(f"  {json.dumps(n)}: {s}" for n, s in found.pop("resnet34-unet").items())
    text = json.dumps(found, indent=1)[:-2] + f',\n "resnet34-unet": {{\n{shapes}\n }}\n}}\n'
    sys.stdout.write(text)
    if given.record:
        (FROZEN / found["version"] / "digests.json").write_text(text)


if __name__ == "__main__":
    main()
