"""Options that choose a trained model and how it computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from training.cli import argument, option


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Model: the checkpoint."""

    checkpoint: Path = argument("Checkpoint, or folder of a run (its best.pt).", "CHECKPOINT")
    weights: Literal["auto", "ema", "raw"] = option(
        "auto", "Weights: averaged (ema), as trained (raw), or averaged if there are any (auto)."
    )
    model: str | None = option(
        None,
        "Factory of a model that is not part of this package. Confirms that the code which the "
        "checkpoint names may be imported.",
        "package.module:factory",
    )


@dataclass(frozen=True, kw_only=True)
class ModelOptions(CheckpointOptions):
    """Model: the trained model, and how it computes."""

    checkpoint: Path = argument(
        "Checkpoint, folder of a run (its best.pt), or model file of training.export: .pt2, "
        ".onnx, .xml, .ipex.",
        "MODEL",
    )
    threshold: float | None = option(
        None,
        "Minimum probability of a road. By default the value in the checkpoint, found on "
        "validation tiles, else 0.5.",
        "PROBABILITY",
        above=0,
        most=1,
    )
    tta: Literal["none", "flips", "d4"] = option(
        "none",
        "Test-time augmentation: average the probabilities of 4 flips, or of 8 flips and "
        "rotations (d4). Takes 4 or 8 times as long.",
    )
    device: Literal["auto", "cpu", "cuda", "xpu"] = option("auto", "Device that computes.")
    precision: Literal["auto", "bf16", "fp32"] = option(
        "auto", "Precision of the convolutions; auto: bf16 where the device computes in it."
    )
