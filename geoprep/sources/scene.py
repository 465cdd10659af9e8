"""Records that every source returns: scenes, and the scenes found in one source."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Scene:
    """One image and its label, by address (see `geoprep.storage`).

    The id is unique over cities, e.g. ``AOI_7_Moscow_chip12``. ``label`` is None if there is no
    label file, which differs from an empty one.
    """

    id: str
    image: str
    label: str | None


@dataclass(frozen=True, slots=True)
class SourceScenes:
    """The scenes found in one source, in natural order; at least one. Local paths are absolute.

    ``origin`` is what was searched. ``product`` is None for a user's own images. ``orphan_labels``
    have no image. ``road_file`` is one file for all scenes, whose own ``label`` is then None.
    ``notes`` are for the user, such as folders that could not be read. ``datetimes`` are times by
    scene id, where known.
    """

    scenes: tuple[Scene, ...]
    origin: str
    product: str | None = None
    orphan_labels: tuple[str, ...] = ()
    road_file: str | None = None
    notes: tuple[str, ...] = ()
    datetimes: Mapping[str, str] = field(default_factory=dict)


def natural_key(text: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return a sort key under which ``chip2`` comes before ``chip10``; no two texts share one."""
    pieces = re.findall(r"\d+|\D+", text)
    return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p.lower()) for p in pieces), text
