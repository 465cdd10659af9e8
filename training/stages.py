"""Stages of a run: at which resolution, on windows of which size, for how long."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

from geoprep.errors import UsageError
from training.config import Config


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
        return f"{self.epochs} epoch{'s' * (self.epochs > 1)} of {size} at {level}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All stages of a run, and where in it an epoch is.

    Attributes
    ----------
    stages
        One or more.
    """

    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, config: Config) -> Plan:
        """Return the plan of a configuration: its stages, or the one that other settings say.

        Raises
        ------
        UsageError
            Something in it is not a positive number, or is written wrongly.
        """
        if config.optim.stages is None:
            plan = cls((Stage(config.data.level, config.sampling.crop, config.optim.epochs),))
        else:
            plan = cls(parse_stages(config.optim.stages))
        for stage in plan.stages:
            if stage.epochs < 1 or (stage.crop is not None and stage.crop < 1):
                raise UsageError(f"{stage}: epochs and windows are at least 1")
        return plan

    @property
    def epochs(self) -> int:
        """Epochs of all stages."""
        return sum(stage.epochs for stage in self.stages)

    def stage_of(self, epoch: int) -> int:
        """Return the number of the stage that an epoch belongs to."""
        ends = accumulate(stage.epochs for stage in self.stages)
        return next(i for i, end in enumerate(ends) if epoch < end)

    def first_epoch(self, stage: int) -> int:
        """Return the epoch that a stage begins with."""
        return sum(s.epochs for s in self.stages[:stage])

    def is_last_of_stage(self, epoch: int) -> bool:
        """Return whether a stage ends with this epoch."""
        return epoch + 1 in accumulate(stage.epochs for stage in self.stages)


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Return the stages of ``LEVEL@CROP:EPOCHS,...``; LEVEL:EPOCHS is of whole tiles.

    Raises
    ------
    UsageError
        It is written otherwise.
    """
    stages = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:@(\d+))?:(\d+)\s*", part)
        if not found:
            raise UsageError(
                f"--stages {part.strip()!r}: write LEVEL@CROP:EPOCHS such as 325@256:20, or "
                "LEVEL:EPOCHS for whole tiles, with commas between stages"
            )
        level, crop, epochs = found.groups()
        stages.append(Stage(int(level), int(crop) if crop else None, int(epochs)))
    return tuple(stages)
