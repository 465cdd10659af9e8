"""What can go wrong in training beyond a wrong request; messages name the file and the fix."""

from __future__ import annotations

from geoprep.errors import GeoprepError


class CheckpointError(GeoprepError):
    """A checkpoint cannot be used: missing, truncated, foreign, or of another version."""


class TrainingError(GeoprepError):
    """A run cannot go on, such as when its loss is no longer a number."""
