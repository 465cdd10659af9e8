"""Every setting of a run: its default, what it is for, and the section of ``--help`` it is in.

This is the one place for defaults. Names are flat: ``--batch-size`` on the command line is
``batch_size`` in a YAML file, in a checkpoint and here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self, TypeVar

T = TypeVar("T")


def _option(default: T, text: str, metavar: str | None = None) -> T:
    """Return a field with a default and its line of ``--help``."""
    described: T = field(default=default, metadata={"help": text, "metavar": metavar})
    return described


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Data: which tiles."""

    stores: tuple[str, ...] = ()
    level: int | None = _option(
        None, "Tile side in pixels, one of the store's levels; the finest by default.", "PIXELS"
    )
    bands: str | None = _option(
        None, "Bands to use, in this order; all by default.", "red,green,..."
    )
    folds: int | None = _option(
        None, "Cut train and validation anew into this many folds, by scene.", "N"
    )
    fold: int = _option(0, "Which fold validates.", "N")
    residency: Literal["ram", "stream", "device"] = _option(
        "ram", "Where tiles live: in memory, in the store (larger than memory), on the accelerator."
    )
    ram_limit: str = _option("4GiB", "Memory for --residency stream.", "SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Samples: what is cut from the tiles."""

    batch_size: int | Literal["auto"] = _option(
        8, "Samples per step and rank; auto measures which size is fastest here.", "N|auto"
    )
    crop: int | None = _option(
        256, "Side of random windows in pixels; none for whole tiles.", "PIXELS|none"
    )
    crops_per_tile: int = _option(4, "Windows per tile and epoch.", "N")
    augment: Literal["d4", "flips"] | None = _option(
        "d4", "The eight symmetries of the square, four, or none."
    )
    jitter: float = _option(
        1.0, "Strength of random brightness, contrast and band gain; 0 for none.", "NUMBER"
    )
    min_road: float = _option(
        0.0, "Least share of road in a window: windows are drawn again, up to 8 times.", "SHARE"
    )
    weights: Literal["road", "speed"] | None = _option(
        None, "Draw tiles by their share of road, or so that rare speeds come as often as others."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """Network and loss: what learns what."""

    model: str = _option(
        "resnet34-unet",
        "The built-in network, or a factory called as factory(bands=, channels=).",
        "NAME|package.module:factory",
    )
    encoder_weights: str = _option(
        "none",
        "ImageNet weights for the encoder: download, a local file, or none.",
        "imagenet|FILE|none",
    )
    targets: Literal["bins", "continuous", "binary"] = _option(
        "bins", "Seven ten-mph bins and any road, one speed channel, or any road only."
    )
    loss: Literal["focal-dice", "bce-dice"] = _option(
        "focal-dice", "0.75 of focal loss or cross-entropy, and 0.25 of soft dice."
    )
    channel_weights: Literal["none", "auto"] = _option(
        "none", "auto lets channels of rare speeds count more, from the store's histogram."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Optimisation: how it learns."""

    epochs: int = _option(30, "Times every tile is seen.", "N")
    stages: str | None = _option(
        None,
        "Train small, finish large: instead of --level, --crop and --epochs.",
        "LEVEL@CROP:EPOCHS,...",
    )
    optimizer: Literal["adamw", "adam", "sgd"] = _option("adamw", "Fused where torch has it.")
    lr: float = _option(1e-3, "Highest learning rate.", "NUMBER")
    weight_decay: float = _option(1e-2, "Decoupled for adamw.", "NUMBER")
    schedule: Literal["onecycle", "cosine", "multistep", "constant"] = _option(
        "onecycle", "Course of the learning rate over all epochs."
    )
    warmup: float = _option(
        1.0, "Epochs of linear warm-up; onecycle rises over its first 30 % instead.", "EPOCHS"
    )
    milestones: str = _option("20,25", "Epochs at which multistep falls.", "EPOCH,...")
    gamma: float = _option(0.2, "What multistep falls by.", "NUMBER")
    clip: float | None = _option(1.0, "Largest norm of the gradient; none for any.", "NUMBER|none")
    accumulate: int = _option(1, "Batches per optimizer step.", "N")
    ema: float = _option(
        0.0, "Decay of averaged weights, which then validate and predict; 0 for none.", "NUMBER"
    )
    patience: int | None = _option(
        None, "Stop after this many epochs without a better road IoU.", "EPOCHS"
    )
    seed: int = _option(0, "Decides everything that is random.", "N")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineConfig:
    """Machine: where and how it computes."""

    engine: Literal["auto", "native", "ipex"] = _option(
        "auto", "PyTorch itself, or Intel's retired extension; auto takes that where installed."
    )
    device: Literal["auto", "cpu", "cuda", "xpu"] = _option("auto", "Where it computes.")
    precision: Literal["bf16", "fp32"] = _option(
        "bf16", "Of convolutions; weights and loss are always fp32."
    )
    compile: Literal["loss", "model", "off"] = _option(
        "loss", "What torch.compile is used for, where there is a compiler."
    )
    threads: int | None = _option(
        None, "Threads that compute; the processors divided by the ranks by default.", "N"
    )
    loader_threads: int | None = _option(None, "Threads that fill batches.", "N")
    val_batch_size: int = _option(4, "Whole tiles per validation batch.", "N")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """Output: what is kept, shown and taken up again."""

    out: str | None = _option(
        None, "Folder of the run; runs/NAME-OF-THE-STORE by default.", "FOLDER"
    )
    resume: str | None = _option(
        None, "Go on with a run, exactly where it stopped; all its settings hold.", "FOLDER"
    )
    overwrite: bool = _option(False, "Start anew in a folder that holds a run.")
    save_every: str = _option(
        "10m",
        "Checkpoint within epochs: every so many steps (500), minutes or seconds (10m, 30s).",
        "N|TIME",
    )
    val_every: int = _option(1, "Epochs between validations.", "N")
    log_every: int = _option(10, "Steps between looks at the loss.", "N")
    pictures: int = _option(4, "Validation tiles in each epoch's picture; 0 for none.", "N")
    profile: bool = _option(False, "Print where the time of a step goes, and stop.")
    quiet: bool = _option(False, "No progress bar.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of a run, by section."""

    data: DataConfig = DataConfig()
    sampling: SamplingConfig = SamplingConfig()
    network: NetworkConfig = NetworkConfig()
    optim: OptimizerConfig = OptimizerConfig()
    machine: MachineConfig = MachineConfig()
    output: OutputConfig = OutputConfig()

    def flat(self) -> dict[str, Any]:
        """Return every setting by its flat name, as plain values."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for section in asdict(self).values()
            for name, value in section.items()
        }

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings of flat names; those not given have their defaults."""
        made = {}
        for name, section in sections():
            given = {f.name: values[f.name] for f in fields(section) if f.name in values}
            if "stores" in given:
                given["stores"] = tuple(given["stores"])
            made[name] = section(**given)
        return cls(**made)


def sections() -> Iterator[tuple[str, type[Any]]]:
    """Yield the name of each section and its class."""
    for section in fields(Config):
        yield section.name, type(section.default)


def setting_names() -> tuple[str, ...]:
    """Return the flat names of all settings."""
    return tuple(f.name for _, section in sections() for f in fields(section))
