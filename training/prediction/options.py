"""The options of ``training.predict``: the network, the images, how they are read and mapped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from geoprep.errors import UsageError
from training.cli import argument, option

if TYPE_CHECKING:
    from training.checkpoint import Facts
    from training.inference import Runner

Compile = Literal["auto", "on", "off"]


def parse_bands(text: str | None) -> tuple[int, ...]:
    """Return the bands of ``5,3,2``; none where nothing was said.

    Raises
    ------
    UsageError
        They are not numbers from 1 up.
    """
    try:
        bands = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        bands = (0,)
    if any(band < 1 for band in bands):
        raise UsageError(f"--bands {text}: give numbers from 1 up, such as 5,3,2")
    return bands


def check_gsd(text: str) -> None:
    """Raise UsageError where ``--gsd`` is neither a word nor metres."""
    try:
        fits = text in ("checkpoint", "image") or 0 < float(text) < math.inf
    except ValueError:
        fits = False
    if not fits:
        raise UsageError(f"--gsd {text}: use checkpoint, image, or metres such as 0.3")


def check_rescale(text: str) -> None:
    """Raise UsageError where ``--rescale`` is no rule."""
    from geoprep.plan import parse_rescale

    if text != "checkpoint":
        parse_rescale(text)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Network: which one."""

    checkpoint: Path = argument("A checkpoint, or the folder of a run: its best.pt.", "CHECKPOINT")
    weights: Literal["auto", "ema", "raw"] = option(
        "auto", "Which weights: by default the averaged ones where there are any."
    )
    model: str | None = option(
        None,
        "Consent to import the network's own code, which the checkpoint only names.",
        "package.module:factory",
    )


@dataclass(frozen=True, kw_only=True)
class Network(Checkpoint):
    """Network: which one, and how it computes."""

    checkpoint: Path = argument(
        "A checkpoint, the folder of a run (its best.pt), or a file of training.export: .pt2, "
        ".onnx, .xml, .ipex.",
        "NETWORK",
    )
    threshold: float | None = option(
        None,
        "Least probability of a road; by default the one that validation found best, which the "
        "checkpoint holds, else 0.5.",
        "SHARE",
        above=0,
        most=1,
    )
    tta: Literal["none", "flips", "d4"] = option(
        "none", "Average over 4 flips, or over them and their transposes: 4 or 8 times the work."
    )
    device: Literal["auto", "cpu", "cuda", "xpu"] = option("auto", "Where it computes.")
    precision: Literal["auto", "bf16", "fp32"] = option("auto", "Of the convolutions.")

    def open(self, compile_mode: Compile = "off") -> tuple[Runner, Facts]:
        """Return the runner of the network and what it is for.

        Parameters
        ----------
        compile_mode
            See `training.inference.runner.Runner`.

        Raises
        ------
        UsageError
            There is no such device, the checkpoint names code that ``model`` does not, an option is
            for checkpoints, or what runs a file is not installed.
        CheckpointError
            The file cannot be used.
        """
        from training.checkpoint import load_network
        from training.engine import choose_device
        from training.inference import SUFFIXES, NativeRunner, load_runner

        path = self.checkpoint
        if path.suffix == ".bin" and path.with_suffix(".xml").exists():
            raise UsageError(
                f"{path} holds weights alone: name {path.with_suffix('.xml')} beside it"
            )
        if path.suffix in SUFFIXES:
            self._check_exported()
            exported, record = load_runner(path, compile_mode=compile_mode)
            return exported, record.facts
        place = choose_device(self.device)  # before the checkpoint, which is read onto it
        network, facts = load_network(path, device=place, weights=self.weights, model=self.model)
        runner = NativeRunner(network, facts, device=place, precision=self.precision)
        runner.compile_mode = compile_mode
        return runner, facts

    def _check_exported(self) -> None:
        for name in ("device", "precision", "weights", "model"):
            value = getattr(self, name)
            if value not in (None, "auto") and (name, value) != ("device", "cpu"):
                raise UsageError(
                    f"--{name} {value} is for checkpoints: {self.checkpoint} was exported as it "
                    "is, for the cpu"
                )


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files: what is read and written."""

    images: tuple[str, ...] = argument("GeoTIFFs, folders or patterns, also on S3.", "IMAGE")
    out: Path | None = option(None, "Folder for the maps, one NAME.tif per image.", "FOLDER")
    overlay: bool = option(False, "Also a PNG per map: its roads over the image.")
    overwrite: bool = option(False, "Replace maps of other checkpoints or options.")
    compress: Literal["zstd", "deflate"] = option("zstd", "Compression of the maps.")
    quiet: bool = option(False, "No progress bar.")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Reading: how an image is seen."""

    gsd: str = option(
        "checkpoint",
        "Pixel size to predict at: the checkpoint's, the image's, or metres. Images more than "
        "10 % off are resampled, and their maps have the pixels that the network saw.",
        "checkpoint|image|METRES",
        check=check_gsd,
    )
    bands: str | None = option(
        None, "1-based bands to read, such as 5,3,2.", "N,...", check=parse_bands
    )
    rescale: str = option(
        "checkpoint",
        "How values become bytes: as in the training store, scene, none, or LO,HI.",
        "RULE",
        check=check_rescale,
    )
    allow_no_crs: bool = option(False, "Take images without a place on the ground, as they are.")
    pixel_size: float | None = option(
        None,
        "Metres that a pixel of such images is wide: then they are resampled like any other. "
        "Their maps have no place on the ground either.",
        "METRES",
        above=0,
    )


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Windows: how an image goes through the network."""

    window: int = option(1024, "Side of the windows in pixels.", "PIXELS")
    overlap: int = option(64, "Pixels that neighbouring windows share.", "PIXELS")
    batch_size: int = option(1, "Windows per batch.", "N", least=1)
    compile: Compile = option(
        "auto",
        "Compile the network: a minute that large jobs win back; half a second for a .xml file. "
        "Files of .onnx and .ipex are as they are.",
    )


@dataclass(frozen=True, kw_only=True)
class Instances:
    """Instances: several processes at once, for many images on many cores."""

    instances: int = option(
        1,
        "Processes, each on cores of its own; they share the images, and write into one folder.",
        "N",
        least=1,
    )


@dataclass(frozen=True, kw_only=True)
class Request(Network, Files, Reading, Windows, Instances):
    """All of it."""
