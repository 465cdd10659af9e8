"""Synthetic and real scenes never share a folder: tells them apart by the synthetic manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from geoprep.errors import SourceError, UsageError
from geoprep.sources.cities import City
from geoprep.sources.city_folders import TooManyFoldersError, city_files
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


def refuse_real(folder: Path, city: City) -> None:
    """Raise UsageError if a folder for a synthetic city holds other files of the same city.

    Parameters
    ----------
    folder
        Folder above the city's own, as a build would search it.
    """
    if not folder.is_dir():
        return
    try:
        tree = city_files(folder, city)
    except TooManyFoldersError:
        return
    own = folder / city.aoi
    drawn = (own / MANIFEST).is_file()
    for name in (*tree.files, *tree.archives):
        if not (drawn and Path(name).is_relative_to(own)):
            raise UsageError(
                f"{folder} holds files of {city.aoi} that are not synthetic ({name}): choose "
                "another folder with `out`"
            )


def synthetic_notes(scenes: Sequence[Scene], origin: str) -> tuple[str, ...]:
    """Return a line for the user if scenes are synthetic.

    Raises
    ------
    SourceError
        Some of them are synthetic and others are not.
    """
    drawn = [_is_synthetic(folder) for folder in _folders(scene.image for scene in scenes)]
    if not any(drawn):
        return ()
    if not all(drawn):
        raise SourceError(
            f"{origin} holds synthetic scenes (folders with {MANIFEST}) and real ones: choose a "
            "folder that holds one kind only"
        )
    return (f"{origin} is synthetic (made by geoprep synth)",)


def _folders(images: Iterable[str]) -> set[Path | None]:
    return {Path(image).parent if is_local(image) else None for image in images}


def _is_synthetic(folder: Path | None) -> bool:
    """Return whether images of a product's folder belong to a synthetic city."""
    return folder is not None and (folder.parent / MANIFEST).is_file()
