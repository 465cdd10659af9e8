"""Settings as they are written: choices, texts of a form of their own, and YAML files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from geoprep.errors import UsageError
from geoprep.storage.output_files import replaced
from geoprep.texts import counted, yaml_loader

Residency = Literal["ram", "compressed", "stream", "device"]
LossName = Literal["focal-dice", "ce-dice"]
EngineName = Literal["auto", "native", "ipex"]
DeviceName = Literal["auto", "cpu", "cuda", "xpu"]
Precision = Literal["auto", "bf16", "fp16", "tf32", "fp32"]
CompileMode = Literal["loss", "model", "off"]

TIMEOUT_MINUTES = 60.0
"""Minutes that a rank waits for the others, unless a run says otherwise."""

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive epochs at one level and crop size."""

    level: int | None
    crop: int | None
    epochs: int

    def __str__(self) -> str:
        return f"{counted(self.epochs, 'epoch')} of {self.samples}"

    @property
    def samples(self) -> str:
        """Size and level of the samples, as text."""
        size = "whole tiles" if self.crop is None else f"crops of {self.crop}"
        level = "the finest level" if self.level is None else f"level {self.level}"
        return f"{size} at {level}"


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Return the stages of ``LEVEL@CROP:EPOCHS,...``; ``LEVEL:EPOCHS`` uses whole tiles."""
    stages = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(0*[1-9]\d*)(?:@(0*[1-9]\d*))?:(0*[1-9]\d*)\s*", part)
        if not match:
            raise UsageError(
                "stages",
                f"{part.strip()!r}: write LEVEL@CROP:EPOCHS such as 325@256:20, or "
                "LEVEL:EPOCHS for whole tiles, with commas between stages",
            )
        level, crop, epochs = match.groups()
        stages.append(Stage(int(level), int(crop) if crop else None, int(epochs)))
    return tuple(stages)


def parse_interval(text: str) -> tuple[int, float]:
    """Return the steps and seconds of ``500``, ``30s``, ``10m`` or ``2h``; 0 and inf mean never."""
    if seconds := _seconds(text):
        return 0, seconds
    if re.fullmatch(r"\s*\d+\s*", text) and int(text):
        return int(text), math.inf
    raise UsageError(
        "save_every", f"{text!r}: write a number of steps such as 500, or a time such as 30s or 10m"
    )


def parse_duration(text: str) -> float:
    """Return the seconds of ``30s``, ``10m`` or ``2h``."""
    if seconds := _seconds(text):
        return seconds
    raise UsageError("time", f"{text!r}: write a time such as 90s, 10m or 2h")


def _seconds(text: str) -> float:
    """Return the seconds of a time; 0 if it is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh])\s*", text)
    return float(match[1]) * _SECONDS[match[2]] if match else 0.0


def parse_shares(text: str) -> dict[str, float]:
    """Return the minimum share of each class of ``water=0.1,building=0.05``."""
    shares = {}
    for part in text.split(","):
        name, _, number = (word.strip() for word in part.rpartition("="))
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if not name or not 0 < share <= 1:
            raise UsageError(
                "min_share",
                f"{part.strip()!r}: write CLASS=SHARE such as water=0.1, with commas "
                "between classes and shares up to 1",
            )
        shares[name] = share
    return shares


def read_yaml(path: str, parameter: str) -> Any:  # noqa: ANN401 - a file may hold anything
    """Return the content of the YAML file that a parameter names."""
    import yaml

    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader=yaml_loader())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(parameter, f"{path} cannot be read: {reason}") from error


_TITLE = "# Settings of this run: `--config` takes this file."


def are_settings(path: Path) -> bool:
    """Return whether `write_settings` wrote a file."""
    return path.is_file() and path.read_bytes().startswith(_TITLE.encode())


def write_settings(path: Path, sections: Iterable[type[Any]], values: Mapping[str, Any]) -> None:
    """Write settings as YAML, by section, in a form that ``--config`` reads."""
    import yaml

    lines = [_TITLE]
    for section in sections:
        part = {f.name: values[f.name] for f in fields(section) if f.name in values}
        lines += [f"\n# {section.__doc__}", yaml.safe_dump(part, sort_keys=False).rstrip()]
    with replaced(path) as partial:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
