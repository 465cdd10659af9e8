"""Settings that are written as text of a form of their own: stages, intervals, shares, licences."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from geoprep.errors import UsageError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 epoch``, ``2 epochs``."""
    return f"{count} {noun}{'s' * (count != 1)}"


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive epochs at one level and crop size."""

    level: int | None
    crop: int | None
    epochs: int

    def __str__(self) -> str:
        size = "whole tiles" if self.crop is None else f"crops of {self.crop}"
        level = "the finest level" if self.level is None else f"level {self.level}"
        return f"{counted(self.epochs, 'epoch')} of {size} at {level}"


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Return the stages of ``LEVEL@CROP:EPOCHS,...``; ``LEVEL:EPOCHS`` uses whole tiles."""
    stages = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(0*[1-9]\d*)(?:@(0*[1-9]\d*))?:(0*[1-9]\d*)\s*", part)
        if not match:
            raise UsageError(
                f"`stages` {part.strip()!r}: write LEVEL@CROP:EPOCHS such as 325@256:20, or "
                "LEVEL:EPOCHS for whole tiles, with commas between stages"
            )
        level, crop, epochs = match.groups()
        stages.append(Stage(int(level), int(crop) if crop else None, int(epochs)))
    return tuple(stages)


def parse_interval(text: str) -> tuple[int, float]:
    """Return the steps and seconds of ``500``, ``30s``, ``10m`` or ``2h``; 0 and inf mean never."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if not match or float(match[1]) <= 0 or (not match[2] and "." in match[1]):
        raise UsageError(
            f"`save_every` {text!r}: write a number of steps such as 500, or a time such as 30s "
            "or 10m"
        )
    if match[2]:
        return 0, float(match[1]) * _SECONDS[match[2]]
    return int(match[1]), math.inf


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
                f"`min_share` {part.strip()!r}: write CLASS=SHARE such as water=0.1, with commas "
                "between classes and shares up to 1"
            )
        shares[name] = share
    return shares


def check_licence(text: str) -> None:
    """Raise UsageError unless a text can be the licence of a STAC item."""
    if not re.fullmatch(r"[\w.+-]+", text):
        raise UsageError(f"`licence` {text}: use an SPDX identifier such as CC-BY-4.0, or other")
