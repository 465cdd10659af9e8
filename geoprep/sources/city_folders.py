"""Search of a folder tree for the files of one city, limited in depth and number of folders."""

import os
import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from geoprep.errors import SourceError
from geoprep.sources.cities import City, file_role
from geoprep.sources.tar import is_archive

# SpaceNet 5's train archives unpack to nfs/data/cosmiq/spacenet/competitions/SN5_roads/
# tiles_upload/train/AOI_7_Moscow/PS-RGB: ten folders deep.
MAX_DEPTH = 14
MAX_FOLDERS = 5_000
_SKIPPED = re.compile(
    r"\..*|.*\.zarr(\.build)?|.*\.unpacked|__pycache__|node_modules|site-packages"
)
_AREA = re.compile(r"(?:SN\d+_.*)?AOI_(\d+)_", re.IGNORECASE)


class TooManyFoldersError(SourceError):
    """A folder tree is too large to be searched."""


@dataclass(slots=True)
class CityFiles:
    """Files and archives of a city under a folder, and notes about folders that were left out.

    Paths start with the folder's own.
    """

    files: list[str] = field(default_factory=list)
    archives: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def city_files(root: Path, city: City) -> CityFiles:
    """Search a folder for the files of a city, level by level and in the order of names.

    Hidden folders, stores, caches and folders of other cities are left out. Links to folders are
    followed; each folder is searched once.

    Raises
    ------
    TooManyFoldersError
        There are more than 5,000 folders in the tree.
    """
    result = CityFiles()
    queue: deque[tuple[Path, int]] = deque([(root, 0)])
    visited: set[tuple[int, int]] = set()
    while queue:
        folder, depth = queue.popleft()
        entries = _entries(folder, visited, result)
        if len(visited) > MAX_FOLDERS:
            raise TooManyFoldersError(
                f"{root}: more than {MAX_FOLDERS:,} folders under it. Give the folder that holds "
                f"{city.aoi} as `source`."
            )
        below = _sort_out(entries, city, result)
        if depth < MAX_DEPTH:
            queue.extend((found, depth + 1) for found in below)
        else:
            result.notes += [f"not searched: {found} (too deep)" for found in below]
    return result


def _entries(
    folder: Path, visited: set[tuple[int, int]], result: CityFiles
) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; none if it was searched before or cannot be read."""
    try:
        stat = folder.stat()
        if (stat.st_dev, stat.st_ino) in visited:
            return []
        visited.add((stat.st_dev, stat.st_ino))
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        result.notes.append(f"not searched: {folder} ({error.strerror})")
        return []


def _sort_out(entries: list[os.DirEntry[str]], city: City, result: CityFiles) -> list[Path]:
    """Add the files of the city to the result, and return the folders to search next."""
    below = []
    for entry in entries:
        if _is_folder(entry):
            if not _SKIPPED.fullmatch(entry.name) and not _other_area(entry.name, city):
                below.append(Path(entry.path))
        elif file_role(city, entry.path) is not None:
            result.files.append(entry.path)
        elif is_archive(Path(entry.name)) and _archive_of(entry.name, city):
            result.archives.append(entry.path)
    return below


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, reported when it is opened
        return False


def _other_area(name: str, city: City) -> bool:
    match = _AREA.match(name)
    return match is not None and int(match[1]) != city.aoi_id


def _archive_of(name: str, city: City) -> bool:
    mission = re.match(r"SN\d+", name, re.IGNORECASE)
    match = re.search(r"AOI_(\d+)_", name, re.IGNORECASE)
    return (
        match is not None
        and int(match[1]) == city.aoi_id
        and (mission is None or mission[0].upper() == city.mission)
    )
