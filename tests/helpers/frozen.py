"""Read the files of an earlier version, and return digests and figures of what reading gives.

    python -m helpers.frozen                # in tests/; prints what this version reads, as JSON
    python -m helpers.frozen --record       # writes what tests/test_frozen.py expects

The entry points are those that users have: the commands, and what `loaders` exports. Commands run
in this process, since importing torch anew would take longer than most of them.

Each part returns values in groups, which say how they are compared:

exact         always equal
same_version  equal where the version is that of the files: other versions may start over
same_cpu      equal where the libraries and the processor's instructions are those of the record
close         floats, equal within 1e-6
rough         floats that depend on floating point of the processor, equal within 2 %
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import os
import re
import runpy
import shutil
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import rasterio
import torch
import zarr

from helpers.freeze import BUILDS, EXPORTS, FROZEN, MACHINE, MODEL, MODIFIED_NS, NETWORKS, PREDICT
from loaders import BatchLoader, RamTiles, StreamTiles

REPO = Path(__file__).resolve().parents[2]
RECORD = "reading.json"
"""Name of the file of expected values, beside the frozen files."""
LEVELS = {"complete": (64, 32), "mosaic": (32, 16), "masks": (32,)}

Values = dict[str, dict[str, Any]]


def command(*words: object) -> str:
    """Run ``geoprep`` or a module of ``training`` and return what it prints.

    Raises
    ------
    RuntimeError
        It ended with another status than 0.
    """
    name, out, before = str(words[0]), io.StringIO(), sys.argv
    sys.argv = [str(word) for word in words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            if name == "geoprep":
                project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
                module, _, function = project["scripts"]["geoprep"].partition(":")
                getattr(importlib.import_module(module), function)()
            else:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{sys.argv}: status {end.code}\n{out.getvalue()}") from end
    finally:
        sys.argv = before
    return out.getvalue()


def digest(*parts: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(b"".join(parts)).hexdigest()


def array_digest(*arrays: np.ndarray) -> str:
    """Return the SHA-256 of arrays: dtype, shape and values."""
    parts = []
    for array in arrays:
        parts += [f"{array.dtype.str}{array.shape}".encode(), np.ascontiguousarray(array).tobytes()]
    return digest(*parts)


def cpu() -> str:
    """Return what the last bits of a prediction depend on: libraries, processor instructions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    found = [f"{name} {version(name)}" for name in ("torch", "onnxruntime", "openvino")]
    return ", ".join((*found, f"instructions {digest(flags.encode())[:12]}"))


def zarr_digest(path: Path) -> dict[str, str]:
    """Return the digest of every array of a store by name, as zarr reads it."""
    group = zarr.open_group(path, mode="r")
    found = {}
    for name, array in group.members(max_depth=None):
        if isinstance(array, zarr.Array):
            values = np.asarray(array[...])
            strings = values.dtype.kind in "OTU"
            text = json.dumps(values.astype(object).tolist()).encode()
            found[name] = digest(text) if strings else array_digest(values)
    return dict(sorted(found.items()))


def tree_digest(folder: Path) -> str:
    """Return the digest of all files of a store; the version that wrote it, and the digest of the
    attributes that hold it, are left out. Values that were kept by default need an option now.
    """
    parts = []
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = file.read_bytes()
        if file.name == "zarr.json":
            data = re.sub(rb'"(?:version|meta)":\s*"[^"]*"', b"", data)
            data = re.sub(rb'("options": \{[^{}]*"rescale": )"none"', rb'\1"auto"', data)
        parts += [file.relative_to(folder).as_posix().encode(), data]
    return digest(*parts)


def batches_digest(tiles: Any, crop: int, epochs: int) -> str:
    """Return the digest of all batches of the first epochs."""
    loader = BatchLoader(
        *(tiles, 4), crop=crop, augment="d4", crops_per_tile=2, seed=7, threads=1, pin_memory=False
    )
    parts = []
    for _ in range(epochs):
        for batch in loader:
            fields = (batch.image, batch.speed, batch.index, batch.where, batch.key)
            parts += [array_digest(field.numpy()).encode() for field in fields]
    return digest(*parts)


def weights_of(path: Path, key: str = "network") -> tuple[str, list[float]]:
    """Return the digest of a checkpoint's weights, and the norm of each tensor."""
    state = torch.load(path, weights_only=True)[key]
    names = sorted(state)
    parts = [name.encode() + state[name].numpy().tobytes() for name in names]
    return digest(*parts), [float(state[name].double().norm()) for name in names]


def map_of(path: Path) -> tuple[str, list[float]]:
    """Return the digest of a prediction's pixels, and the mean of each band."""
    with rasterio.open(path) as file:
        values = file.read()
    return array_digest(values), [float(band.mean()) for band in values]


def copied(fixtures: Path, work: Path) -> None:
    """Unpack and copy all frozen files, so that commands may write next to them."""
    for name in ("sources.zip", "stores.zip"):
        with zipfile.ZipFile(fixtures / name) as archive:
            archive.extractall(work)
    os.utime(work / "strip" / "strip.tif", ns=(MODIFIED_NS, MODIFIED_NS))
    for name in ("runs", "exports", "predictions", "networks"):
        shutil.copytree(fixtures / name, work / name)
    shutil.copy(fixtures / "config.yaml", work)


def read_stores(work: Path) -> Values:
    """Read every complete store with zarr and with the commands."""
    exact: dict[str, Any] = {}
    close: dict[str, Any] = {}
    for name in BUILDS:
        for array, found in zarr_digest(work / f"{name}.zarr").items():
            exact[f"{name} {array}"] = found
        facts = json.loads(command("geoprep", "info", f"{name}.zarr", "--json", "--scenes"))
        close[f"{name} info"] = [facts[key] for key in ("km2", "road_fraction", "valid_fraction")]
        for key in ("schema", "cities", "bands", "tile", "tiles", "rescale", "codec"):
            exact[f"{name} info {key}"] = facts[key]
        # Version 0.1.0 counted tiles without imagery as usable, in memory too.
        exact[f"{name} info splits"] = {
            split: {key: counts[key] for key in ("scenes", "tiles", "road_fraction")}
            for split, counts in facts["splits"].items()
        }
        checked = json.loads(command("geoprep", "verify", f"{name}.zarr", "--json", "--quiet"))
        exact[f"{name} verify"] = [checked[key] for key in ("ok", "tiles", "shards", "chunks")]
        out = work / f"{name}-scenes"
        command("geoprep", "export", f"{name}.zarr", "--scene", "all", "--out", out)
        exact[f"{name} export"] = [map_of(file)[0] for file in sorted(out.glob("*.tif"))]
    return {"exact": exact, "close": close}


def read_batches(work: Path) -> Values:
    """Read batches from every store, at every level."""
    exact = {}
    for name, levels in LEVELS.items():
        for level in levels:
            crop, path = level // 2, str(work / f"{name}.zarr")
            tiles = RamTiles.load(path, split="train", level=level, progress=False)
            exact[f"{name} {level}"] = batches_digest(tiles, crop, 2)
            stream = StreamTiles.open(path, split="train", level=level, ram_limit="1GiB")
            exact[f"{name} {level}, streamed"] = batches_digest(stream, crop, 2)
    return {"exact": exact}


def resume_build(work: Path) -> Values:
    """Finish the half-built store: the bytes are those of the complete one."""
    out = work / "half.zarr"
    before = {p: p.stat().st_ino for p in out.rglob("*") if p.is_file() and p.name == "0"}
    options = (*BUILDS["complete"], "--workers", "1", "--quiet")
    command("geoprep", "build-zarr", *options, "--out", "half.zarr")
    kept = sum(path.exists() and path.stat().st_ino == number for path, number in before.items())
    found = {
        "complete": tree_digest(work / "complete.zarr"),
        "resumed": tree_digest(out),
        "working folder": (work / "half.zarr.build").exists(),
    }
    return {"exact": found, "same_version": {"shard files kept": kept}}


def build_again(work: Path) -> Values:
    """Build every store anew from its frozen sources."""
    exact = {}
    for name, options in BUILDS.items():
        out = work / f"again-{name}.zarr"
        command("geoprep", "build-zarr", *options, "--workers", "1", "--quiet", "--out", out)
        exact[name] = tree_digest(out)
    return {"exact": exact}


def predict(work: Path, network: str, *options: str) -> tuple[str, list[float]]:
    """Return digest and means of the prediction of an image."""
    out = work / "maps" / re.sub(r"\W", "-", " ".join((network, *options)))
    words = ("training.predict", network, "strip/strip.tif", *PREDICT, *options)
    command(*words, "--out", out)
    return map_of(out / "strip.tif")


def read_checkpoints(work: Path) -> Values:
    """Predict with every checkpoint, and evaluate one."""
    values: Values = defaultdict(dict)
    cases = {
        "whole/best.pt": (),
        "whole/last.pt": (),
        "whole/last.pt raw": ("--weights", "raw"),
        "middle/last.pt": (),
        "plain/best.pt": ("--gsd", "0.5"),
    }
    for name, options in cases.items():
        own = (*MACHINE, *MODEL, *options)
        found, means = predict(work, f"runs/{name.split()[0]}", *own)
        values["same_cpu"][f"map {name}"], values["rough"][f"map {name}"] = found, means
    for name in ("whole", "middle", "plain"):
        values["exact"][f"weights {name}"] = weights_of(work / "runs" / name / "last.pt")[0]
    words = ("training.evaluate", "runs/whole/best.pt", "complete.zarr", *MODEL, *MACHINE)
    command(*words, "--json", "figures.json", "--quiet", "--threads", "1")
    metrics = json.loads((work / "figures.json").read_text())["metrics"]
    names = ("road_iou", "best_road_iou", "bin_iou", "speed_mae_mph")
    values["rough"]["evaluate"] = [metrics[name] for name in names]
    return dict(values)


def resume_run(work: Path) -> Values:
    """Finish the run that was killed in mid-epoch: its weights are those of the whole run."""
    command("training.fit", "--resume", "runs/middle", *MODEL, "--quiet")
    values: Values = defaultdict(dict)
    for key in ("network", "ema"):
        for name in ("whole", "middle"):
            found, norms = weights_of(work / "runs" / name / "last.pt", key)
            values["same_cpu"][f"{name} {key}"], values["rough"][f"{name} {key}"] = found, norms
    return dict(values)


def read_config(work: Path) -> Values:
    """Train with the settings of files: one that a user wrote, one that a run wrote."""
    import yaml

    recorded = work / "runs" / "config" / "config.yaml"
    before = yaml.safe_load(recorded.read_text())
    exact = {}
    for name, words in {
        "user's": ("complete.zarr", "--config", "config.yaml"),
        "run's": ("--config", recorded),
    }.items():
        out = work / "runs" / f"again-{len(exact)}"
        command("training.fit", *words, "--quiet", "--out", out)
        after = yaml.safe_load((out / "config.yaml").read_text())
        exact[name] = {key: after.get(key, "no such setting") for key in before}
    return {"exact": exact}


def read_exports(work: Path) -> Values:
    """Predict with every exported model."""
    values: Values = defaultdict(dict)
    for name in EXPORTS:
        found, means = predict(work, f"exports/{name}")
        values["same_cpu"][name], values["rough"][name] = found, means
    return dict(values)


def resume_prediction(work: Path) -> Values:
    """Finish the half-finished prediction; rows that were finished are not predicted again."""
    whole, half = work / "predictions" / "whole", work / "predictions" / "half"
    image = work / "strip" / "strip.tif"
    with rasterio.open(image, "r+") as file:  # size and time of change stay
        window = rasterio.windows.Window(0, 0, 96, 200)
        file.write(255 - file.read(window=window), window=window)
    os.utime(image, ns=(MODIFIED_NS, MODIFIED_NS))
    words = ("training.predict", "runs/whole/best.pt", "strip/strip.tif", *MODEL, *MACHINE)
    command(*words, *PREDICT, "--out", half)
    with rasterio.open(whole / "strip.tif") as one, rasterio.open(half / "strip.tif") as other:
        kept = bool((one.read()[:, :300] == other.read()[:, :300]).all())
    found, means = map_of(half / "strip.tif")
    exact = {
        "whole": map_of(whole / "strip.tif")[0],
        "left over": sorted(file.name for file in half.iterdir()),
    }
    values = {"exact": exact, "same_version": {"finished rows are kept": kept}}
    return values | {"same_cpu": {"resumed": found}, "rough": {"resumed": means}}


def read_networks(work: Path) -> Values:
    """Score and route on the road networks of every format; vectorise the drawn speeds again."""
    close: dict[str, Any] = {}
    for suffix in NETWORKS:
        file = f"networks/roads.{suffix}"
        close |= {f"score {suffix}": _scores(file)}
        if suffix != "csv":
            close |= {f"route {suffix}": _route(file)}
    rasters = ("network/AOI_7_Moscow_chip1.tif", "--kind", "speed")
    facts = json.loads(command("geoprep", "vectorize", *rasters, "--out", "again.gpkg", "--json"))
    counts = [facts["edges"], facts["nodes"]]
    close |= {"vectorize km": facts["km"], "vectorize score": _scores("again.gpkg")}
    command("geoprep", "vectorize", *rasters, "--out", "again.geojson", "--quiet")
    exact = {
        "vectorize": counts,
        "frozen lines": lines_digest(work / "networks" / "roads.geojson"),
        "lines": lines_digest(work / "again.geojson"),
    }
    # The first files of 0.1.0 are of before lines were smoothed, and the stated threshold was used.
    rough = ("--out", "predicted.geojson", "--smoothing", "0", "--quiet", "--threshold", "0.3")
    command("geoprep", "vectorize", "predictions/whole", *rough)
    exact["lines of a prediction"] = lines_digest(work / "predicted.geojson")
    return {"exact": exact, "close": close}


def _scores(network: str) -> list[float | None]:
    words = ("geoprep", "score", "--truth", "network/truth", "--proposal", network)
    found = json.loads(command(*words, "--images", "network", "--json", "--threads", "1"))
    scene = found["scenes"][0]
    return [*found["mean"].values(), scene["truth_km"], scene["proposal_km"]]


def _route(network: str) -> list[float]:
    to_lonlat = pyproj.Transformer.from_crs("EPSG:32637", "OGC:CRS84", always_xy=True)
    ends = [to_lonlat.transform(413871.25 + x, 6180032.5 - y) for x, y in ((20, 32), (180, 167))]
    start, goal = (",".join(f"{value:.9f}" for value in end) for end in ends)
    words = ("geoprep", "route", network, "--from", start, "--to", goal)
    found = json.loads(command(*words, "--out", "route.geojson", "--json"))
    return [found["length_m"], found["travel_time_s"]]


def lines_digest(path: Path) -> str:
    """Return the digest of the lines of a GeoJSON file: coordinates to 1e-7 degrees, properties."""
    lines = []
    for feature in json.loads(path.read_text())["features"]:
        points = np.round(np.array(feature["geometry"]["coordinates"]), 7) + 0.0
        properties = {
            key: round(value, 3) if isinstance(value, float) else value
            for key, value in sorted(feature["properties"].items())
            if not key.startswith("confidence")  # which came after the files were frozen
        }
        lines.append(json.dumps([points.tolist(), properties]))
    return digest("\n".join(lines).encode())


PARTS: dict[str, Callable[[Path], Values]] = {
    part.__name__: part
    for part in (
        *(read_stores, read_batches, resume_build, build_again, read_checkpoints, resume_run),
        *(read_config, read_exports, read_networks, resume_prediction),
    )
}
"""What is read, by name. The last one changes an image that others predict."""


def measure(fixtures: Path) -> dict[str, Any]:
    """Return what each part gives, or ``error`` with its traceback."""
    found: dict[str, Any] = {"cpu": cpu(), "version": command("geoprep", "--version").split()[-1]}
    seconds = {}
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        copied(fixtures, Path(name))
        for part, function in PARTS.items():
            started = time.perf_counter()
            try:
                found[part] = function(Path(name))
            except Exception:
                found[part] = {"error": traceback.format_exc()}
            seconds[part] = round(time.perf_counter() - started, 1)
    print(f"seconds: {seconds}", file=sys.stderr)
    return found


def main() -> None:
    """Print what this version reads, or record it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--fixtures", type=Path, help="Folder of frozen files; default: the last.")
    parser.add_argument("--record", action="store_true", help="Write the expected values.")
    given = parser.parse_args()
    fixtures = (given.fixtures or sorted(FROZEN.iterdir())[-1]).resolve()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    text = json.dumps(measure(fixtures), indent=1)
    if not given.record:
        print(text)
    elif '"error": "Traceback' in text:
        raise SystemExit(text)
    else:
        (fixtures / RECORD).write_text(text + "\n")


if __name__ == "__main__":
    main()
