"""Write small files of every kind that this version writes, for `tests/test_frozen.py`.

    python -m helpers.freeze            # in tests/; writes tests/data/frozen/VERSION
    python -m helpers.frozen --record   # records what reading these files gives

Only the commands of the project run here, each in a process of its own, so that this script
outlives any change of modules. Inputs that `geoprep synth` does not make are drawn with NumPy.

Stores and their sources are many small files, so that they go into archives. The half-finished
states come from processes that are killed after a certain flush of a certain file, see `KILLED`.
A thread that was at work at that moment may leave an unfinished file, which differs between runs.

Intel's extension for PyTorch has an environment of its own: its exports are not frozen.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import shapely
import shapely.ops
from affine import Affine

from helpers.geojson import feature
from helpers.rasters import write_raster

TESTS = Path(__file__).resolve().parents[1]
FROZEN = TESTS / "data" / "frozen"
PLACE = Affine(0.5, 0, 413871.25, 0, -0.5, 6180032.5)
"""Of drawn images, in UTM 37N."""
MODIFIED_NS = 10**18
"""Time of change of images in nanoseconds: a half-finished prediction depends on it."""

# Runs a program (a script, or -m and a module) and kills it after the n-th flush of a file.
KILLED = """
import os, re, runpy, signal, sys

pattern, left, words = re.compile(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
flush = os.fsync

def fsync(file):
    global left
    flush(file)
    number = file if isinstance(file, int) else file.fileno()
    left -= bool(pattern.search(os.readlink(f"/proc/self/fd/{number}")))
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

os.fsync = fsync
if words[0] == "-m":
    sys.argv = words[1:]
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)
else:
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
"""

GEOPREP = str(Path(sys.executable).with_name("geoprep"))
BUILDS = {
    name: (*words.split(), "--rescale", "none")
    for name, words in {
        "complete": "--city moscow --source city --tile 64 --levels 2 --shard-tiles 4",
        "mosaic": "--images mosaic/image.tif --labels mosaic/roads.geojson --split-by block "
        "--block-km 0.04 --tile 32 --levels 2 --speed-field maxspeed --speed-unit kmh --val 0.4 "
        "--codec zstd",
        "masks": "--images masks/*_sat.png --labels masks/*_mask.png --label-values >127 "
        "--pixel-size 0.5 --tile 32 --levels 1 --val 0.5",
    }.items()
}
"""Options of the builds; the half-built store has those of the complete one."""

MODEL = ["--model", "helpers.tiny:normed"]
MACHINE = ["--device", "cpu", "--precision", "fp32"]
FIT = [*MODEL, *MACHINE, "--engine", "native", "--compile", "off", "--threads", "1"]
FIT += ["--loader-threads", "1", "--pictures", "0", "--quiet"]
RUN = ["complete.zarr", *FIT, "--crop", "32", "--crops-per-tile", "1", "--batch-size", "4"]
RUN += ["--epochs", "2", "--lr", "1e-2", "--ema", "0.8", "--save-every", "2", "--seed", "3"]
PREDICT = ["--gsd", "image", "--window", "256", "--overlap", "32", "--compile", "off", "--quiet"]
PREDICT += ["--outputs", "all"]
EXPORTS = {
    "fp32.pt2": ["--format", "fp32"],
    "bf16.pt2": ["--format", "bf16"],
    "fp32.onnx": ["--format", "onnx"],
    "bf16.xml": ["--format", "openvino"],
    "int8.xml": ["--format", "openvino", "--int8"],
}
NETWORKS = ("gpkg", "geojson", "graphml", "parquet", "csv")


def version() -> str:
    """Return the version of geoprep that runs, as its command says."""
    done = subprocess.run([GEOPREP, "--version"], check=True, capture_output=True, text=True)
    return done.stdout.split()[-1]


def run(*words: str, folder: Path, killed: tuple[str, int] | None = None) -> None:
    """Run a command in a folder.

    Parameters
    ----------
    words
        ``geoprep`` or a module of ``training``, and its arguments.
    folder
        Where it runs. Paths are relative to it, so that none of this machine gets into a file.
    killed
        Kill it after the n-th flush of a file: a regular expression of its path, and n.
    """
    program = [GEOPREP] if words[0] == "geoprep" else ["-m", words[0]]
    kill = ["-c", KILLED, killed[0], str(killed[1])] if killed else []
    paths = [str(TESTS.parent), str(TESTS)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *kill, *program, *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    expected = -9 if killed else 0
    if done.returncode != expected:
        raise RuntimeError(f"{' '.join(words)}: status {done.returncode}\n{done.stderr}")


def main() -> None:
    """Write all files."""
    target = FROZEN / version()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        draw_sources(work)
        build_stores(work)
        train(work)
        export(work)
        predict(work)
        vectorize(work)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        collect(work, target)
    print(f"{sum(f.stat().st_size for f in target.rglob('*') if f.is_file())} bytes in {target}")


def draw_sources(work: Path) -> None:
    """Make all images and labels."""
    run(
        *("geoprep", "synth", "--city", "moscow", "--scenes", "6", "--size", "128"),
        *("--out", "city", "--quiet"),
        folder=work,
    )
    _draw_mosaic(work / "mosaic")
    _draw_masks(work / "masks")
    _draw_strip(work / "strip")
    draw_network(work / "network")


def _ground(height: int, width: int) -> np.ndarray:
    """Return uint8 (3, y, x): fields of one colour each, without nodata."""
    y, x = np.mgrid[0:height, 0:width]
    field = (y // 24 * 7 + x // 40 * 11) % 17
    return np.stack([40 + 5 * field, 60 + 3 * field, 35 + 4 * field]).astype(np.uint8)


def _write_lines(path: Path, features: list[dict[str, object]]) -> None:
    """Write lines with UTM coordinates as GeoJSON that names its CRS."""
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32637"}}
    document = {"type": "FeatureCollection", "crs": crs, "features": features}
    path.write_text(json.dumps(document, indent=1))


def _draw_mosaic(folder: Path) -> None:
    """Draw one scene of 256 x 192 pixels with three roads, whose speeds are in km/h."""
    values = _ground(192, 256)
    values[:, 90:98], values[:, :, 60:66], values[:, :40, 200:] = 190, 170, 0
    write_raster(folder / "image.tif", values, transform=PLACE)
    roads = [
        feature([PLACE * (0, 94), PLACE * (256, 94)], maxspeed=60),
        feature([PLACE * (63, 0), PLACE * (63, 192)], maxspeed=90),
        feature([PLACE * (100, 180), PLACE * (240, 110)], maxspeed=None),
    ]
    _write_lines(folder / "roads.geojson", roads)


def _draw_masks(folder: Path) -> None:
    """Draw three pictures that are not georeferenced, with a mask each."""
    png = {"driver": "PNG", "crs": None, "transform": Affine.identity()}
    for number in range(3):
        values, mask = _ground(64, 64 + 16 * number), np.zeros((64, 64 + 16 * number), np.uint8)
        at = 12 + 14 * number
        values[:, at : at + 6], mask[at : at + 6] = 180, 255
        write_raster(folder / f"{number}_sat.png", values, **png)
        write_raster(folder / f"{number}_mask.png", mask, **png)
    for beside in folder.glob("*.aux.xml"):
        beside.unlink()


def _draw_strip(folder: Path) -> None:
    """Draw a strip of 1200 x 96 pixels: its prediction has three rows of tiles."""
    values = _ground(1200, 96)
    values[:, :, 40:48] = 200
    values[:, 100:1200:220] = 160
    values[:, 700:720, :20] = 0
    write_raster(folder / "strip.tif", values, transform=PLACE)
    os.utime(folder / "strip.tif", ns=(MODIFIED_NS, MODIFIED_NS))


def draw_network(folder: Path) -> None:
    """Draw a mask of speeds of 400 x 400 pixels, and its roads as slightly shifted lines."""
    speed = np.zeros((400, 400), np.uint8)
    for at in (60, 200, 330):
        speed[at : at + 8], speed[:, at + 20 : at + 28] = 25, 45
    diagonal = np.arange(40, 360)
    for offset in range(9):
        speed[diagonal, diagonal + offset - 4] = 35
    speed[200:208, 120:126] = 0  # a gap to close
    write_raster(folder / "AOI_7_Moscow_chip1.tif", speed, transform=PLACE)
    lines = [((0, at + 5), (400, at + 5), 25.0) for at in (60, 200, 330)]
    lines += [((at + 25, 0), (at + 25, 400), 45.0) for at in (60, 200, 330)]
    lines += [((42, 40), (362, 360), 35.0)]
    roads = [shapely.LineString(line[:2]) for line in lines]
    # Cut where they cross: roads meet at the ends of lines.
    pieces = [
        (piece, mph)
        for road, (*_, mph) in zip(roads, lines, strict=True)
        for piece in shapely.get_parts(shapely.ops.split(road, _crossings(road, roads)))
    ]
    features = [
        feature([PLACE * point for point in piece.coords], inferred_speed_mph=mph, road_id=number)
        for number, (piece, mph) in enumerate(pieces)
    ]
    (folder / "truth").mkdir()
    _write_lines(folder / "truth" / "AOI_7_Moscow_chip1.geojson", features)


def _crossings(road: shapely.LineString, roads: list[shapely.LineString]) -> shapely.MultiPoint:
    """Return the points where a road crosses others."""
    return shapely.MultiPoint(
        [road.intersection(other) for other in roads if other is not road and road.crosses(other)]
    )


def build_stores(work: Path) -> None:
    """Build every store, and one that is killed after two of six shards."""
    for name, options in BUILDS.items():
        command = ("geoprep", "build-zarr", *options, "--workers", "1", "--quiet")
        run(*command, "--out", f"{name}.zarr", folder=work)
        if name == "complete":
            half = (*command, "--out", "half.zarr")
            run(*half, folder=work, killed=(r"half\.zarr\.build/journal", 2))
    (work / "half.zarr.build" / "lock").write_text("")  # it names a process and a host


def train(work: Path) -> None:
    """Train to the end, and the same run up to its middle; without averaged weights; by a file."""
    run("training.fit", *RUN, "--out", "runs/whole", folder=work)
    # Saved after steps 2 and 4, at the end of the epoch (5), after steps 6 and 8.
    killed = (r"/\.last\.pt\.part", 5)
    run("training.fit", *RUN, "--out", "runs/middle", folder=work, killed=killed)
    plain = ["--targets", "binary", "--crop", "none", "--level", "32", "--epochs", "1"]
    run("training.fit", "complete.zarr", *FIT, *plain, "--out", "runs/plain", folder=work)
    shutil.copy(sorted(FROZEN.iterdir())[-1] / "config.yaml", work)  # every setting of fit
    command = ("training.fit", "complete.zarr", "--config", "config.yaml", "--quiet")
    run(*command, "--out", "runs/config", folder=work)


def export(work: Path) -> None:
    """Export the best weights of the run in every format."""
    (work / "exports").mkdir()
    for name, options in EXPORTS.items():
        calibrate = ["--calibrate", "complete.zarr", "--tiles", "8"] if "int8" in name else []
        command = ("training.export", "runs/whole/best.pt", *MODEL, *options, *calibrate)
        run(*command, "--out", f"exports/{name}", folder=work)


def predict(work: Path) -> None:
    """Predict the strip, and once more up to its second row of tiles."""
    command = ("training.predict", "runs/whole/best.pt", "strip/strip.tif", *MODEL, *MACHINE)
    command = (*command, *PREDICT)
    run(*command, "--out", "predictions/whole", folder=work)
    # The journal is flushed when the work begins, and after every row of tiles.
    killed = (r"partial/journal", 3)
    run(*command, "--out", "predictions/half", folder=work, killed=killed)


def vectorize(work: Path) -> None:
    """Write the road network of the drawn speeds in every format."""
    (work / "networks").mkdir()
    for suffix in NETWORKS:
        rasters = ("network/AOI_7_Moscow_chip1.tif", "--kind", "speed")
        out = ("--out", f"networks/roads.{suffix}", "--quiet")
        run("geoprep", "vectorize", *rasters, *out, folder=work)


def collect(work: Path, target: Path) -> None:
    """Copy what is kept."""
    sources = ("city", "mosaic", "masks", "strip", "network")
    _archive(target / "sources.zip", work, sources)
    stores = (*(f"{name}.zarr" for name in BUILDS), "half.zarr", "half.zarr.build")
    _archive(target / "stores.zip", work, stores)
    for name in ("whole", "middle", "plain", "config"):
        for file in ("last.pt", "best.pt", "config.yaml", "metrics.csv"):
            kept = work / "runs" / name / file
            if kept.exists() and not (name == "config" and kept.suffix == ".pt"):
                (target / "runs" / name).mkdir(parents=True, exist_ok=True)
                shutil.copy(kept, target / "runs" / name)
    shutil.copy(work / "config.yaml", target)
    for name in ("exports", "predictions", "networks"):
        shutil.copytree(work / name, target / name)


def _archive(path: Path, work: Path, names: tuple[str, ...]) -> None:
    """Write folders into a zip file whose bytes depend on their files alone."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            for file in sorted(p for p in (work / name).rglob("*") if p.is_file()):
                entry = zipfile.ZipInfo(file.relative_to(work).as_posix())
                archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    main()
