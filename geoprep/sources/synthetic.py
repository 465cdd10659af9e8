"""Synthetic and real scenes never share a folder: tells them apart by the synthetic manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from geoprep.errors import SourceError, UsageError
from geoprep.sources.cities import City
from geoprep.sources.scene import Scene
from geoprep.storage import is_local

MANIFEST: Final = "synth.json"
"""Name of the file that marks the folder of a synthetic city: ``AOI_7_Moscow/synth.json``."""


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
