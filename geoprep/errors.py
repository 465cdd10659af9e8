"""The errors a user can act on: every message names the file and the fix."""


class GeoprepError(Exception):
    """Base of all errors raised on purpose by this package."""


class UsageError(GeoprepError):
    """The request itself cannot be carried out as written (exit code 2)."""


class SourceError(GeoprepError):
    """Imagery or labels cannot be found, or an archive cannot be trusted."""


class ImageError(GeoprepError):
    """One image cannot be used: unreadable, no CRS, wrong bands or dtype."""


class LabelError(GeoprepError):
    """One label file cannot be used: malformed, or without line geometry."""


class StoreError(GeoprepError):
    """A store cannot be used: incomplete, of another schema, corrupted, or locked."""


class OutputError(GeoprepError):
    """A result cannot be written: the disk is full, or fails."""
