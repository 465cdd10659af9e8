"""Options that choose a trained model and how it computes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from geoprep.errors import UsageError
from geoprep.options import argument, option
from training.setting_texts import DeviceName

_KINDS = ("auto", "cpu", "cuda", "xpu")
_NUMBERED = re.compile(r"(cuda|xpu):\d+")


def parse_devices(text: str) -> list[str]:
    """Return the devices of text such as ``cuda:0,cuda:1`` or, shorter, ``cuda:0,1``."""
    names: list[str] = []
    for part in text.split(","):
        before = names[-1].partition(":")[0] if names and part.isdecimal() else ""
        names.append(f"{before}:{part}" if before else part)
    single = len(names) == 1 and text in _KINDS
    numbered = all(map(_NUMBERED.fullmatch, names)) and len(set(names)) == len(names)
    if not single and not numbered:
        raise UsageError(
            "device",
            f"{text}: use {', '.join(_KINDS)}; cuda:1 for the second device, or "
            "cuda:0,cuda:1 for several",
        )
    return names


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Model: the checkpoint."""

    checkpoint: Path = argument("Checkpoint, or folder of a run (its best.pt).", "CHECKPOINT")
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
        "Checkpoint, folder of a run (its best.pt), or model file of geoprep export-model: .pt2, "
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
    device: str = option(
        "auto",
        "Device that computes; auto uses an accelerator if there is one. cuda:1 is the second "
        "device; predict divides images among several, such as cuda:0,cuda:1.",
        "auto|cpu|cuda|xpu",
        check=parse_devices,
    )
    precision: Literal["auto", "bf16", "fp32"] = option(
        "auto", "Precision of the convolutions; auto: bf16 where the device computes in it."
    )

    @property
    def device_kind(self) -> DeviceName:
        """The kind of the device, such as ``cuda``."""
        return cast(DeviceName, self.device.partition(":")[0])
