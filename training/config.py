"""Every setting of a run: its default, what it is for, and the section of ``--help`` it is in.

This is the one place for defaults. Names are flat: ``--batch-size`` on the command line is
``batch_size`` in a YAML file, in a checkpoint and here.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import Any, Literal, Self

from geoprep.errors import UsageError
from training.fields import argument, option

Residency = Literal["ram", "compressed", "stream", "device"]

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def counted(count: int, noun: str) -> str:
    """Return ``1 epoch``, ``2 epochs``."""
    return f"{count} {noun}{'s' * (count != 1)}"


@dataclass(frozen=True, slots=True)
class Stage:
    """Epochs that share level and window.

    Attributes
    ----------
    level
        Tile side in pixels; None for the finest.
    crop
        Side of random windows in pixels; None for whole tiles.
    epochs
        How many.
    """

    level: int | None
    crop: int | None
    epochs: int

    def __str__(self) -> str:
        size = "whole tiles" if self.crop is None else f"windows of {self.crop}"
        level = "the finest level" if self.level is None else f"level {self.level}"
        return f"{counted(self.epochs, 'epoch')} of {size} at {level}"


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Return the stages of ``LEVEL@CROP:EPOCHS,...``; LEVEL:EPOCHS is of whole tiles.

    Raises
    ------
    UsageError
        It is written otherwise, or a number in it is 0.
    """
    stages = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(0*[1-9]\d*)(?:@(0*[1-9]\d*))?:(0*[1-9]\d*)\s*", part)
        if not found:
            raise UsageError(
                f"`stages` {part.strip()!r}: write LEVEL@CROP:EPOCHS such as 325@256:20, or "
                "LEVEL:EPOCHS for whole tiles, with commas between stages"
            )
        level, crop, epochs = found.groups()
        stages.append(Stage(int(level), int(crop) if crop else None, int(epochs)))
    return tuple(stages)


def parse_every(text: str) -> tuple[int, float]:
    """Return the steps and the seconds of ``500``, ``30s``, ``10m`` or ``2h``; 0 and inf for never.

    Raises
    ------
    UsageError
        It is written otherwise.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if not found or float(found[1]) <= 0 or (not found[2] and "." in found[1]):
        raise UsageError(
            f"`save_every` {text!r}: write a number of steps such as 500, or a time such as 30s "
            "or 10m"
        )
    if found[2]:
        return 0, float(found[1]) * _SECONDS[found[2]]
    return int(found[1]), math.inf


PIXELS: dict[str, Any] = {"metavar": "PIXELS", "least": 1}
SHARE: dict[str, Any] = {"metavar": "SHARE", "least": 0, "below": 1}
THREADS: dict[str, Any] = {"metavar": "N", "least": 1, "most": 1024}


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data: which tiles."""

    stores: tuple[str, ...] = argument("One or more stores.", "STORE", default=())
    level: int | None = option(
        None, "Tile side in pixels, one of the store's levels; the finest by default.", **PIXELS
    )
    bands: str | None = option(
        None, "Bands to use, in this order; all by default.", "red,green,..."
    )
    folds: int | None = option(
        None, "Cut train and validation anew into this many folds, by scene.", "N", least=2
    )
    fold: int = option(0, "Which fold validates, from 0.", "N", least=0)
    residency: Residency = option(
        "ram",
        "Where tiles live: in memory as pixels or as stored, in the store (larger than memory), "
        "on the accelerator.",
    )
    ram_limit: str = option("4GiB", "Memory for the tiles of --residency stream.", "SIZE")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Samples: what is cut from the tiles."""

    batch_size: int | Literal["auto"] = option(
        8, "Samples per batch and rank; auto measures which is fastest here.", "N|auto", least=1
    )
    crop: int | None = option(
        256, "Side of random windows in pixels; none for whole tiles.", "PIXELS|none", least=1
    )
    crops_per_tile: int = option(4, "Windows per tile and epoch.", "N", least=1)
    augment: Literal["d4", "flips"] | None = option(
        "d4", "The eight symmetries of the square, four, or none."
    )
    jitter: float = option(
        1.0,
        "Strength of random brightness, contrast and band gain; 0 for none.",
        "NUMBER",
        least=0,
        most=5,
    )
    augmentation: str | None = option(
        None,
        "Your own, on the device: function(image, speed, key) of uint8 (n, band, y, x), uint8 "
        "(n, y, x) and int64 (n,) returns image and speed.",
        "package.module:function",
    )
    min_road: float = option(
        0.0, "Least share of road in a window: windows are drawn again, up to 8 times.", **SHARE
    )
    weights: Literal["road", "speed"] | None = option(
        None, "Draw tiles by their share of road, or so that rare speeds come as often as others."
    )


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Network and loss: what learns what."""

    model: str = option(
        "resnet34-unet",
        "The built-in network, one of segmentation_models_pytorch such as smp:Unet:resnet34, or a "
        "factory called as factory(bands=, channels=).",
        "NAME|package.module:factory",
        flags=("--network",),
    )
    encoder_weights: str = option(
        "none",
        "ImageNet weights for the encoder: download, a local file, or none.",
        "imagenet|FILE|none",
    )
    encoder_lr: float = option(
        1.0,
        "Learning rate of the network's encoder as a factor of the others'; 0 freezes its weights.",
        "FACTOR",
        least=0,
        most=1,
    )
    targets: Literal["auto", "bins", "continuous", "binary"] = option(
        "auto",
        "Seven ten-mph bins and any road, one speed channel, or any road only; auto: bins, and "
        "binary where the roads of a store have no speeds.",
    )
    loss: Literal["focal-dice", "bce-dice"] = option(
        "focal-dice", "Focal loss or cross-entropy, and soft dice."
    )
    dice: float = option(0.25, "Share of soft dice in the loss.", "SHARE", least=0, most=1)
    channel_weights: Literal["none", "auto"] = option(
        "none", "auto lets channels of rare speeds count more, from the store's histogram."
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimisation: how it learns."""

    epochs: int = option(30, "Times every tile is seen.", "N", least=1)
    stages: str | None = option(
        None,
        "Train small, finish large: instead of --level, --crop and --epochs.",
        "LEVEL@CROP:EPOCHS,...",
        check=parse_stages,
    )
    optimizer: Literal["adamw", "adam", "sgd"] = option("adamw", "Fused where torch has it.")
    lr: float = option(1e-3, "Highest learning rate.", "NUMBER", above=0)
    weight_decay: float = option(1e-2, "Decoupled for adamw.", "NUMBER", least=0, below=1)
    schedule: Literal["onecycle", "cosine", "constant"] = option(
        "onecycle", "Course of the learning rate over all epochs."
    )
    warmup: float = option(
        1.0, "Epochs of linear warm-up; onecycle rises over its first 30 %.", "EPOCHS", least=0
    )
    clip: float | None = option(
        1.0, "Largest norm of the gradient; none for any.", "NUMBER|none", above=0
    )
    accumulate: int = option(1, "Batches per optimizer step.", "N", least=1)
    ema: float = option(
        0.0, "Decay of averaged weights, which then validate and predict; 0 for none.", **SHARE
    )
    patience: int | None = option(
        None, "Stop after this many epochs without a better road IoU.", "EPOCHS", least=1
    )
    seed: int = option(0, "Decides everything that is random.", "N", least=0, below=2**63)


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """Machine: where and how it computes."""

    engine: Literal["auto", "native", "ipex"] = option(
        "auto", "PyTorch itself, or Intel's retired extension; auto takes that where installed."
    )
    device: Literal["auto", "cpu", "cuda", "xpu"] = option("auto", "Where it computes.")
    precision: Literal["bf16", "fp32"] = option(
        "bf16", "Of convolutions; weights and loss are always fp32."
    )
    compile: Literal["loss", "model", "off"] = option(
        "loss", "What torch.compile is used for, where there is a compiler."
    )
    threads: int | None = option(
        None, "Threads that compute; the processors divided by the ranks by default.", **THREADS
    )
    loader_threads: int | None = option(None, "Threads that fill batches.", **THREADS)
    val_batch_size: int = option(4, "Whole tiles per validation batch.", "N", least=1)


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """Output: what is kept, shown and taken up again."""

    out: str | None = option(
        None, "Folder of the run; runs/NAME-OF-THE-STORE by default.", "FOLDER"
    )
    resume: str | None = option(
        None, "Go on with a run, exactly where it stopped; all its settings hold.", "FOLDER"
    )
    overwrite: bool = option(False, "Start anew in a folder that holds a run.")
    save_every: str = option(
        "10m",
        "Checkpoint within epochs: every so many steps (500), minutes or seconds (10m, 30s).",
        "N|TIME",
        check=parse_every,
    )
    val_every: int = option(1, "Epochs between validations.", "N", least=1)
    log_every: int = option(10, "Steps between looks at the loss.", "N", least=1)
    pictures: int = option(
        4, "Validation tiles in each epoch's picture; 0 for none.", "N", least=0, most=100
    )
    profile: bool = option(False, "Print where the time of a step goes, and stop.")
    quiet: bool = option(False, "No progress bar.")


SECTIONS: tuple[type[Any], ...] = (
    *(DataConfig, SamplingConfig, NetworkConfig),
    *(OptimizerConfig, MachineConfig, OutputConfig),
)
"""The groups of settings, in the order of ``--help``."""


@dataclass(frozen=True, kw_only=True)
class Config(
    OutputConfig, MachineConfig, OptimizerConfig, NetworkConfig, SamplingConfig, DataConfig
):
    """All settings of a run."""

    def flat(self) -> dict[str, Any]:
        """Return every setting by name, as plain values."""
        return asdict(self) | {"stores": list(self.stores)}

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings of these names; those not given have their defaults."""
        given = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        return cls(**given | {"stores": tuple(given.get("stores", ()))})

    @property
    def plan(self) -> tuple[Stage, ...]:
        """The stages of the run: those of ``--stages``, or the one that other settings say."""
        if self.stages is not None:
            return parse_stages(self.stages)
        return (Stage(self.level, self.crop, self.epochs),)

    @property
    def ends(self) -> tuple[int, ...]:
        """After how many epochs each stage ends; after the last one the run does."""
        return tuple(accumulate(stage.epochs for stage in self.plan))

    def stage_of(self, epoch: int) -> int:
        """Return the number of the stage that an epoch belongs to."""
        return bisect_right(self.ends, epoch)


OF_ONE_START = ("out", "resume", "overwrite", "profile", "quiet")
"""Settings that say nothing about what is learnt."""
