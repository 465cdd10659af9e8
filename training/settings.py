"""The settings of a run: defaults, valid values and help of every option of ``geoprep fit``.

This is the only place for defaults. A setting has one name: ``--batch-size`` on the command line is
``batch_size`` in a YAML file, in a checkpoint and here.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import Any, Literal, Self

from geoprep.errors import UsageError
from geoprep.options import argument, option
from training.setting_texts import (
    TIMEOUT_MINUTES,
    CompileMode,
    DeviceName,
    EngineName,
    LossName,
    Precision,
    Residency,
    Stage,
    parse_duration,
    parse_interval,
    parse_shares,
    parse_stages,
)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data: stores, bands, levels and folds."""

    stores: tuple[str, ...] = argument(
        "Stores to train on; default: the only one in the current folder.", "STORE", default=()
    )
    level: int | None = option(
        None,
        "Tile side in pixels, one of the store's levels; default: the finest.",
        "PIXELS",
        least=1,
    )
    bands: str | None = option(
        None, "Bands to use, by name or number; default: all bands of the first store.", "BAND,..."
    )
    folds: int | None = option(
        None, "Folds of cross-validation: training and validation scenes split anew.", "N", least=2
    )
    fold: int = option(0, "Fold used for validation, counted from 0.", "N", least=0)
    residency: Residency = option(
        "ram",
        "Storage of the tiles while training: decoded in memory (ram), compressed in memory, "
        "read from the store as needed (stream), or on the accelerator (device).",
    )
    ram_limit: str = option("4GiB", "Memory for the tiles of --residency stream.", "SIZE")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Samples: crops of the tiles and their augmentation."""

    batch_size: int = option(8, "Samples per batch and rank.", "N", least=1)
    crop: int | None = option(
        256, "Side of the random crops in pixels; none for whole tiles.", "PIXELS|none", least=1
    )
    crops_per_tile: int = option(4, "Crops per tile and epoch.", "N", least=1)
    augment: Literal["d4", "flips"] | None = option(
        "d4", "Random symmetries: the eight of the square (d4), four (flips), or none."
    )
    jitter: float | Literal["auto"] = option(
        "auto",
        "Strength of random brightness, contrast and gain; 0 for none. auto: 1 for roads, 0 for "
        "classes.",
        "auto|NUMBER",
        least=0,
        most=5,
    )
    scale: float = option(
        1.0,
        "Largest factor by which crops are magnified or reduced at random; 1 for neither.",
        "FACTOR",
        least=1,
        most=4,
    )
    rotate: float = option(
        0.0, "Largest random rotation to either side; 0 for none.", "DEGREES", least=0, most=180
    )
    cutmix: float | Literal["auto"] = option(
        "auto",
        "Largest share of a crop that a box of another sample of the batch takes, with its labels "
        "(CutMix); 0 for none. auto: 0.5 for classes with fewer than 4 million labelled pixels.",
        "auto|SHARE",
        least=0,
        most=1,
    )
    augmentation: str | None = option(
        None,
        "Your own augmentation, run on the device: function(image, label, key) of uint8 "
        "(n, band, y, x), uint8 (n, y, x) and int64 (n,) returns image and label.",
        "package.module:function",
    )
    min_road: float = option(
        0.0,
        "Minimum share of road pixels per crop; crops are drawn again up to 8 times.",
        "SHARE",
        least=0,
        below=1,
    )
    min_share: str | None = option(
        None,
        "Minimum share of classes per crop, such as water=0.1; drawn as with --min-road.",
        "CLASS=SHARE,...",
        check=parse_shares,
    )
    weights: Literal["road", "speed", "classes"] | None = option(
        None,
        "Sampling weights of tiles: by share of road (road), or so that rare speeds (speed) or "
        "classes (classes) are as frequent as common ones.",
    )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Model and loss: architecture, initial weights and targets."""

    model: str = option(
        "auto",
        "resnet34-unet; unet-small, five times as fast; a model of segmentation_models_pytorch "
        "such as smp:Unet:resnet34; or a factory called as factory(bands=, channels=). auto: that "
        "of --init-from, else unet-small on a CPU and resnet34-unet on other devices or with "
        "--encoder-weights.",
        "auto|NAME|package.module:factory",
    )
    encoder_weights: str = option(
        "none",
        "Initial weights of the encoder: imagenet (downloaded), a local file, or none.",
        "imagenet|FILE|none",
    )
    init_from: str | None = option(
        "auto",
        "Initial weights from a run or checkpoint: all that fit, whatever its targets and bands; "
        "synthetic: those of this package, learnt from synthetic cities at 1.1 m; none: random "
        "ones. auto: synthetic where unet-small learns roads from red, green and blue, else none.",
        "auto|synthetic|none|RUN|FILE",
    )
    encoder_lr: float = option(
        1.0, "Factor of --lr for the encoder; 0 freezes its weights.", "FACTOR", least=0, most=1
    )
    targets: Literal["auto", "bins", "binary", "classes"] = option(
        "auto",
        "Output channels: seven bins of 10 mph and any road (bins), any road only (binary), or "
        "one channel per class (classes); auto: by the labels of the stores: classes, bins, or "
        "binary if a store has no speeds.",
    )
    loss: LossName = option(
        "focal-dice",
        "Pixelwise loss, focal or cross-entropy, combined with soft dice.",
    )
    dice: float = option(0.25, "Share of soft dice in the loss.", "SHARE", least=0, most=1)
    class_weights: Literal["none", "auto"] = option(
        "none", "Loss weights; auto weights rare classes, or rare bins of speed, more."
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimisation: epochs, optimizer and learning rate."""

    epochs: float | int = option(
        30,
        "Number of passes over all tiles; the last may be a part of one, as in 2.5.",
        "N",
        above=0,
    )
    time: str | None = option(
        None,
        "Train for this long, such as 3m or 2h, in place of --epochs: the learning rate follows "
        "the clock, and the last validation is in it. A resumed run takes what is left.",
        "TIME",
        check=parse_duration,
    )
    stages: str | None = option(
        None,
        "Stages with their own level and crop size, instead of --level, --crop and --epochs.",
        "LEVEL@CROP:EPOCHS,...",
        check=parse_stages,
    )
    optimizer: Literal["adamw", "sgd"] = option(
        "adamw", "Optimizer; sgd uses Nesterov momentum of 0.9."
    )
    lr: float = option(1e-3, "Peak learning rate.", "NUMBER", above=0)
    weight_decay: float = option(
        1e-2, "Weight decay of the kernels; decoupled with adamw.", "NUMBER", least=0, below=1
    )
    schedule: Literal["onecycle", "cosine", "constant"] = option(
        "onecycle", "Learning rate schedule over all epochs."
    )
    warmup: float = option(
        1.0,
        "Epochs of linear warm-up; onecycle ignores it and rises over its first 30 %.",
        "EPOCHS",
        least=0,
    )
    clip: float | None = option(
        1.0, "Maximum norm of the gradient; none switches clipping off.", "NUMBER|none", above=0
    )
    accumulate: int = option(1, "Batches per optimizer step.", "N", least=1)
    ema: float = option(
        0.0,
        "Decay of the averaged weights (EMA), which are used for validation and prediction; 0 "
        "switches averaging off.",
        "SHARE",
        least=0,
        below=1,
    )
    patience: int | None = option(
        None,
        "Stop after this many validations without a better road IoU (of classes: mean IoU).",
        "N",
        least=1,
    )
    seed: int = option(
        0, "Random seed of weights, sampling, augmentation and dropout.", "N", least=0, below=2**63
    )


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """Machine: device, precision and threads."""

    engine: EngineName = option(
        "auto",
        "PyTorch itself (native) or Intel's retired extension (ipex), which is not faster; auto: "
        "native, or that of the run that is resumed.",
    )
    device: DeviceName = option("auto", "Device to train on; auto: cuda or xpu if there is one.")
    precision: Precision = option(
        "auto",
        "Precision of convolutions; weights and loss are always fp32. auto: bf16 where the device "
        "computes in it, else fp16 with a scaled loss on CUDA devices and fp32 on others. tf32: "
        "fp32 with TensorFloat-32 on CUDA devices. fp32: without it.",
    )
    compile: CompileMode = option(
        "loss",
        "Parts to compile with torch.compile, if there is a compiler: the loss (and on a CPU "
        "BatchNorm with ReLU), model and loss (model), or nothing (off).",
    )
    capture: Literal["auto", "off"] = option(
        "auto", "Record steps as CUDA graphs, on one CUDA device where they allow it; or never."
    )
    threads: int | None = option(
        None,
        "Threads for computation; default: processors divided by ranks.",
        "N",
        least=1,
        most=1024,
    )
    loader_threads: int | None = option(
        None,
        "Threads that prepare batches; default: chosen by the loader.",
        "N",
        least=1,
        most=1024,
    )
    val_batch_size: int = option(4, "Whole tiles per validation batch.", "N", least=1)
    find_unused_parameters: bool = option(
        False,
        "With several ranks: search each step for parameters that the loss does not depend on. "
        "Only models that leave out a part of themselves need it; steps get slower.",
    )
    distributed_timeout: float = option(
        TIMEOUT_MINUTES,
        "With several ranks: minutes that a rank waits for the others, such as while one of them "
        "reads tiles, before the run fails.",
        "MINUTES",
        above=0,
        most=100_000,
    )


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """Output: folder of the run, checkpoints and logs."""

    out: str | None = option(None, "Folder of the run; default: runs/NAME-OF-STORE.", "FOLDER")
    resume: str | None = option(
        None, "Resume the run in this folder where it stopped, with its settings.", "FOLDER"
    )
    overwrite: bool = option(False, "Replace the run in the folder.")
    save_every: str = option(
        "10m",
        "Interval of checkpoints within an epoch: a number of steps (500) or a time (30s, 10m).",
        "N|TIME",
        check=parse_interval,
    )
    val_every: int | None = option(
        None,
        "Epochs between validations; default: 1, and with --time so many that validations and "
        "checkpoints take a tenth of it.",
        "N",
        least=1,
    )
    log_every: int = option(10, "Steps between two log lines of the loss.", "N", least=1)
    pictures: int = option(
        4, "Validation tiles in the picture of each epoch; 0 for none.", "N", least=0, most=100
    )
    plan: bool = option(
        False,
        "Print what the run would take, from ten of its steps: memory, number of steps and time; "
        "then exit. Nothing is written.",
    )
    profile: bool = option(False, "Print a time breakdown of a training step, then exit.")
    quiet: bool = option(False, "Hide the progress bar.")


@dataclass(frozen=True, kw_only=True)
class Config(OutputConfig, MachineConfig, OptimizerConfig, ModelConfig, SamplingConfig, DataConfig):
    """All settings of a run."""

    def flat(self) -> dict[str, Any]:
        """Return all settings by name, as plain values."""
        return asdict(self) | {"stores": list(self.stores)}

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """Return settings with the given values; all others have their defaults."""
        if "fold" in values and "folds" not in values:
            raise UsageError("fold", "is one of `folds`: give their number too")
        given = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        return cls(**given | {"stores": tuple(given.get("stores", ()))})

    @property
    def writes(self) -> bool:
        """Whether the run is trained and writes files; not if it is only planned or profiled."""
        return not (self.plan or self.profile)

    @property
    def all_stages(self) -> tuple[Stage, ...]:
        """The stages of the run: ``stages``, or a single one of ``level``, ``crop``, ``epochs``."""
        if self.stages is not None:
            return parse_stages(self.stages)
        return (Stage(self.level, self.crop, math.ceil(self.epochs)),)

    @property
    def ends(self) -> tuple[int, ...]:
        """Number of epochs that are done at the end of each stage; the last is the run's total."""
        if self.time is not None:
            return (sys.maxsize,)
        return tuple(accumulate(stage.epochs for stage in self.all_stages))

    @property
    def length(self) -> float:
        """Number of epochs of the run; the last may be a fraction; infinity with ``time``."""
        if self.time is not None:
            return math.inf
        return self.ends[-1] if self.stages is not None else self.epochs

    def is_finished(self, epochs: int, time_over: float) -> bool:
        """Return whether a run is finished after so many epochs, or seconds of its ``time``."""
        if self.time is not None:
            return time_over >= parse_duration(self.time)
        return epochs >= self.length

    def validates(self, epoch: int) -> bool:
        """Return whether an epoch, counted from 1, ends with a validation."""
        return epoch % (self.val_every or 1) == 0 or epoch in self.ends

    def lost_patience(self, history: Sequence[Mapping[str, Any]], best: int) -> bool:
        """Return whether ``patience`` validations of the last stage are done since the best one.

        ``history`` has a row per epoch, ``best`` is the best one of the stage, -1 for none.
        """
        *_, before = 0, *self.ends[:-1]
        if self.patience is None or len(history) <= before or best < 0:
            return False
        return sum("val_loss" in row for row in history[best + 1 :]) >= self.patience

    def crops_of(self, stage: Stage, side: int) -> tuple[int | None, int]:
        """Return the side of crops, None for whole tiles, and the samples per tile and epoch.

        Tiles whose side is not larger than a crop are one sample each.
        """
        inside = stage.crop is not None and stage.crop < side
        return (stage.crop, self.crops_per_tile) if inside else (None, 1)

    def stage_of(self, epoch: int) -> int:
        """Return the index of the stage that an epoch belongs to."""
        return bisect_right(self.ends, epoch)


SECTIONS: tuple[type[Any], ...] = Config.__bases__[::-1]
"""Groups of settings, in the order of ``--help``."""

OF_ONE_START = ("out", "resume", "overwrite", "plan", "profile", "quiet", "distributed_timeout")
"""Settings of one start of the command, without influence on the trained weights."""
