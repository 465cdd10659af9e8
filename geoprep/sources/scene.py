"""Records that every source returns: scenes, and the scenes found in one source."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from geoprep.errors import SourceError, UsageError
from geoprep.sources.cities import City
from geoprep.storage.addresses import archive_member, is_local, is_remote, split_address

if TYPE_CHECKING:
    from geoprep.imagery.description import Stated

MANIFEST: Final = "synth.json"
"""Name of the file that marks the folder of a synthetic city: ``AOI_7_Moscow/synth.json``."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One image and its label, by address (see `geoprep.storage`).

    The id is unique over cities, e.g. ``AOI_7_Moscow_chip12``. Several images `joined` are the
    bands of one. ``label`` is None if there is no label file, which differs from an empty one.
    """

    id: str
    image: str
    label: str | None

    @property
    def images(self) -> list[str]:
        """Address of every image."""
        return split_address(self.image)


@dataclass(frozen=True, slots=True)
class SourceScenes:
    """The scenes found in one source, in natural order; at least one. Local paths are absolute.

    ``origin`` is the address that was searched. ``product`` is None for a user's own images.
    ``orphan_labels`` have no image. ``shared_label`` is one file for all scenes, whose ``label`` is
    then None. ``notes`` are for the user, such as folders that could not be read. ``datetimes``
    are times by scene id, where known, and ``stated`` has the statements of STAC items about their
    images.
    """

    scenes: tuple[Scene, ...]
    origin: str
    product: str | None = None
    orphan_labels: tuple[str, ...] = ()
    shared_label: str | None = None
    notes: tuple[str, ...] = ()
    datetimes: Mapping[str, str] = field(default_factory=dict)
    stated: Mapping[str, Stated] = field(default_factory=dict)


def refuse_inside(
    found: Sequence[SourceScenes], out: str | Path, given: Sequence[str] = ()
) -> None:
    """Raise UsageError if an input lies in the store that is to be built, or its working folder.

    ``given`` are further paths and patterns, such as archives that have been unpacked elsewhere.
    """
    texts = (
        text for sources in found for scene in sources.scenes for text in (scene.image, scene.label)
    )
    inputs = [
        *(address for text in texts if text for address in split_address(text)),
        *(sources.shared_label for sources in found if sources.shared_label),
        *given,
    ]
    folders: dict[str, str] = {}  # one input of each
    for address in inputs:
        member = archive_member(address)
        folders.setdefault((member.archive if member else address).rpartition("/")[0], address)
    target = _resolved(str(out).rstrip("/"))
    for folder, address in folders.items():
        if f"{_resolved(folder)}/".startswith((f"{target}/", f"{target}.build/")):
            raise UsageError(
                f"{address} lies in {out}, which this build writes: choose another `out`, or move "
                "the input"
            )


def _resolved(folder: str) -> str:
    return folder if is_remote(folder) else str(Path(folder).resolve())


def natural_key(text: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return a sort key under which ``chip2`` comes before ``chip10``; no two texts share one."""
    runs = re.findall(r"\d+|\D+", text)
    return tuple(
        (0, int(run), "") if run.isdecimal() else (1, 0, run.lower()) for run in runs
    ), text


def refuse_synthetic(folder: Path, city: City) -> None:
    """Raise UsageError if a folder for downloads holds a synthetic city of the same name."""
    for place in (folder / city.aoi, folder):
        if (place / MANIFEST).is_file():
            raise UsageError(
                f"{place} holds a synthetic city (see {place / MANIFEST}), whose files have the "
                "same names: choose another folder with `out`, or delete this one"
            )


def synthetic_notes(scenes: Sequence[Scene], origin: str) -> tuple[str, ...]:
    """Return a line for the user if scenes are synthetic; raise SourceError if only some are."""
    images = [scene.images[0] for scene in scenes]
    folders = {Path(image).parent if is_local(image) else None for image in images}
    drawn = [folder is not None and (folder.parent / MANIFEST).is_file() for folder in folders]
    if not any(drawn):
        return ()
    if not all(drawn):
        raise SourceError(
            f"{origin} holds synthetic scenes (folders with {MANIFEST}) and real ones: choose a "
            "folder that holds one kind only"
        )
    return (f"{origin} is synthetic (made by geoprep synth)",)
